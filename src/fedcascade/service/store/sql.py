"""The SQL that both stores share. A store adds how to connect, how to lock, and its own column types."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, ClassVar, TypeVar

from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.protocol.wire import packed, unpacked
from fedcascade.service.store.contract import Identity, LogEntry, Revoked
from fedcascade.service.store.sql_journal import SqlJournal

COLUMNS = "position, agent, sequence, cause, count, clicks, rounds, numbers, nonce"
CHUNK = 512
Row = TypeVar("Row")
TOGETHER = 64  # rows in one statement: each call to a database costs more than a row


@cache
def _look_up(pairs: int) -> str:
    asked = _marks(pairs, 2)
    return (
        f"WITH asked (asker, number) AS (VALUES {asked}) SELECT asker, number, agent.id, {COLUMNS} FROM asked "
        "LEFT JOIN agent ON agent.id = asker AND revoked IS NULL "
        "LEFT JOIN upload ON upload.agent = asker AND sequence = number"
    )


@cache
def _append(table: str, columns: str, rows: int) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES {_marks(rows, columns.count(',') + 1)}"


def _marks(rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)


class SqlStore(SqlJournal):
    """A store behind a connection of Python's database interface, in autocommit mode."""

    failures: tuple[type[Exception], ...] = ()
    begin: ClassVar[Sequence[str]] = ("BEGIN",)

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._appended: dict[tuple[int, int], tuple[LogEntry, bytes]] = {}  # not sent to the database yet
        self._looked_up: dict[tuple[int, int], Sequence[Any]] = {}

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement whose values are marked by ``?``, after those that it may depend on; the cursor."""
        if self._appended:
            self._send()
        return self.execute(statement, values)

    def execute(self, statement: str, values: Sequence[Any]) -> Any:
        """Execute a statement."""
        return self.connection.execute(statement, values)

    def row(self, statement: str, *values: Any) -> Any:
        """The first row, or None."""
        return self.run(statement, *values).fetchone()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        for statement in self.begin:
            self.run(statement)
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            self._appended.clear()
            self._roll_back()
            raise
        finally:
            self._looked_up.clear()

    def _roll_back(self) -> None:
        with suppress(*self.failures):  # the database may have rolled back by itself, or be gone
            self.run("ROLLBACK")

    def close(self) -> None:
        """Let go of the database."""
        self.connection.close()

    def migrate(self, migrations: Sequence[str]) -> None:
        """Run the numbered migrations that this database has not seen; a database from the future is refused."""
        with self.transaction():
            self.run("CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY)")
            done = self.row("SELECT coalesce(max(number), 0) FROM migration")[0]
            if done > len(migrations):
                raise ValueError(
                    f"the store is at migration {done}, this version knows {len(migrations)}: use a newer fedcascade"
                )
            for number, script in enumerate(migrations[done:], done + 1):
                for statement in script.split(";"):
                    if statement.strip():
                        self.run(statement)
                self.run("INSERT INTO migration (number) VALUES (?)", number)

    def get_setting(self, name: str) -> str | None:
        """A named text."""
        found = self.row("SELECT value FROM setting WHERE name = ?", name)
        return None if found is None else str(found[0])

    def set_setting(self, name: str, value: str) -> None:
        """Keep a named text."""
        self.run(
            "INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name,
            value,
        )

    def append(self, entry: LogEntry, answer: bytes) -> None:
        """Write to the end of the log; uploads of a transaction are sent together."""
        key = (entry.upload.agent, entry.upload.sequence)
        if key in self._appended:
            self._send()  # and the database will refuse this one
        self._appended[key] = (entry, answer)

    def _send(self) -> None:
        appended, self._appended = list(self._appended.values()), {}
        for chunk in _chunks(appended):
            uploads = [value for entry, _ in chunk for value in _row_of(entry)]
            self.execute(_append("upload", COLUMNS, len(chunk)), uploads)
            answers = [value for entry, answer in chunk for value in (entry.position, answer)]
            self.execute(_append("answer", "position, body", len(chunk)), answers)

    def read_entries(self, after: int) -> Iterator[LogEntry]:
        """The log beyond a position, read in pieces."""
        statement = f"SELECT {COLUMNS} FROM upload WHERE position > ? ORDER BY position LIMIT {CHUNK}"
        while rows := self.run(statement, after).fetchall():
            for row in rows:
                yield _entry_of(row)
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def prefetch_entries(self, asked: Sequence[tuple[int, int]]) -> None:
        """Read together what ``find_entry`` will be asked for in this transaction."""
        for chunk in _chunks(asked):
            for row in self.run(_look_up(len(chunk)), *(value for pair in chunk for value in pair)).fetchall():
                self._looked_up[row[0], row[1]] = row[2:]

    def find_entry(self, agent: int, sequence: int) -> LogEntry | None:
        """The upload of that number, in one question with whether the agent may speak."""
        key = (agent, sequence)
        if key in self._appended:
            return self._appended[key][0]
        if key not in self._looked_up:
            self.prefetch_entries([key])
        speaker, *found = self._looked_up.pop(key)
        if speaker is None:
            raise Revoked(agent)
        return None if found[0] is None else _entry_of(found)

    def read_answer(self, position: int) -> bytes:
        """What an upload was answered."""
        return bytes(self.row("SELECT body FROM answer WHERE position = ?", position)[0])

    def count_uploads(self, agent: int) -> tuple[int, int]:
        """How many uploads, and of how many rounds."""
        found = self.row("SELECT count(*), coalesce(sum(rounds), 0) FROM upload WHERE agent = ?", agent)
        return int(found[0]), int(found[1])

    def forget_agent(self, agent: int, position: int) -> None:
        """Erase an agent, and note where."""
        self._looked_up.clear()
        self.run("DELETE FROM answer WHERE position IN (SELECT position FROM upload WHERE agent = ?)", agent)
        for table in ("upload", "journal", "move"):
            self.run(f"DELETE FROM {table} WHERE agent = ?", agent)
        self.run("DELETE FROM agent WHERE id = ?", agent)
        self.run("INSERT INTO forgotten (position) VALUES (?)", position)

    def purge_deleted_rows(self) -> None:
        """After a forgetting has been committed: let nothing linger in journals."""

    def run_maintenance(self) -> None:
        """Databases that need it do it themselves."""

    def find_last_forgetting(self) -> int:
        """The position of the last forgetting."""
        return int(self.row("SELECT coalesce(max(position), 0) FROM forgotten")[0])

    def save_snapshot_part(self, position: int, part: int, parts: int, body: bytes) -> None:
        """Keep one part of a snapshot."""
        self.run("DELETE FROM snapshot WHERE position = ? AND part = ?", position, part)
        statement = "INSERT INTO snapshot (position, part, parts, body) VALUES (?, ?, ?, ?)"
        self.run(statement, position, part, parts, body)

    def find_last_snapshot(self) -> int:
        """Where the latest snapshot is that is whole."""
        whole = "SELECT position FROM snapshot GROUP BY position, parts HAVING count(*) = parts"
        return int(self.row(f"SELECT coalesce(max(position), 0) FROM ({whole}) AS whole")[0])

    def load_snapshot(self) -> tuple[int, bytes] | None:
        """The latest snapshot that is whole."""
        position = self.find_last_snapshot()
        rows = self.rows("SELECT body FROM snapshot WHERE position = ? ORDER BY part", position)
        return (position, b"".join(bytes(row[0]) for row in rows)) if rows else None

    def delete_snapshot_part(self, *, before: int) -> bool:
        """Delete one part of an earlier snapshot: what is erased is overwritten, which takes as long as writing."""
        one = "(SELECT position, part FROM snapshot WHERE position < ? LIMIT 1)"
        return bool(self.run(f"DELETE FROM snapshot WHERE (position, part) IN {one}", before).rowcount == 1)

    def delete_snapshots(self, *, before: int) -> None:
        """Delete earlier snapshots."""
        self.run("DELETE FROM snapshot WHERE position < ?", before)

    def add_tokens(self, hashes: Iterable[bytes], expires: float) -> None:
        """Keep enrolment tokens."""
        for token_hash in hashes:
            self.run("INSERT INTO enrolment (token_hash, expires) VALUES (?, ?)", token_hash, expires)

    def use_token(self, token_hash: bytes, now: float) -> bool:
        """Strike out a token."""
        statement = "UPDATE enrolment SET used = ? WHERE token_hash = ? AND used IS NULL AND expires > ?"
        return bool(self.run(statement, now, token_hash, now).rowcount == 1)

    def add_agent(self, public_key: bytes, now: float) -> int:
        """Enrol a key."""
        self._looked_up.clear()
        added = self.row("INSERT INTO agent (public_key, enrolled) VALUES (?, ?) RETURNING id", public_key, now)
        return int(added[0])

    def find_identity(self, agent: int) -> Identity | None:
        """Who that is."""
        return _identity(self.row("SELECT id, public_key, revoked FROM agent WHERE id = ?", agent))

    def find_identity_by_key(self, public_key: bytes) -> Identity | None:
        """Whose key that is."""
        return _identity(self.row("SELECT id, public_key, revoked FROM agent WHERE public_key = ?", public_key))

    def revoke_agent(self, agent: int, now: float) -> bool:
        """Let an agent speak no more."""
        self._looked_up.clear()
        return bool(self.run("UPDATE agent SET revoked = coalesce(revoked, ?) WHERE id = ?", now, agent).rowcount == 1)

    def count_agents(self) -> int:
        """How many agents there are."""
        return int(self.row("SELECT count(*) FROM agent")[0])


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), TOGETHER):
        yield rows[start : start + TOGETHER]


def _row_of(entry: LogEntry) -> tuple[Any, ...]:
    upload = entry.upload
    statistics = upload.statistics
    counts = statistics.count, statistics.clicks, statistics.rounds
    return (
        entry.position,
        upload.agent,
        upload.sequence,
        upload.cause.value,
        *counts,
        packed(statistics),
        entry.nonce,
    )


def _entry_of(row: Sequence[Any]) -> LogEntry:
    position, agent, sequence, cause, count, clicks, rounds, numbers, nonce = row
    statistics = unpacked(numbers, (count, clicks, rounds), _dimension_of(len(numbers)))
    upload = Upload(agent=agent, sequence=sequence, cause=Cause(cause), statistics=statistics)
    return LogEntry(position=position, upload=upload, nonce=bytes(nonce))


@cache
def _dimension_of(size: int) -> int:
    """The dimension d of packed statistics of ``size`` bytes: d (d + 1) / 2 + d numbers of 8 bytes each."""
    return (math.isqrt(9 + size) - 3) // 2


def _identity(row: Sequence[Any] | None) -> Identity | None:
    return None if row is None else Identity(int(row[0]), bytes(row[1]), row[2] is not None)
