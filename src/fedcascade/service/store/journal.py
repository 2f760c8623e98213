"""The journal of a store, for pages: who exchanged when and why, who moved to which cluster, what was refused.

The log of uploads is the truth of the state; the journal is a narrow copy of what a page shows of it, with the time
and the clusters, so that any server on the store shows the same, now and for any moment before. Times are whole
milliseconds since 1970.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

MINUTE = 60_000


@dataclass(frozen=True)
class ExchangeRecord:
    """An exchange without its statistics; ``clusters`` is how many there were after its commit."""

    position: int
    at: int
    agent: int
    cause: str
    rounds: int
    count: int
    clicks: int
    clusters: int


@dataclass(frozen=True)
class Move:
    """An agent joined a cluster. The name of a cluster stays the same while most of its members do."""

    position: int
    at: int
    agent: int
    cluster: int


@dataclass(frozen=True)
class AgentTotals:
    """Sums over the exchanges of one agent, and the time of the last one."""

    agent: int
    uploads: int
    rounds: int
    clicks: int
    last: int


@dataclass(frozen=True)
class ClusterSizes:
    """How large clusters are: names and sizes of the largest ones, and of each size how many clusters have it."""

    largest: list[tuple[int, int]]
    histogram: list[tuple[int, int]]

    @property
    def clusters(self) -> int:
        return sum(times for _, times in self.histogram)

    @property
    def agents(self) -> int:
        return sum(size * times for size, times in self.histogram)


@dataclass(frozen=True)
class IntervalTotals:
    """Sums over the exchanges of one cause in one interval of time; ``clusters`` is the most there were.

    Intervals are numbered from 0.
    """

    number: int
    cause: str
    exchanges: int
    rounds: int
    count: int
    clicks: int
    clusters: int


@dataclass(frozen=True)
class Measure:
    """Regret and reward of a simulated run after a round, as whoever simulates the users reports them."""

    number: int
    series: str
    round: int
    regret: float
    reward: int


class Journal(Protocol):
    """The part of a store that is written beside the log, in the same transactions, and read by pages.

    ``after`` and ``upto`` are positions of the log, the first excluded and the last included; ``until`` is a time.
    """

    def record_exchanges(self, after: int, at: int, clusters: int) -> None:
        """Copy every upload of the log beyond a position into the journal."""

    def record_moves(self, position: int, at: int, clusters: Iterable[tuple[int, int]]) -> None:
        """Record which clusters agents joined: pairs of agent and cluster."""

    def find_head(self) -> int:
        """Find the last position of an exchange or a forgetting; 0 if there is none."""

    def read_exchanges(self, after: int, upto: int) -> list[ExchangeRecord]:
        """Read the exchanges between two positions."""

    def read_moves(self, after: int, upto: int) -> list[Move]:
        """Read the moves between two positions."""

    def read_clusters(self, upto: int) -> dict[int, int]:
        """Read the cluster of every agent at a position."""

    def has_more_agents(self, upto: int, than: int) -> bool:
        """Whether more than so many agents have joined a cluster up to a position."""

    def count_sizes(self, upto: int, most: int) -> ClusterSizes:
        """Count how many agents clusters have at a position; of the largest, at most so many are named."""

    def sample_last(self, upto: int, most: int) -> list[int]:
        """Find when some agents last exchanged up to a position: at most so many of those that joined a cluster.

        Numbers of agents are drawn at random, so that those with the smallest numbers are a fair sample.
        """

    def sum_by_agent(self, upto: int) -> list[AgentTotals]:
        """Sum the exchanges of every agent up to a position."""

    def find_time_range(self, upto: int) -> tuple[int, int]:
        """Find the times of the first and the last exchange up to a position; both 0 if there is none."""

    def sum_by_interval(self, upto: int, since: int, width: int) -> list[IntervalTotals]:
        """Sum the exchanges from the time ``since`` on, by intervals of ``width`` milliseconds and by cause."""

    def find_position_at(self, at: int) -> int:
        """Find the position of the last exchange at or before a time; 0 if there is none."""

    def record_refusals(self, at: int, reasons: Mapping[str, int]) -> None:
        """Add refused uploads, counted by reason, to those of that minute."""

    def count_refusals(self, until: int) -> dict[str, int]:
        """Count the uploads refused up to the minute of a time, by reason."""

    def record_measures(self, at: int, measures: Iterable[tuple[str, int, float, int]]) -> None:
        """Record what a simulation reports: series, round, regret and reward. Measures are numbered from 1 on."""

    def read_measures(self, after: int, until: int) -> list[Measure]:
        """Read the measures beyond a number, up to a time."""

    def delete_measures(self) -> None:
        """Delete what earlier simulations reported."""
