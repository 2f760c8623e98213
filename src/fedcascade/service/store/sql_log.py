"""The upload log and its journal in SQL. A transaction looks up and writes uploads in bulk."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol.wire import pack_numbers, unpack_statistics
from fedcascade.service.store.chain import (
    GENESIS,
    SALT_BYTES,
    ChainCheck,
    DamagedStore,
    digest_event,
    digest_upload,
    extend_link,
    pack_retention,
    unpack_retention,
)
from fedcascade.service.store.contract import (
    AgentTotals,
    Changes,
    ClusterSizes,
    ExchangeRecord,
    Folded,
    Head,
    IntervalTotals,
    LogEntry,
    Move,
    Revoked,
    UploadTotals,
)
from fedcascade.service.store.sql import SqlDatabase

COLUMNS = "position, agent, sequence, cause, count, clicks, rounds, numbers, nonce"
JOURNAL_COLUMNS = "position, at, agent, cause, rounds, count, clicks, clusters"
MOVE_COLUMNS = "position, at, agent, cluster"
ALL_AGENTS = 2**62  # larger than any agent's number
LAST_MOVES = (  # of each agent up to a position and up to an agent number
    "move JOIN (SELECT agent, max(position) AS position FROM move WHERE position <= ? AND agent <= ? GROUP BY agent)"
    " AS latest USING (agent, position)"
)
SEALED_COLUMNS = f"{COLUMNS}, uploads, salt"  # the columns that a digest covers
READ_ROWS = 512  # rows per statement that reads the log
STATEMENT_ROWS = 64  # rows written or looked up per statement: a call costs more than a row
FORGOTTEN, RETAINED = "forgotten", "retained"
LAST_RETENTION = "SELECT body FROM event WHERE kind = ? ORDER BY position DESC LIMIT 1"
Row = Sequence[Any]  # of SEALED_COLUMNS
CAUSE, NUMBERS, UPLOADS = 3, 7, 9  # indices of columns in a row


class SqlJournal(SqlDatabase):
    """The tables journal and move."""

    def record_batch(self, after: int, at: int, clusters: int, moves: Iterable[tuple[int, int]]) -> None:
        copied = "SELECT position, ?, agent, cause, rounds, count, clicks, ? FROM upload WHERE position > ?"
        self.run(f"INSERT INTO journal ({JOURNAL_COLUMNS}) {copied}", at, clusters, after)
        pairs = list(moves)
        if not pairs:
            return
        position = self.find_head().position
        replace = "ON CONFLICT (agent, position) DO UPDATE SET cluster = excluded.cluster"
        for start in range(0, len(pairs), STATEMENT_ROWS):
            some = pairs[start : start + STATEMENT_ROWS]
            values = (value for agent, cluster in some for value in (position, at, agent, cluster))
            self.run(f"{_build_insert('move', MOVE_COLUMNS, len(some))} {replace}", *values)

    def fold_journal(self, horizon: int) -> None:
        """Fold the rows of each agent and cause up to a position into one, and keep the last move of each agent."""
        sums = (
            "max(position), max(at), agent, cause, sum(rounds), sum(count), sum(clicks), max(clusters), sum(exchanges)"
        )
        rows = self.fetch_rows(f"SELECT {sums} FROM journal WHERE position <= ? GROUP BY agent, cause", horizon)
        self.run("DELETE FROM journal WHERE position <= ?", horizon)
        insert = f"INSERT INTO journal ({JOURNAL_COLUMNS}, exchanges) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        for position, at, agent, cause, *totals in rows:
            self.run(insert, position, at, agent, cause, *map(int, totals))
        later = "SELECT 1 FROM move AS later WHERE later.agent = move.agent AND later.position > move.position"
        self.run(f"DELETE FROM move WHERE position <= ? AND EXISTS ({later} AND later.position <= ?)", horizon, horizon)

    def find_head(self, at: int | None = None) -> Head:
        exchanged = "SELECT position FROM journal ORDER BY position DESC LIMIT 1"
        if at is not None:
            exchanged = "SELECT position FROM journal WHERE at <= ? ORDER BY position DESC LIMIT 1"
        statement = f"SELECT coalesce(({exchanged}), 0), (SELECT coalesce(max(position), 0) FROM event)"
        position, rewritten = map(int, self.fetch_row(statement, *([] if at is None else [at])))
        return Head(max(position, rewritten) if at is None else position, rewritten)

    def read_changes(self, after: int, upto: int) -> Changes:
        between = "WHERE position > ? AND position <= ? ORDER BY position"
        exchanges = self.fetch_rows(f"SELECT {JOURNAL_COLUMNS} FROM journal {between}", after, upto)
        moves = self.fetch_rows(f"SELECT {MOVE_COLUMNS} FROM move {between}", after, upto)
        return Changes([ExchangeRecord(*row) for row in exchanges], [Move(*row) for row in moves])

    def count_sizes(self, upto: int, most: int) -> ClusterSizes:
        """Count in the database, because there may be a million clusters."""
        sizes = f"WITH sizes AS (SELECT cluster, count(*) AS size FROM {LAST_MOVES} GROUP BY cluster)"
        largest = f"SELECT cluster, size FROM sizes ORDER BY size DESC, cluster LIMIT {int(most)}"
        named = f"SELECT 1 AS kind, cluster, size FROM ({largest}) AS largest"
        counted = "SELECT 2 AS kind, size, count(*) FROM sizes GROUP BY size"
        rows = [
            tuple(map(int, row)) for row in self.fetch_rows(f"{sizes} {named} UNION ALL {counted}", upto, ALL_AGENTS)
        ]
        pairs = sorted((-size, cluster) for kind, cluster, size in rows if kind == 1)
        histogram = sorted((size, times) for kind, size, times in rows if kind == 2)
        return ClusterSizes([(cluster, -size) for size, cluster in pairs], histogram)

    def sum_by_agent(self, upto: int, most: int | None = None) -> list[AgentTotals]:
        largest = ALL_AGENTS
        if most is not None:
            some = "SELECT DISTINCT agent FROM move WHERE position <= ? ORDER BY agent LIMIT ?"
            largest = int(self.fetch_row(f"SELECT coalesce(max(agent), 0) FROM ({some}) AS few", upto, most)[0])
        totals = "agent, sum(exchanges) AS uploads, sum(rounds) AS rounds, sum(clicks) AS clicks, max(at) AS last"
        sums = f"SELECT {totals} FROM journal WHERE position <= ? AND agent <= ? GROUP BY agent"
        clusters = f"SELECT agent, cluster FROM {LAST_MOVES}"
        joined = f"({sums}) AS sums LEFT JOIN ({clusters}) AS clusters USING (agent)"
        columns = "agent, uploads, rounds, clicks, last, coalesce(cluster, 0)"
        rows = self.fetch_rows(f"SELECT {columns} FROM {joined} ORDER BY agent", upto, largest, upto, largest)
        return [AgentTotals(*map(int, row)) for row in rows]

    def sum_by_interval(self, upto: int, since: int, width: int) -> list[IntervalTotals]:
        """Sum exchanges by interval and cause, in order; empty intervals are left out."""
        totals = "sum(exchanges), sum(rounds), sum(count), sum(clicks), max(clusters), min(at), max(at)"
        where = "WHERE position <= ? AND at >= ? GROUP BY 1, 2 ORDER BY 1, 2"
        statement = f"SELECT (at - ?) / ?, cause, {totals} FROM journal {where}"
        rows = self.fetch_rows(statement, since, width, upto, since)
        return [IntervalTotals(int(number), cause, *map(int, sums)) for number, cause, *sums in rows]


class SqlUploadLog(SqlJournal):
    """The log; uploads of the current transaction are held in memory until the next statement."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._unsent: dict[tuple[int, int], Row] = {}  # without salts, by agent and sequence number
        self._prefetched: dict[tuple[int, int], Sequence[Any]] = {}
        self._last_link: tuple[int, bytes] | None = None  # with its position

    def append(self, position: int, upload: Upload, nonce: bytes = b"", numbers: bytes = b"") -> None:
        """Hold an upload until the next statement sends all of them."""
        key, sent = (upload.agent, upload.sequence), upload.statistics
        if key in self._unsent:
            self.flush()  # so that the database refuses this one
        counts = sent.count, sent.clicks, sent.rounds
        self._unsent[key] = (position, *key, upload.cause.value, *counts, numbers or pack_numbers(sent), nonce)

    def flush(self) -> None:
        if not self._unsent:
            return
        unsent, self._unsent = list(self._unsent.values()), {}
        link = self.read_link(unsent[0][0] - 1)
        rows, salts = [], os.urandom(SALT_BYTES * len(unsent))
        for number, entry in enumerate(unsent):
            row = (*entry, 1, salts[SALT_BYTES * number : SALT_BYTES * (number + 1)])
            link = extend_link(link, entry[0], digest_upload(row))
            rows.append((*row, link))
        for start in range(0, len(rows), STATEMENT_ROWS):
            chunk = rows[start : start + STATEMENT_ROWS]
            self.run(_build_insert("upload", f"{SEALED_COLUMNS}, link", len(chunk)), *chain.from_iterable(chunk))
        self._last_link = unsent[-1][0], link

    def drop_buffers(self) -> None:
        self._unsent.clear()
        self._prefetched.clear()

    def drop_caches(self) -> None:
        super().drop_caches()
        self._last_link = None

    def read_link(self, position: int) -> bytes:
        """Read the link of the chain at a position; the last one is cached."""
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

    def read_anchor(self) -> tuple[int, bytes]:
        """Read the start of the chain: the horizon of the last retention and the link there."""
        row = self.fetch_row(LAST_RETENTION, RETAINED)
        return (0, GENESIS) if row is None else unpack_retention(bytes(row[0]))

    def append_event(self, position: int, kind: str, body: bytes = b"") -> None:
        link = extend_link(self.read_link(position - 1), position, digest_event(kind, body))
        statement = "INSERT INTO event (position, kind, body, link) VALUES (?, ?, ?, ?)"
        self.run(statement, position, kind, body, link)
        self._last_link = position, link

    def erase_uploads(self, agent: int) -> None:
        """Delete an agent's uploads with their salts; their digests stay in the chain."""
        for row in self.fetch_rows(f"SELECT {SEALED_COLUMNS} FROM upload WHERE agent = ?", agent):
            self.run("INSERT INTO erased (position, digest) VALUES (?, ?)", row[0], digest_upload(row))
        self.run("DELETE FROM upload WHERE agent = ?", agent)

    def read_entries(self, after: int, check: ChainCheck | None = None) -> Iterator[LogEntry]:
        """Read the log beyond a position, and check the chain."""
        statement = f"SELECT {SEALED_COLUMNS}, link FROM upload WHERE position > ? ORDER BY position LIMIT {READ_ROWS}"
        while rows := self.fetch_rows(statement, after):
            if check is None:
                horizon, anchor = self.read_anchor()
                check = ChainCheck(horizon, anchor) if after <= horizon else ChainCheck(after, self.read_link(after))
            for *row, link in rows:
                digest = digest_upload(row)
                if row[0] <= check.begin:
                    if digest != bytes(link):  # the link of a folded upload is its digest
                        raise DamagedStore(f"the folded entry {row[0]} of the log is not the one that was written")
                else:
                    if row[0] != check.position + 1:
                        self.follow_marks(check, row[0] - 1)
                    check.advance(row[0], digest, link)
                yield _decode_entry(row[:-2])
            if len(rows) < READ_ROWS:
                return
            after = rows[-1][0]

    def follow_marks(self, check: ChainCheck, upto: int = 2**62) -> None:
        """Check the next events and erased entries of the chain."""
        between = "WHERE position > ? AND position <= ? ORDER BY position"
        erased = self.fetch_rows(f"SELECT position, digest FROM erased {between}", check.position, upto)
        events = self.fetch_rows(f"SELECT position, kind, body, link FROM event {between}", check.position, upto)
        marks: list[tuple[int, bytes, bytes | None]] = [(position, bytes(digest), None) for position, digest in erased]
        marks += [(position, digest_event(kind, bytes(body)), link) for position, kind, body, link in events]
        for position, digest, link in sorted(marks, key=itemgetter(0)):
            check.advance(position, digest, link)

    def prefetch(self, wanted: Sequence[tuple[int, int]]) -> None:
        for start in range(0, len(wanted), STATEMENT_ROWS):
            chunk = wanted[start : start + STATEMENT_ROWS]
            values = (value for key in chunk for value in key)
            for agent, sequence, *row in self.fetch_rows(_build_lookup(len(chunk)), *values):
                self._prefetched[agent, sequence] = row

    def find_entry(self, agent: int, sequence: int) -> LogEntry | None:
        """Find an upload in this transaction, among the prefetched ones, or in the database."""
        key = (agent, sequence)
        if key in self._unsent:
            return _decode_entry(self._unsent[key])
        if key not in self._prefetched:
            self.prefetch([key])
        folded, *row = self._prefetched.pop(key)
        if folded is None:
            raise Revoked(agent)
        if sequence <= folded:
            raise Folded(agent, sequence)
        return None if row[0] is None else _decode_entry(row)

    def sum_uploads(self, agent: int) -> UploadTotals:
        sums = "coalesce(sum(uploads), 0), coalesce(sum(rounds), 0), coalesce(max(sequence), 0)"
        change = "coalesce(max(CASE WHEN cause = ? THEN sequence END), 0)"
        row = self.fetch_row(f"SELECT {sums}, {change} FROM upload WHERE agent = ?", Cause.CHANGE.value, agent)
        return UploadTotals(*map(int, row))

    def fold_uploads(self, before: int, position: int, least: int, most: int) -> tuple[int, int]:
        """Find old uploads by the times in the journal, and fold all but the last of each agent."""
        old = "SELECT position FROM journal WHERE at < ? AND position > ? ORDER BY position LIMIT ?"
        statement = f"SELECT coalesce(max(position), 0), count(*) FROM ({old}) AS old"
        horizon, uploads = map(int, self.fetch_row(statement, before, self.read_anchor()[0], most))
        if uploads > least:
            self._fold_upto(horizon, position)
        return horizon, uploads

    def _fold_upto(self, horizon: int, position: int) -> None:
        """Fold all but the last upload of each agent, and start the chain at the horizon."""
        anchor, earlier = self.read_link(horizon), self.read_anchor()[0]
        self._last_link = position - 1, self.read_link(position - 1)  # its row may be folded
        last = dict(self.fetch_rows("SELECT agent, max(position) FROM upload GROUP BY agent"))
        statement = f"SELECT {SEALED_COLUMNS} FROM upload WHERE position <= ? ORDER BY agent, position"
        rows = groupby(self.fetch_rows(statement, horizon), itemgetter(1))
        left = [row for agent, group in rows for row in self._fold(group, last[agent], earlier)]
        sealed = [(row[0], digest_upload(row)) for row in left]
        for table in ("erased", "event"):
            self.run(f"DELETE FROM {table} WHERE position <= ?", horizon)
        self.append_event(position, RETAINED, pack_retention(horizon, anchor, sorted(sealed)))
        self.fold_journal(horizon)
        self.drop_buffers()

    def _fold(self, group: Iterator[Row], last: int, earlier: int) -> list[Row]:
        """Fold the old uploads of one agent; return the remaining rows."""
        rows = list(group)
        folded = [row for row in rows if row[0] != last]
        left = [*([fold_rows(folded)] if folded else []), *rows[len(folded) :]]
        if len(folded) == 1 and folded[0][0] <= earlier:
            left[0] = folded[0]  # folded before, and unchanged
        for row in folded[:-1]:
            self.run("DELETE FROM upload WHERE position = ?", row[0])
        for row in left:
            columns = "cause = ?, count = ?, clicks = ?, rounds = ?, numbers = ?, uploads = ?, salt = ?, link = ?"
            values = *row[3:8], *row[9:], digest_upload(row)
            self.run(f"UPDATE upload SET {columns} WHERE position = ?", *values, row[0])
            if row[UPLOADS] > 1:
                self.run("UPDATE agent SET folded = ? WHERE id = ?", row[2], row[1])
        return left

    def verify_log(self, noted: tuple[int, bytes] | None) -> tuple[int, bytes]:
        """Check the whole chain and the journal; return the last position and its link."""
        horizon, anchor = self.read_anchor()
        folded = f"the log was folded up to position {horizon}, beyond the noted one: note the new position and link"
        require(noted is None or noted[0] > horizon, folded)
        check = ChainCheck(horizon, anchor, noted)
        for _ in self.read_entries(0, check):
            pass
        self.follow_marks(check)
        if noted is not None and noted[0] > check.position:
            raise DamagedStore(f"the log ends at position {check.position}, before the one that was noted")
        self._verify_folded(horizon, anchor)
        self._verify_journal(horizon, check.position)
        return check.position, check.link

    def _verify_folded(self, horizon: int, anchor: bytes) -> None:
        rows = (
            "SELECT position, link FROM upload WHERE position <= ? UNION ALL SELECT * FROM erased WHERE position <= ?"
        )
        sealed = sorted((row[0], bytes(row[1])) for row in self.fetch_rows(rows, horizon, horizon))
        written = self.fetch_row(LAST_RETENTION, RETAINED)
        if written is not None and bytes(written[0]) != pack_retention(horizon, anchor, sealed):
            raise DamagedStore(f"the folded entries up to position {horizon} are not those that were written")

    def _verify_journal(self, horizon: int, head: int) -> None:
        names = ("agent", "cause", "rounds", "count", "clicks")
        differs = " OR ".join(f"journal.{name} <> upload.{name}" for name in names)
        joined = "journal LEFT JOIN upload ON upload.position = journal.position"
        where = f"journal.position > ? AND (upload.position IS NULL OR {differs})"
        row = self.fetch_row(f"SELECT min(journal.position) FROM {joined} WHERE {where}", horizon)
        if row[0] is not None:
            raise DamagedStore(f"the journal and the log differ at position {row[0]}, and the log ends at {head}")


