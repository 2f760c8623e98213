"""The upload log in SQL. Uploads of a transaction are looked up together and written together."""

import math
import os
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any

from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.protocol.wire import pack_numbers, unpack_statistics
from fedcascade.service.store.chain import (
    GENESIS,
    SALT_BYTES,
    ChainCheck,
    DamagedStore,
    digest_event,
    digest_upload,
    extend_link,
    unpack_retention,
)
from fedcascade.service.store.contract import Folded, LogEntry, Revoked
from fedcascade.service.store.sql import SqlDatabase

COLUMNS = "position, agent, sequence, cause, count, clicks, rounds, numbers, nonce"
SEALED_COLUMNS = f"{COLUMNS}, uploads, salt"  # what a digest covers
READ_ROWS = 512  # in one statement, where the whole log is read
STATEMENT_ROWS = 64  # written or looked up in one statement: each call to a database costs more than a row
FORGOTTEN, RETAINED = "forgotten", "retained"
CHAIN_MIGRATION = 2


class SqlUploadLog(SqlDatabase):
    """The log, with the uploads of the current transaction in memory until a statement needs them."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._unsent: dict[tuple[int, int], LogEntry] = {}  # by agent and sequence number
        self._prefetched: dict[tuple[int, int], Sequence[Any]] = {}
        self._last_link: tuple[int, bytes] | None = None  # with its position

    def append(self, entry: LogEntry) -> None:
        """Hold an upload until the next statement, which sends all of them."""
        key = (entry.upload.agent, entry.upload.sequence)
        if key in self._unsent:
            self.flush()  # and the database will refuse this one
        self._unsent[key] = entry

    def flush(self) -> None:
        if not self._unsent:
            return
        unsent, self._unsent = list(self._unsent.values()), {}
        link = self.read_link(unsent[0].position - 1)
        rows, salts = [], os.urandom(SALT_BYTES * len(unsent))
        for number, entry in enumerate(unsent):
            row = (*_encode_entry(entry), 1, salts[SALT_BYTES * number : SALT_BYTES * (number + 1)])
            link = extend_link(link, entry.position, digest_upload(row))
            rows.append((*row, link))
        for start in range(0, len(rows), STATEMENT_ROWS):
            chunk = rows[start : start + STATEMENT_ROWS]
            self.run(_build_insert("upload", f"{SEALED_COLUMNS}, link", len(chunk)), *chain.from_iterable(chunk))
        self._last_link = unsent[-1].position, link

    def drop_buffers(self) -> None:
        self._unsent.clear()
        self._prefetched.clear()

    def drop_caches(self) -> None:
        self._last_link = None

    def read_link(self, position: int) -> bytes:
        """Read the link of the chain at a position; that of the last entry written here needs no statement."""
        if self._last_link is not None and self._last_link[0] == position:
            return self._last_link[1]
        horizon, anchor = self.read_anchor()
        if position == horizon:
            return anchor
        links = "SELECT link FROM upload WHERE position = ? UNION ALL SELECT link FROM event WHERE position = ?"
        row = self.fetch_row(links, position, position)
        if row is None or row[0] is None:
            raise DamagedStore(f"entry {position} of the log is missing")
        return bytes(row[0])

    def remember_link(self, position: int) -> None:
        """Read the link at a position, and keep it until the next entry is appended."""
        self._last_link = position, self.read_link(position)

    def read_anchor(self) -> tuple[int, bytes]:
        """Read where the chain begins: the horizon of the last retention and the link there."""
        statement = "SELECT body FROM event WHERE kind = ? ORDER BY position DESC LIMIT 1"
        row = self.fetch_row(statement, RETAINED)
        return (0, GENESIS) if row is None else unpack_retention(bytes(row[0]))

    def append_event(self, position: int, kind: str, body: bytes = b"") -> None:
        """Append what is no upload, and link it."""
        link = extend_link(self.read_link(position - 1), position, digest_event(kind, body))
        statement = "INSERT INTO event (position, kind, body, link) VALUES (?, ?, ?, ?)"
        self.run(statement, position, kind, body, link)
        self._last_link = position, link

    def erase_uploads(self, agent: int) -> None:
        """Delete an agent's uploads with their salts; the digests stay in the chain."""
        for row in self.fetch_rows(f"SELECT {SEALED_COLUMNS} FROM upload WHERE agent = ?", agent):
            self.run("INSERT INTO erased (position, digest) VALUES (?, ?)", row[0], digest_upload(row))
        self.run("DELETE FROM upload WHERE agent = ?", agent)

    def read_entries(self, after: int) -> Iterator[LogEntry]:
        return self.follow_entries(after)

    def follow_entries(self, after: int, check: ChainCheck | None = None) -> Iterator[LogEntry]:
        """Read the log beyond a position, and check that each entry is the one that was linked."""
        statement = f"SELECT {SEALED_COLUMNS}, link FROM upload WHERE position > ? ORDER BY position LIMIT {READ_ROWS}"
        while rows := self.fetch_rows(statement, after):
            if check is None:
                horizon, anchor = self.read_anchor()
                check = ChainCheck(horizon, anchor) if after <= horizon else ChainCheck(after, self.read_link(after))
            for *row, link in rows:
                digest = digest_upload(row)
                if row[0] <= check.begin:
                    _require_sealed(row[0], digest, bytes(link))
                else:
                    if row[0] != check.position + 1:
                        self.follow_marks(check, row[0] - 1)
                    check.advance(row[0], digest, link)
                yield _decode_entry(row[:-2])
            if len(rows) < READ_ROWS:
                return
            after = rows[-1][0]

    def follow_marks(self, check: ChainCheck, upto: int = 2**62) -> None:
        """Check what comes next in the chain and is no upload: events, and the digests of what was erased."""
        between = "WHERE position > ? AND position <= ? ORDER BY position"
        erased = self.fetch_rows(f"SELECT position, digest FROM erased {between}", check.position, upto)
        events = self.fetch_rows(f"SELECT position, kind, body, link FROM event {between}", check.position, upto)
        marks: list[tuple[int, bytes, bytes | None]] = [(position, bytes(digest), None) for position, digest in erased]
        marks += [(position, digest_event(kind, bytes(body)), link) for position, kind, body, link in events]
        for position, digest, link in sorted(marks, key=itemgetter(0)):
            check.advance(position, digest, link)

    def convert(self, migration: int) -> None:
        """Link the entries of a store that had no chain; where a forgotten upload was, an empty digest stands."""
        if migration != CHAIN_MIGRATION:
            return
        forgotten = {row[0] for row in self.fetch_rows("SELECT position FROM event")}
        head = self.fetch_row("SELECT max(position) FROM upload")[0] or 0
        link = GENESIS
        for position in range(1, max(head, *forgotten, 0) + 1):
            row = self.fetch_row(f"SELECT {COLUMNS}, uploads FROM upload WHERE position = ?", position)
            salt = os.urandom(SALT_BYTES)
            digest = digest_event(FORGOTTEN, b"") if position in forgotten else b""
            digest = digest if row is None else digest_upload((*row, salt))
            link = extend_link(link, position, digest)
            self.run("UPDATE upload SET salt = ?, link = ? WHERE position = ?", salt, link, position)
            self.run("UPDATE event SET body = ?, link = ? WHERE position = ?", b"", link, position)
            if row is None and position not in forgotten:
                self.run("INSERT INTO erased (position, digest) VALUES (?, ?)", position, digest)

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
            return self._unsent[key]
        if key not in self._prefetched:
            self.prefetch_entries([key])
        folded, *row = self._prefetched.pop(key)
        if folded is None:
            raise Revoked(agent)
        if sequence <= folded:
            raise Folded(agent, sequence)
        return None if row[0] is None else _decode_entry(row)

    def find_last_sequence(self, agent: int) -> int:
        return int(self.fetch_row("SELECT coalesce(max(sequence), 0) FROM upload WHERE agent = ?", agent)[0])

    def find_last_change(self, agent: int) -> int:
        statement = "SELECT coalesce(max(sequence), 0) FROM upload WHERE agent = ? AND cause = ?"
        return int(self.fetch_row(statement, agent, Cause.CHANGE.value)[0])

    def count_uploads(self, agent: int) -> tuple[int, int]:
        sums = "coalesce(sum(uploads), 0), coalesce(sum(rounds), 0)"
        row = self.fetch_row(f"SELECT {sums} FROM upload WHERE agent = ?", agent)
        return int(row[0]), int(row[1])


