"""Groupings: whose statistics are pooled for whom.

A grouping is a frozen part of a policy; ``begin`` starts its state at one server. That state is always a
partition of the agents with the pooled statistics of each group, kept up to date upload by upload, so an
exchange never sums over all agents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.grouping.guard import NO_GUARD, measure_members, subtract_excess
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row
from fedcascade.federation.messages import Messages
from fedcascade.learning.statistics import Statistics

Labels = NDArray[np.int64]

STATE_FORMAT = 1


class Partition:
    """A partition of the agents: ``labels`` has the group of each, ``pools`` the summed statistics of each group."""

    state_names: ClassVar[tuple[str, ...]] = ("labels", "regrouped", "pools")  # the attributes that outlive a process
    knows_clusters: ClassVar[bool] = False  # whether a simulation tells it the true clusters

    def __init__(self, holdings: Holdings, labels: Labels) -> None:
        self.holdings = holdings
        self.labels = labels
        self.guard = NO_GUARD
        self.regrouped = np.zeros(labels.size, np.bool_)  # agents that have had no download since their group changed
        # All share one zero: statistics are values, and there may be a million groups.
        self.pools = dict.fromkeys(np.unique(labels).tolist(), Statistics.zero(holdings.dimension))

    def to_state(self) -> dict[str, Any]:
        """What outlives a process, as values and arrays that this partition goes on changing.

        The agents' statistics are not part of it: they are the state of the holdings.
        """
        state = {name: getattr(self, name) for name in self.state_names}
        return {"format": STATE_FORMAT, **state, "pools": dict(self.pools)}

    @staticmethod
    def from_state(grouping: "Grouping", holdings: Holdings, state: Mapping[str, Any]) -> "Partition":
        """The partition by ``grouping`` whose ``to_state`` gave ``state``; it may change the arrays of the state."""
        written = state["format"]
        require(written == STATE_FORMAT, f"the state of a partition must have format {STATE_FORMAT}, got {written}")
        partition = grouping.begin(holdings, state["labels"])
        partition.load_state(state)
        return partition

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_state`` gave."""
        for name in self.state_names:
            setattr(self, name, state[name])

    def __len__(self) -> int:
        return len(self.pools)

    def pooled(self, agent: int) -> Statistics:
        """The sum over the group of ``agent``."""
        return self.pools[int(self.labels[agent])]

    def count_members(self, agent: int) -> int:
        """Return how many agents share the group of ``agent``, itself included."""
        return int(np.count_nonzero(self.labels == self.labels[agent]))

    def answer(self, agent: int) -> Statistics:
        """Algorithm 3, lines 1 and 2: the statistics of a download for ``agent``, which are those of its group."""
        return self.sum_groups(agent, self.labels[agent : agent + 1])

    def prior_for_newcomer(self) -> Statistics | None:
        """What is known of a user who has said nothing, as statistics without counts; None where nothing is told."""
        return None

    def sum_groups(self, agent: int, groups: Labels) -> Statistics:
        """What ``agent`` is told of some groups, its own among them: their sum. Each label is named once.

        With a guard, of each other no more than a bounded weight, and nothing of others where they are too few to hide
        each of them.
        """
        total = self.pools[int(groups[0])]
        for label in groups[1:].tolist():
            total += self.pools[label]
        if self.guard is NO_GUARD:
            return total
        held = self.holdings
        others, median, heaviest = measure_members(agent, groups, self.labels, held.count)
        limit = float(self.guard.max_weight * 2.0**median)
        if others < self.guard.min_others:
            return held[agent]
        if heaviest <= limit:
            return total
        gram, moment = total.gram.copy(), total.moment.copy()
        fallen = subtract_excess(agent, groups, self.labels, limit, held.arrays, gram, moment)
        count, clicks, rounds = fallen.tolist()
        return Statistics(gram, moment, total.count - count, total.clicks - clicks, total.rounds - rounds)

    def add(self, agent: int, statistics: Statistics) -> None:
        """Add an upload to the sum of its group."""
        self.pools[int(self.labels[agent])] += statistics

    def revise(self, agent: int) -> None:
        """Change the partition after an upload of ``agent`` has been answered; a fixed grouping changes nothing."""

    def join(self) -> None:
        """Give a group to the newcomer that the holdings have just added, or refuse it."""
        self.append_agent(self.choose_label(self.labels.size))

    def restart(self, agent: int) -> None:
        """Let an agent whose data the holdings have just dropped go on as a newcomer, at the same place."""
        before, fresh = int(self.labels[agent]), self.choose_label(agent)
        self.labels[agent] = fresh
        for label in {before, fresh}:
            self.sum_group(label)

    def choose_label(self, agent: int) -> int:  # noqa: ARG002
        """Return the group of an agent that joins or restarts."""
        words = "does not say with whom a newcomer shares: agents cannot join late or start over"
        raise ValueError(f"{type(self).__name__} {words}")

    def take_crossings(self) -> Messages | None:
        """Return the messages between tiers of servers since the last call; None where there is one server."""
        return None

    def tell_cluster(self, agent: int, cluster: int) -> None:
        """Take the true cluster of an agent from its next restart on; ignored unless ``knows_clusters``."""

    def forget(self, agent: int) -> None:
        """Take out an agent that the holdings have just removed: its group is summed again over the others.

        As there, the last agent takes its place.
        """
        label = int(self.labels[agent])
        self.labels, self.regrouped = drop_row(self.labels, agent), drop_row(self.regrouped, agent)
        self.sum_group(label)

    def sum_group(self, label: int) -> None:
        """Sum a group over its members, so that coming and going leaves no rounding behind; drop it if it is empty."""
        members = np.flatnonzero(self.labels == label)
        if members.size:
            self.pools[label] = self.holdings.total(members)
        else:
            self.pools.pop(label, None)

    def find_unused_label(self) -> int:
        return next(label for label in range(len(self.pools) + 1) if label not in self.pools)

    def append_agent(self, label: int) -> None:
        """Put one more agent into the group of that label, which may be a new one."""
        self.labels, self.regrouped = append_zeros(self.labels), append_zeros(self.regrouped)
        self.labels[-1] = label
        self.pools.setdefault(label, Statistics.zero(self.holdings.dimension))

    def split(self, label: int, parts: Sequence[NDArray[np.intp]]) -> None:
        """Replace one group by several; the first part keeps its label."""
        fresh = max(self.pools) + 1
        for members, own_label in zip(parts, [label, *range(fresh, fresh + len(parts) - 1)], strict=True):
            self.labels[members] = own_label
            self.regrouped[members] = True
            self.pools[own_label] = self.holdings.total(members)

    def regroup(self, parts: Sequence[NDArray[np.intp]]) -> None:
        """Replace all groups; agents whose group has other members than before count as regrouped."""
        before = self.labels.copy()
        self.pools = {}
        for label, members in enumerate(parts):
            self.labels[members] = label
            self.regrouped[members] |= not np.array_equal(members, np.flatnonzero(before == before[members[0]]))
            self.pools[label] = self.holdings.total(members)


