"""The journal in SQL: narrow rows beside the log, which both stores share."""

from collections.abc import Iterable

from fedcascade.service.store.contract import (
    AgentTotals,
    Changes,
    ClusterSizes,
    ExchangeRecord,
    Head,
    IntervalTotals,
    Move,
)
from fedcascade.service.store.sql import SqlDatabase

COLUMNS = "position, at, agent, cause, rounds, count, clicks, clusters"
MOVE_COLUMNS = "position, at, agent, cluster"
ALL_AGENTS = 2**62  # larger than any agent's number
LAST_MOVES = (  # of each agent up to a position and up to a number
    "move JOIN (SELECT agent, max(position) AS position FROM move WHERE position <= ? AND agent <= ? GROUP BY agent)"
    " AS latest USING (agent, position)"
)
STATEMENT_ROWS = 64  # moves that are written in one statement


class SqlJournal(SqlDatabase):
    """The tables journal and move."""

    def record_batch(self, after: int, at: int, clusters: int, moves: Iterable[tuple[int, int]]) -> None:
        copied = "SELECT position, ?, agent, cause, rounds, count, clicks, ? FROM upload WHERE position > ?"
        self.run(f"INSERT INTO journal ({COLUMNS}) {copied}", at, clusters, after)
        pairs = list(moves)
        if not pairs:
            return
        position = self.find_head().position
        replace = "ON CONFLICT (agent, position) DO UPDATE SET cluster = excluded.cluster"
        for start in range(0, len(pairs), STATEMENT_ROWS):
            some = pairs[start : start + STATEMENT_ROWS]
            rows = ", ".join(["(?, ?, ?, ?)"] * len(some))
            values = (value for agent, cluster in some for value in (position, at, agent, cluster))
            self.run(f"INSERT INTO move ({MOVE_COLUMNS}) VALUES {rows} {replace}", *values)

    def fold_journal(self, horizon: int) -> None:
        """Fold the rows of each agent and cause up to a position into one, and keep the last move of each agent."""
        sums = (
            "max(position), max(at), agent, cause, sum(rounds), sum(count), sum(clicks), max(clusters), sum(exchanges)"
        )
        rows = self.fetch_rows(f"SELECT {sums} FROM journal WHERE position <= ? GROUP BY agent, cause", horizon)
        self.run("DELETE FROM journal WHERE position <= ?", horizon)
        insert = f"INSERT INTO journal ({COLUMNS}, exchanges) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
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
        exchanges = self.fetch_rows(f"SELECT {COLUMNS} FROM journal {between}", after, upto)
        moves = self.fetch_rows(f"SELECT {MOVE_COLUMNS} FROM move {between}", after, upto)
        return Changes([ExchangeRecord(*row) for row in exchanges], [Move(*row) for row in moves])

    def count_sizes(self, upto: int, most: int) -> ClusterSizes:
        """Count in the database: there may be a million agents, each in a cluster of its own."""
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
        """Sum exchanges in the order of intervals and causes; intervals without any are left out."""
        totals = "sum(exchanges), sum(rounds), sum(count), sum(clicks), max(clusters), min(at), max(at)"
        where = "WHERE position <= ? AND at >= ? GROUP BY 1, 2 ORDER BY 1, 2"
        statement = f"SELECT (at - ?) / ?, cause, {totals} FROM journal {where}"
        rows = self.fetch_rows(statement, since, width, upto, since)
        return [IntervalTotals(int(number), cause, *map(int, sums)) for number, cause, *sums in rows]
