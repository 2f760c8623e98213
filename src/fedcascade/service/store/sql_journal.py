"""The journal in SQL: narrow rows beside the log, which both stores share."""

from collections.abc import Iterable, Mapping

from fedcascade.service.store.journal import (
    MINUTE,
    AgentTotals,
    ClusterSizes,
    ExchangeRecord,
    IntervalTotals,
    Measure,
    Move,
)
from fedcascade.service.store.sql import SqlDatabase

COLUMNS = "position, at, agent, cause, rounds, count, clicks, clusters"
MOVE_COLUMNS = "position, at, agent, cluster"
LAST_MOVES = (  # of each agent up to a position
    "move JOIN (SELECT agent, max(position) AS position FROM move WHERE position <= ? GROUP BY agent) AS latest "
    "USING (agent, position)"
)
STATEMENT_ROWS = 64  # moves that are written in one statement


class SqlJournal(SqlDatabase):
    """The tables journal, move, refusal and measure."""

    def record_exchanges(self, after: int, at: int, clusters: int) -> None:
        copied = "SELECT position, ?, agent, cause, rounds, count, clicks, ? FROM upload WHERE position > ?"
        self.run(f"INSERT INTO journal ({COLUMNS}) {copied}", at, clusters, after)

    def record_moves(self, position: int, at: int, clusters: Iterable[tuple[int, int]]) -> None:
        """Insert moves of different agents; a later one at the same position replaces an agent's earlier one."""
        replace = "ON CONFLICT (agent, position) DO UPDATE SET cluster = excluded.cluster"
        pairs = list(clusters)
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

    def find_head(self) -> int:
        tables = ("journal", "event")
        return max(int(self.fetch_row(f"SELECT coalesce(max(position), 0) FROM {table}")[0]) for table in tables)

    def read_exchanges(self, after: int, upto: int) -> list[ExchangeRecord]:
        statement = f"SELECT {COLUMNS} FROM journal WHERE position > ? AND position <= ? ORDER BY position"
        return [ExchangeRecord(*row) for row in self.fetch_rows(statement, after, upto)]

    def read_moves(self, after: int, upto: int) -> list[Move]:
        statement = f"SELECT {MOVE_COLUMNS} FROM move WHERE position > ? AND position <= ? ORDER BY position"
        return [Move(*row) for row in self.fetch_rows(statement, after, upto)]

    def read_clusters(self, upto: int) -> dict[int, int]:
        return dict(self.fetch_rows(f"SELECT agent, cluster FROM {LAST_MOVES} ORDER BY agent", upto))

    def has_more_agents(self, upto: int, than: int) -> bool:
        some = "SELECT DISTINCT agent FROM move WHERE position <= ? LIMIT ?"
        return bool(self.fetch_row(f"SELECT count(*) FROM ({some}) AS few", upto, than + 1)[0] > than)

    def count_sizes(self, upto: int, most: int) -> ClusterSizes:
        """Count in the database: there may be a million agents, each in a cluster of its own."""
        sizes = f"WITH sizes AS (SELECT cluster, count(*) AS size FROM {LAST_MOVES} GROUP BY cluster)"
        largest = f"SELECT cluster, size FROM sizes ORDER BY size DESC, cluster LIMIT {int(most)}"
        named = f"SELECT 1 AS kind, cluster, size FROM ({largest}) AS largest"
        counted = "SELECT 2 AS kind, size, count(*) FROM sizes GROUP BY size"
        rows = [tuple(map(int, row)) for row in self.fetch_rows(f"{sizes} {named} UNION ALL {counted}", upto)]
        pairs = sorted((-size, cluster) for kind, cluster, size in rows if kind == 1)
        histogram = sorted((size, times) for kind, size, times in rows if kind == 2)
        return ClusterSizes([(cluster, -size) for size, cluster in pairs], histogram)

    def sample_last(self, upto: int, most: int) -> list[int]:
        some = "SELECT DISTINCT agent FROM move WHERE position <= ? ORDER BY agent LIMIT ?"
        largest = self.fetch_row(f"SELECT coalesce(max(agent), 0) FROM ({some}) AS few", upto, most)[0]
        statement = "SELECT max(at) FROM journal WHERE position <= ? AND agent <= ? GROUP BY agent"
        return [int(at) for [at] in self.fetch_rows(statement, upto, int(largest))]

    def sum_by_agent(self, upto: int) -> list[AgentTotals]:
        totals = "agent, sum(exchanges), sum(rounds), sum(clicks), max(at)"
        rows = self.fetch_rows(f"SELECT {totals} FROM journal WHERE position <= ? GROUP BY agent", upto)
        return [AgentTotals(*map(int, row)) for row in rows]

    def find_time_range(self, upto: int) -> tuple[int, int]:
        statement = "SELECT coalesce(min(at), 0), coalesce(max(at), 0) FROM journal WHERE position <= ?"
        first, last = self.fetch_row(statement, upto)
        return int(first), int(last)

    def sum_by_interval(self, upto: int, since: int, width: int) -> list[IntervalTotals]:
        """Sum exchanges in the order of intervals and causes; intervals without any are left out."""
        totals = "(at - ?) / ?, cause, sum(exchanges), sum(rounds), sum(count), sum(clicks), max(clusters)"
        statement = f"SELECT {totals} FROM journal WHERE position <= ? AND at >= ? GROUP BY 1, 2 ORDER BY 1, 2"
        rows = self.fetch_rows(statement, since, width, upto, since)
        return [IntervalTotals(int(number), cause, *map(int, sums)) for number, cause, *sums in rows]

    def find_position_at(self, at: int) -> int:
        row = self.fetch_row("SELECT position FROM journal WHERE at <= ? ORDER BY position DESC LIMIT 1", at)
        return 0 if row is None else int(row[0])

    def record_refusals(self, at: int, reasons: Mapping[str, int]) -> None:
        insert = "INSERT INTO refusal (minute, reason, count) VALUES (?, ?, ?)"
        add = "ON CONFLICT (minute, reason) DO UPDATE SET count = refusal.count + excluded.count"
        for reason, count in reasons.items():
            self.run(f"{insert} {add}", at // MINUTE, reason, count)

    def count_refusals(self, until: int) -> dict[str, int]:
        statement = "SELECT reason, sum(count) FROM refusal WHERE minute <= ? GROUP BY reason ORDER BY reason"
        return {reason: int(count) for reason, count in self.fetch_rows(statement, until // MINUTE)}

    def record_measures(self, at: int, measures: Iterable[tuple[str, int, float, int]]) -> None:
        statement = "INSERT INTO measure (at, series, round, regret, reward) VALUES (?, ?, ?, ?, ?)"
        for series, round_, regret, reward in measures:
            self.run(statement, at, series, round_, regret, reward)

    def read_measures(self, after: int, until: int) -> list[Measure]:
        columns = "number, series, round, regret, reward"
        statement = f"SELECT {columns} FROM measure WHERE number > ? AND at <= ? ORDER BY number"
        return [Measure(*row) for row in self.fetch_rows(statement, after, until)]

    def delete_measures(self) -> None:
        """Delete all measures; the numbers go on from where they were."""
        self.run("DELETE FROM measure")