class SharedPartition(Partition):
    """One group for all agents."""

    def choose_label(self, agent: int) -> int:  # noqa: ARG002
        return 0


class SeparatePartition(Partition):
    """A group for each agent."""

    def choose_label(self, agent: int) -> int:  # noqa: ARG002
        return self.find_unused_label()


class KnownPartition(Partition):
    """The true clusters; where they change, the simulation first sets the new one of an agent."""

    knows_clusters = True

    def __init__(self, holdings: Holdings, labels: Labels) -> None:
        super().__init__(holdings, labels)
        self._told: dict[int, int] = {}

    def take_crossings(self) -> Messages | None:
        """Return the messages between tiers of servers since the last call; None where there is one server."""
        return None

    def tell_cluster(self, agent: int, cluster: int) -> None:
        self._told[agent] = cluster

    def choose_label(self, agent: int) -> int:
        if agent == self.labels.size:
            return super().choose_label(agent)
        return self._told.pop(agent, int(self.labels[agent]))


class Grouping(Protocol):
    """A part of a policy that says who shares with whom."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:
        """The partition before the first upload; ``truth`` is known in simulations only."""


@dataclass(frozen=True)
class Everyone:
    """All agents share, always."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return SharedPartition(holdings, np.zeros(len(holdings), np.int64))


@dataclass(frozen=True)
class Alone:
    """Nobody shares."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return SeparatePartition(holdings, np.arange(len(holdings), dtype=np.int64))


@dataclass(frozen=True)
class KnownClusters:
    """The true clusters, which no real system knows: a yardstick."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:
        require(truth is not None, "known-clusters needs the true clusters: it is a yardstick for simulations")
        labels = np.array(truth, np.int64)
        require(labels.shape == (len(holdings),), f"the truth must name {len(holdings)} clusters, got {labels.shape}")
        return KnownPartition(holdings, labels)


def relabel_by_appearance(labels: Labels) -> tuple[Labels, Labels]:
    """Labels in the order in which they first appear, and for each agent where its label is among them.

    >>> [array.tolist() for array in relabel_by_appearance(np.array([7, 3, 7]))]
    [[7, 3], [0, 1, 0]]
    """
    distinct, first, positions = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return distinct[order], np.argsort(order)[positions]
