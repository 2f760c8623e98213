"""The upload log in SQL. Uploads of a transaction are looked up together and written together."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.protocol.wire import pack_numbers, unpack_statistics
from fedcascade.service.store.contract import LogEntry, Revoked
from fedcascade.service.store.sql import SqlDatabase

COLUMNS = "position, agent, sequence, cause, count, clicks, rounds, numbers, nonce"
READ_ROWS = 512  # in one statement, where the whole log is read
STATEMENT_ROWS = 64  # written or looked up in one statement: each call to a database costs more than a row


class SqlUploadLog(SqlDatabase):
    """The log, with the uploads of the current transaction in memory until a statement needs them."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._unsent: dict[tuple[int, int], tuple[LogEntry, bytes]] = {}  # by agent and sequence number
        self._prefetched: dict[tuple[int, int], Sequence[Any]] = {}

    def append(self, entry: LogEntry, answer: bytes) -> None:
        """Hold an upload and its answer until the next statement, which sends all of them."""
        key = (entry.upload.agent, entry.upload.sequence)
        if key in self._unsent:
            self.flush()  # and the database will refuse this one
        self._unsent[key] = (entry, answer)

    def flush(self) -> None:
        if not self._unsent:
            return
        unsent, self._unsent = list(self._unsent.values()), {}
        for start in range(0, len(unsent), STATEMENT_ROWS):
            chunk = unsent[start : start + STATEMENT_ROWS]
            uploads = [value for entry, _ in chunk for value in _encode_entry(entry)]
            self.run(_build_insert("upload", COLUMNS, len(chunk)), *uploads)
            answers = [value for entry, answer in chunk for value in (entry.position, answer)]
            self.run(_build_insert("answer", "position, body", len(chunk)), *answers)

    def drop_buffers(self) -> None:
        self._unsent.clear()
        self._prefetched.clear()

    def read_entries(self, after: int) -> Iterator[LogEntry]:
        statement = f"SELECT {COLUMNS} FROM upload WHERE position > ? ORDER BY position LIMIT {READ_ROWS}"
        while rows := self.fetch_rows(statement, after):
            for row in rows:
                yield _decode_entry(row)
            if len(rows) < READ_ROWS:
                return
            after = rows[-1][0]

    def prefetch_entries(self, keys: Sequence[tuple[int, int]]) -> None:
        for start in range(0, len(keys), STATEMENT_ROWS):
            chunk = keys[start : start + STATEMENT_ROWS]
            values = (value for key in chunk for value in key)
            for agent, sequence, *row in self.fetch_rows(_build_lookup(len(chunk)), *values):
                self._prefetched[agent, sequence] = row

    def find_entry(self, agent: int, sequence: int) -> LogEntry | None:
        """Find an upload among those of this transaction, those prefetched, and those in the database."""
        key = (agent, sequence)
        if key in self._unsent:
            return self._unsent[key][0]
        if key not in self._prefetched:
            self.prefetch_entries([key])
        speaker, *row = self._prefetched.pop(key)
        if speaker is None:
            raise Revoked(agent)
        return None if row[0] is None else _decode_entry(row)

    def read_answer(self, position: int) -> bytes:
        return bytes(self.fetch_row("SELECT body FROM answer WHERE position = ?", position)[0])

    def find_last_sequence(self, agent: int) -> int:
        return int(self.fetch_row("SELECT coalesce(max(sequence), 0) FROM upload WHERE agent = ?", agent)[0])

    def count_uploads(self, agent: int) -> tuple[int, int]:
        row = self.fetch_row("SELECT count(*), coalesce(sum(rounds), 0) FROM upload WHERE agent = ?", agent)
        return int(row[0]), int(row[1])


@cache
def _build_insert(table: str, columns: str, rows: int) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES {_build_marks(rows, columns.count(',') + 1)}"


@cache
def _build_lookup(keys: int) -> str:
    """Build the query of some keys; a row is a key, its agent if that may speak, and its upload if there is one."""
    wanted = f"WITH wanted (asker, number) AS (VALUES {_build_marks(keys, 2)})"
    agents = "LEFT JOIN agent ON agent.id = asker AND revoked IS NULL"
    uploads = "LEFT JOIN upload ON upload.agent = asker AND sequence = number"
    return f"{wanted} SELECT asker, number, agent.id, {COLUMNS} FROM wanted {agents} {uploads}"


def _build_marks(rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)


def _encode_entry(entry: LogEntry) -> tuple[Any, ...]:
    upload, statistics = entry.upload, entry.upload.statistics
    counts = statistics.count, statistics.clicks, statistics.rounds
    key = entry.position, upload.agent, upload.sequence
    return (*key, upload.cause.value, *counts, pack_numbers(statistics), entry.nonce)


def _decode_entry(row: Sequence[Any]) -> LogEntry:
    position, agent, sequence, cause, count, clicks, rounds, numbers, nonce = row
    statistics = unpack_statistics(numbers, (count, clicks, rounds), _derive_dimension(len(numbers)))
    upload = Upload(agent=agent, sequence=sequence, cause=Cause(cause), statistics=statistics)
    return LogEntry(position=position, upload=upload, nonce=bytes(nonce))


@cache
def _derive_dimension(size: int) -> int:
    """Derive d from the bytes of packed statistics: d (d + 1) / 2 + d numbers of 8 bytes each."""
    return (math.isqrt(9 + size) - 3) // 2
