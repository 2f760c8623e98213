"""What a store keeps for those who watch: who exchanged when and why, who moved to which cluster, what was refused.

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
    """One exchange, without what was learned in it; ``clusters`` is how many there were after its commit."""

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
    """An agent was placed in a cluster. The name of a cluster stays the same while most of its members do."""

    position: int
    at: int
    agent: int
    cluster: int


@dataclass(frozen=True)
class AgentTotals:
    """The exchanges of one agent."""

    agent: int
    uploads: int
    rounds: int
    clicks: int
    last: int


@dataclass(frozen=True)
class IntervalTotals:
    """The exchanges of one cause in a span of time: the number of the span, and sums."""

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
    """The part of a store that is written beside the log, in the same transactions, and read by pages."""

    def record_exchanges(self, after: int, at: int, clusters: int) -> None:
        """Copy every upload of the log beyond a position."""

    def record_moves(self, position: int, at: int, clusters: Iterable[tuple[int, int]]) -> None:
        """Note into which cluster agents were placed."""

    def find_head(self) -> int:
        """The last position that was noted or forgotten; 0 if there is none."""

    def read_exchanges(self, after: int, upto: int) -> list[ExchangeRecord]:
        """The exchanges between two positions, the first excluded."""

    def read_moves(self, after: int, upto: int) -> list[Move]:
        """The moves between two positions, the first excluded."""

    def read_clusters(self, upto: int) -> dict[int, int]:
        """The cluster of every agent at a position."""

    def sum_by_agent(self, upto: int) -> list[AgentTotals]:
        """The exchanges of every agent up to a position."""

    def find_time_range(self, upto: int) -> tuple[int, int]:
        """The times of the first and the last exchange up to a position; both 0 if there is none."""

    def sum_by_interval(self, upto: int, since: int, width: int) -> list[IntervalTotals]:
        """The exchanges from a time on, summed over spans of ``width`` milliseconds."""

    def find_position_at(self, at: int) -> int:
        """The last position noted at or before a time."""

    def record_refusals(self, at: int, reasons: Mapping[str, int]) -> None:
        """Add refused uploads to those of that minute."""

    def count_refusals(self, until: int) -> dict[str, int]:
        """How many uploads were refused up to a time, by reason."""

    def record_measures(self, at: int, measures: Iterable[tuple[str, int, float, int]]) -> None:
        """Keep what a simulation reports: series, round, regret, reward."""

    def read_measures(self, after: int, until: int) -> list[Measure]:
        """What was reported beyond a number, up to a time."""

    def delete_measures(self) -> None:
        """Forget what earlier simulations reported."""