@cache
def _build_insert(table: str, columns: str, rows: int) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES {_build_marks(rows, columns.count(',') + 1)}"


@cache
def _build_lookup(keys: int) -> str:
    """Build the query of some keys; a row is a key, the agent's ``folded`` if it may speak, and its upload or NULLs."""
    wanted = f"WITH wanted (asker, number) AS (VALUES {_build_marks(keys, 2)})"
    agents = "LEFT JOIN agent ON agent.id = asker AND revoked IS NULL"
    uploads = "LEFT JOIN upload ON upload.agent = asker AND sequence = number"
    return f"{wanted} SELECT asker, number, folded, {COLUMNS} FROM wanted {agents} {uploads}"


def _build_marks(rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)


def _require_sealed(position: int, digest: bytes, seal: bytes) -> None:
    """Check a folded upload, which has its digest in the place of a link."""
    if digest != seal:
        raise DamagedStore(f"the folded entry {position} of the log is not the one that was written")


def _encode_entry(entry: LogEntry) -> tuple[Any, ...]:
    upload, statistics = entry.upload, entry.upload.statistics
    counts = statistics.count, statistics.clicks, statistics.rounds
    key = entry.position, upload.agent, upload.sequence
    return (*key, upload.cause.value, *counts, entry.numbers or pack_numbers(statistics), entry.nonce)


def _decode_entry(row: Sequence[Any]) -> LogEntry:
    position, agent, sequence, cause, count, clicks, rounds, numbers, nonce = row
    statistics = unpack_statistics(numbers, (count, clicks, rounds), _derive_dimension(len(numbers)))
    upload = Upload(agent=agent, sequence=sequence, cause=Cause(cause), statistics=statistics)
    return LogEntry(position=position, upload=upload, nonce=bytes(nonce))


@cache
def _derive_dimension(size: int) -> int:
    """Derive d from the bytes of packed statistics: d (d + 1) / 2 + d numbers of 8 bytes each."""
    return (math.isqrt(9 + size) - 3) // 2