def fold_rows(rows: Sequence[Row]) -> Row:
    """Fold rows of one agent into one with exact sums, a new salt, and the other columns of the last row.

    Rows before the last one with the cause ``CHANGE`` are left out, and the result has that cause.
    """
    position, agent, sequence, cause, *_, nonce, _, _ = rows[-1]
    changes = [place for place, row in enumerate(rows) if row[CAUSE] == Cause.CHANGE]
    summed = rows[changes[-1] :] if changes else rows
    first, *others = (unpack_row(bytes(row[NUMBERS]), *row[4:7]) for row in summed)
    total = sum(others, first)
    counts, numbers = (total.count, total.clicks, total.rounds), pack_numbers(total)
    uploads, salt = sum(row[UPLOADS] for row in rows), os.urandom(SALT_BYTES)
    word = Cause.CHANGE.value if changes else cause
    return (position, agent, sequence, word, *counts, numbers, bytes(nonce), uploads, salt)


@cache
def _build_insert(table: str, columns: str, rows: int) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES {_build_marks(rows, columns.count(',') + 1)}"


@cache
def _build_lookup(keys: int) -> str:
    """Build the query of some keys; a row is a key, ``folded`` of an active agent or NULL, and its upload or NULLs."""
    wanted = f"WITH wanted (asker, number) AS (VALUES {_build_marks(keys, 2)})"
    agents = "LEFT JOIN agent ON agent.id = asker AND revoked IS NULL"
    uploads = "LEFT JOIN upload ON upload.agent = asker AND sequence = number"
    return f"{wanted} SELECT asker, number, folded, {COLUMNS} FROM wanted {agents} {uploads}"


def _build_marks(rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)


def _decode_entry(row: Sequence[Any]) -> LogEntry:
    position, agent, sequence, cause, count, clicks, rounds, numbers, nonce = row
    statistics = unpack_row(numbers, count, clicks, rounds)
    upload = Upload(agent=agent, sequence=sequence, cause=Cause(cause), statistics=statistics)
    return LogEntry(position=position, upload=upload, nonce=bytes(nonce))


def unpack_row(numbers: bytes, count: int, clicks: int, rounds: int) -> Statistics:
    """Return the statistics in the columns of an upload."""
    return unpack_statistics(numbers, (count, clicks, rounds), _derive_dimension(len(numbers)))


@cache
def _derive_dimension(size: int) -> int:
    """Derive d from the size of packed statistics: d (d + 1) / 2 + d numbers of 8 bytes each, and maybe one more."""
    return (math.isqrt(9 + size) - 3) // 2
