"""The SQL of the journal, which both stores share."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedcascade.service.store.journal import MINUTE, AgentTotals, ExchangeRecord, IntervalTotals, Measure, Move

TABLES = """
    CREATE TABLE journal (
        position {whole} PRIMARY KEY, at {whole} NOT NULL, agent {whole} NOT NULL, cause TEXT NOT NULL,
        rounds {whole} NOT NULL, count {whole} NOT NULL, clicks {whole} NOT NULL, clusters {whole} NOT NULL);
    INSERT INTO journal SELECT position, 0, agent, cause, rounds, count, clicks, 0 FROM upload;
    CREATE TABLE move (
        position {whole} NOT NULL, at {whole} NOT NULL, agent {whole} NOT NULL, cluster {whole} NOT NULL,
        PRIMARY KEY (agent, position));
    CREATE INDEX move_position ON move (position);
    CREATE TABLE refusal (
        minute {whole} NOT NULL, reason TEXT NOT NULL, count {whole} NOT NULL, PRIMARY KEY (minute, reason));
    CREATE TABLE measure (
        number {number}, at {whole} NOT NULL, series TEXT NOT NULL,
        round {whole} NOT NULL, regret {real} NOT NULL, reward {whole} NOT NULL)
    """
NOTED = "position, at, agent, cause, rounds, count, clicks, clusters"


class SqlJournal:
    """Narrow rows beside the log."""

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement whose values are marked by ``?``; the store does."""
        raise NotImplementedError

    def rows(self, statement: str, *values: Any) -> Any:
        """All rows."""
        return self.run(statement, *values).fetchall()

    def record_exchanges(self, after: int, at: int, clusters: int) -> None:
        """Copy every upload beyond a position; the database does it by itself."""
        self.run(
            f"INSERT INTO journal ({NOTED}) "
            "SELECT position, ?, agent, cause, rounds, count, clicks, ? FROM upload WHERE position > ?",
            at,
            clusters,
            after,
        )

    def record_moves(self, position: int, at: int, clusters: Iterable[tuple[int, int]]) -> None:
        """Note into which cluster agents were placed."""
        statement = (
            "INSERT INTO move (position, at, agent, cluster) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (agent, position) DO UPDATE SET cluster = excluded.cluster"
        )
        for agent, cluster in clusters:
            self.run(statement, position, at, agent, cluster)

    def find_head(self) -> int:
        """The last position that was noted or forgotten."""
        tables = ("journal", "forgotten")
        return max(int(self.rows(f"SELECT coalesce(max(position), 0) FROM {table}")[0][0]) for table in tables)

    def read_exchanges(self, after: int, upto: int) -> list[ExchangeRecord]:
        """The exchanges between two positions."""
        statement = f"SELECT {NOTED} FROM journal WHERE position > ? AND position <= ? ORDER BY position"
        return [ExchangeRecord(*row) for row in self.rows(statement, after, upto)]

    def read_moves(self, after: int, upto: int) -> list[Move]:
        """The moves between two positions."""
        statement = (
            "SELECT position, at, agent, cluster FROM move WHERE position > ? AND position <= ? ORDER BY position"
        )
        return [Move(*row) for row in self.rows(statement, after, upto)]

    def read_clusters(self, upto: int) -> dict[int, int]:
        """The latest move of every agent."""
        statement = (
            "SELECT move.agent, cluster FROM move JOIN (SELECT agent, max(position) AS position FROM move "
            "WHERE position <= ? GROUP BY agent) AS latest "
            "ON latest.agent = move.agent AND latest.position = move.position ORDER BY move.agent"
        )
        return dict(self.rows(statement, upto))

    def sum_by_agent(self, upto: int) -> list[AgentTotals]:
        """Sums per agent."""
        statement = (
            "SELECT agent, count(*), sum(rounds), sum(clicks), max(at) FROM journal WHERE position <= ? GROUP BY agent"
        )
        return [AgentTotals(*map(int, row)) for row in self.rows(statement, upto)]

    def find_time_range(self, upto: int) -> tuple[int, int]:
        """The first and the last time that is known."""
        statement = "SELECT coalesce(min(at), 0), coalesce(max(at), 0) FROM journal WHERE position <= ? AND at > 0"
        [(first, last)] = self.rows(statement, upto)
        return int(first), int(last)

    def sum_by_interval(self, upto: int, since: int, width: int) -> list[IntervalTotals]:
        """Sums per span and cause."""
        statement = (
            "SELECT (at - ?) / ?, cause, count(*), sum(rounds), sum(count), sum(clicks), max(clusters) "
            "FROM journal WHERE position <= ? AND at >= ? GROUP BY 1, 2 ORDER BY 1, 2"
        )
        found = self.rows(statement, since, width, upto, since)
        return [IntervalTotals(int(row[0]), row[1], *map(int, row[2:])) for row in found]

    def find_position_at(self, at: int) -> int:
        """The last position noted at or before a time."""
        found = self.rows("SELECT position FROM journal WHERE at <= ? ORDER BY position DESC LIMIT 1", at)
        return int(found[0][0]) if found else 0

    def record_refusals(self, at: int, reasons: Mapping[str, int]) -> None:
        """Add to the counts of a minute."""
        statement = (
            "INSERT INTO refusal (minute, reason, count) VALUES (?, ?, ?) "
            "ON CONFLICT (minute, reason) DO UPDATE SET count = refusal.count + excluded.count"
        )
        for reason, count in reasons.items():
            self.run(statement, at // MINUTE, reason, count)

    def count_refusals(self, until: int) -> dict[str, int]:
        """Sums per reason."""
        statement = "SELECT reason, sum(count) FROM refusal WHERE minute <= ? GROUP BY reason ORDER BY reason"
        return {reason: int(count) for reason, count in self.rows(statement, until // MINUTE)}

    def record_measures(self, at: int, measures: Iterable[tuple[str, int, float, int]]) -> None:
        """Keep what a simulation reports."""
        statement = "INSERT INTO measure (at, series, round, regret, reward) VALUES (?, ?, ?, ?, ?)"
        for series, round_, regret, reward in measures:
            self.run(statement, at, series, round_, regret, reward)

    def read_measures(self, after: int, until: int) -> list[Measure]:
        """What was reported."""
        statement = (
            "SELECT number, series, round, regret, reward FROM measure WHERE number > ? AND at <= ? ORDER BY number"
        )
        return [Measure(*row) for row in self.rows(statement, after, until)]

    def delete_measures(self) -> None:
        """Forget what earlier simulations reported."""
        self.run("DELETE FROM measure")
