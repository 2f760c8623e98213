"""What an agent keeps on its own device: key, state, open lists, uploads that have not been answered.

Every change is a transaction. The file survives the death of the process at any moment; before an upload leaves the
device it is forced to the disk, so that even a power cut cannot make the agent reuse a sequence number.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedcascade.federation.agent import Shown
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol.wire import packed, unpacked

SCHEMA = """
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS held (
    name TEXT PRIMARY KEY, numbers BLOB NOT NULL, count INTEGER NOT NULL, clicks INTEGER NOT NULL,
    rounds INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    sequence INTEGER PRIMARY KEY, cause TEXT NOT NULL, numbers BLOB NOT NULL, count INTEGER NOT NULL,
    clicks INTEGER NOT NULL, rounds INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS shown (
    impression INTEGER PRIMARY KEY, items BLOB NOT NULL, features BLOB NOT NULL);
"""
VERSION = 1


@dataclass(frozen=True)
class Clock:
    """How far the system was at the last download, and how often this agent's user came since."""

    rounds: int = 0
    agents: int = 1
    since: int = 0

    def round(self, arrivals: int) -> int:
        """t, extrapolated: while this agent's user came once, each of the others did, on average."""
        return max(1, arrivals, self.rounds + self.agents * self.since)


class LocalStore:
    """One SQLite file, or ``:memory:``."""

    def __init__(self, path: str) -> None:
        if path != ":memory:":
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it holds the private key
            except OSError as error:
                raise ValueError(f"cannot open the agent's store '{path}': {error.strerror}") from None
        self._connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(path)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, path: str) -> None:
        run = self._connection.execute
        try:
            run("PRAGMA locking_mode = EXCLUSIVE")
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = NORMAL")
            [version] = run("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise ValueError(f"'{path}' is from a newer fedcascade: version {version}, this one knows {VERSION}")
            self._connection.executescript(SCHEMA)
            run(f"PRAGMA user_version = {VERSION}")
        except sqlite3.DatabaseError as error:
            raise ValueError(f"cannot use '{path}' as an agent's store: {error}") from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def force(self) -> None:
        """Let everything reach the disk."""
        self._connection.execute("PRAGMA wal_checkpoint(FULL)")

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def setting(self, name: str) -> bytes | None:
        """A named value."""
        found = self._connection.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        return None if found is None else bytes(found[0])

    def set_setting(self, name: str, value: bytes) -> None:
        """Keep a named value."""
        self._connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, value))

    def held(self, name: str, dimension: int) -> Statistics:
        """Named statistics; zero if there are none."""
        found = self._connection.execute(
            "SELECT numbers, count, clicks, rounds FROM held WHERE name = ?", (name,)
        ).fetchone()
        return Statistics.zero(dimension) if found is None else unpacked(found[0], tuple(found[1:]), dimension)

    def hold(self, name: str, held: Statistics) -> None:
        """Keep named statistics."""
        row = (name, packed(held), held.count, held.clicks, held.rounds)
        self._connection.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?)", row)

    def counters(self) -> tuple[int, int, Clock]:
        """Arrivals, uploads, and the clock."""
        kept = self.setting("counters")
        arrivals, uploads, rounds, agents, since = (0, 0, 0, 1, 0) if kept is None else np.frombuffer(kept, "<i8")
        return int(arrivals), int(uploads), Clock(int(rounds), int(agents), int(since))

    def count(self, arrivals: int, uploads: int, clock: Clock) -> None:
        """Keep the counters."""
        row = np.array([arrivals, uploads, clock.rounds, clock.agents, clock.since], "<i8")
        self.set_setting("counters", row.tobytes())

    def show(self, shown: Shown, forget_before: int) -> None:
        """Keep a list until its feedback comes; very old ones go."""
        row = (shown.impression, shown.items.astype("<i8").tobytes(), shown.features.astype("<f4").tobytes())
        self._connection.execute("INSERT INTO shown VALUES (?, ?, ?)", row)
        self._connection.execute("DELETE FROM shown WHERE impression <= ?", (forget_before,))

    def shown(self, agent: int, dimension: int) -> Iterator[Shown]:
        """The lists that have no feedback yet."""
        for impression, items, features in self._connection.execute("SELECT * FROM shown ORDER BY impression"):
            rows = np.frombuffer(features, "<f4").reshape(-1, dimension)
            yield Shown(agent, impression, np.frombuffer(items, "<i8").astype(np.intp), rows.astype(np.float32))

    def answered(self, impression: int) -> None:
        """A list has its feedback."""
        self._connection.execute("DELETE FROM shown WHERE impression = ?", (impression,))

    def post(self, upload: Upload) -> None:
        """Keep an upload until the server has answered it."""
        held = upload.statistics
        row = (upload.sequence, upload.cause.value, packed(held), held.count, held.clicks, held.rounds)
        self._connection.execute("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?)", row)

    def outbox(self, agent: int, dimension: int) -> list[Upload]:
        """The uploads that were not answered, oldest first."""
        rows = self._connection.execute("SELECT * FROM outbox ORDER BY sequence").fetchall()
        return [
            Upload(
                agent=agent,
                sequence=sequence,
                cause=Cause(cause),
                statistics=unpacked(numbers, (count, clicks, rounds), dimension),
            )
            for sequence, cause, numbers, count, clicks, rounds in rows
        ]

    def receive(self, download: Download, sequence: int) -> None:
        """An upload was answered."""
        self._connection.execute("DELETE FROM outbox WHERE sequence = ?", (sequence,))
        self.hold("download", download.statistics)

    def erase(self) -> None:
        """Forget everything."""
        self._connection.execute("PRAGMA secure_delete = ON")
        with self.transaction():
            for table in ("setting", "held", "outbox", "shown"):
                self._connection.execute(f"DELETE FROM {table}")
        self.force()
