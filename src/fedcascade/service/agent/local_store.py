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

from fedcascade.federation.agent import ShownList
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol.wire import pack_numbers, unpack_statistics

SCHEMA = """
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS statistics (
    name TEXT PRIMARY KEY, numbers BLOB NOT NULL, count INTEGER NOT NULL, clicks INTEGER NOT NULL,
    rounds INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    sequence INTEGER PRIMARY KEY, cause TEXT NOT NULL, numbers BLOB NOT NULL, count INTEGER NOT NULL,
    clicks INTEGER NOT NULL, rounds INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS open_list (
    impression INTEGER PRIMARY KEY, items BLOB NOT NULL, features BLOB NOT NULL);
"""
VERSION = 2  # version 1 did not keep what the server has confirmed: its agents ask the server what it holds
FROM_VERSION_1 = "INSERT OR REPLACE INTO setting VALUES ('unconfirmed', x'01')"


@dataclass(frozen=True)
class RoundEstimate:
    """What an agent knows of t: the system's rounds and agents at the last download, its own arrivals since then."""

    rounds: int = 0
    agents: int = 1
    arrivals_since: int = 0

    def estimate_round(self, arrivals: int) -> int:
        """Extrapolate t: while this agent's user came once, each of the others did, on average."""
        return max(1, arrivals, self.rounds + self.agents * self.arrivals_since)


class LocalStore:
    """What an agent keeps, in one SQLite file or in ``:memory:``."""

    def __init__(self, path: str) -> None:
        if path != ":memory:":
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it holds the private key
            except OSError as error:
                raise ValueError(f"cannot open the agent's store '{path}': {error.strerror}") from None
        self._connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
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
            if version == 1:
                run(FROM_VERSION_1)
            run(f"PRAGMA user_version = {VERSION}")
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY":
                raise ValueError(f"another process uses '{path}': an agent has one process at a time") from None
            raise ValueError(f"cannot use '{path}' as an agent's store: {error}") from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def sync_to_disk(self) -> None:
        """Wait until everything that was committed has reached the disk."""
        self._connection.execute("PRAGMA wal_checkpoint(FULL)")

    def close(self) -> None:
        self._connection.close()

    def get_setting(self, name: str) -> bytes | None:
        row = self._connection.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def set_setting(self, name: str, value: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, value))

    def load_statistics(self, name: str, dimension: int) -> Statistics:
        row = self._connection.execute("SELECT * FROM statistics WHERE name = ?", (name,)).fetchone()
        return Statistics.zero(dimension) if row is None else unpack_statistics(row[1], row[2:], dimension)

    def save_statistics(self, name: str, statistics: Statistics) -> None:
        row = (name, *_list_columns(statistics))
        self._connection.execute("INSERT OR REPLACE INTO statistics VALUES (?, ?, ?, ?, ?)", row)

    def load_counters(self) -> tuple[int, int, RoundEstimate]:
        """Load how often the user came, how many uploads there were, and what is known of t."""
        body = self.get_setting("counters")
        arrivals, uploads, rounds, agents, since = (0, 0, 0, 1, 0) if body is None else np.frombuffer(body, "<i8")
        return int(arrivals), int(uploads), RoundEstimate(int(rounds), int(agents), int(since))

    def save_counters(self, arrivals: int, uploads: int, estimate: RoundEstimate) -> None:
        row = np.array([arrivals, uploads, estimate.rounds, estimate.agents, estimate.arrivals_since], "<i8")
        self.set_setting("counters", row.tobytes())

    def add_open_list(self, shown: ShownList, forget_before: int) -> None:
        """Save a list until its feedback comes; very old ones are deleted."""
        row = (shown.impression, shown.items.astype("<i8").tobytes(), shown.features.astype("<f4").tobytes())
        self._connection.execute("INSERT INTO open_list VALUES (?, ?, ?)", row)
        self._connection.execute("DELETE FROM open_list WHERE impression <= ?", (forget_before,))

    def load_open_lists(self, agent: int, dimension: int) -> Iterator[ShownList]:
        for impression, items, features in self._connection.execute("SELECT * FROM open_list ORDER BY impression"):
            rows = np.frombuffer(features, "<f4").reshape(-1, dimension)
            yield ShownList(agent, impression, np.frombuffer(items, "<i8").astype(np.intp), rows.astype(np.float32))

    def delete_open_list(self, impression: int) -> None:
        self._connection.execute("DELETE FROM open_list WHERE impression = ?", (impression,))

    def add_to_outbox(self, upload: Upload) -> None:
        row = (upload.sequence, upload.cause.value, *_list_columns(upload.statistics))
        self._connection.execute("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?)", row)

    def load_outbox(self, agent: int, dimension: int) -> list[Upload]:
        """Load the uploads that have not been answered, oldest first."""
        uploads = []
        for sequence, cause, numbers, *counts in self._connection.execute("SELECT * FROM outbox ORDER BY sequence"):
            statistics = unpack_statistics(numbers, tuple(counts), dimension)
            uploads.append(Upload(agent=agent, sequence=sequence, cause=Cause(cause), statistics=statistics))
        return uploads

    def delete_from_outbox(self, sequence: int) -> None:
        self._connection.execute("DELETE FROM outbox WHERE sequence = ?", (sequence,))

    def erase(self) -> None:
        """Delete everything, and overwrite it on disk."""
        self._connection.execute("PRAGMA secure_delete = ON")
        with self.transaction():
            for table in ("setting", "statistics", "outbox", "open_list"):
                self._connection.execute(f"DELETE FROM {table}")
        self.sync_to_disk()


def _list_columns(statistics: Statistics) -> tuple[bytes, int, int, int]:
    return pack_numbers(statistics), statistics.count, statistics.clicks, statistics.rounds
