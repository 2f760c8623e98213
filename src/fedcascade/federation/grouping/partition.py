"""Groupings: which agents share their statistics.

A grouping is a frozen part of a policy; ``begin`` creates its state at one server. That state is a partition of the
agents with the pooled statistics of each group. Pools are updated upload by upload, so an exchange never sums over all
agents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.federation.holdings import HeldArrays, Holdings, Restorable, append_zeros, drop_row, require_alike
from fedcascade.federation.messages import Messages
from fedcascade.federation.sharing import UNLIMITED
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit, jit_brief, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

Labels = NDArray[np.int64]


@jit_inline
def _measure_bits(count: int) -> int:
    """Return the bit length of a positive integer, read from the exponent of its float64."""
    return int(np.float64(count).view(np.int64) >> 52) - 1022


@jit_inline
def _is_among(groups: Labels, label: int) -> bool:
    is_among = False
    for group in groups:
        is_among |= group == label
    return is_among


@jit_brief
def measure_members(agent: int, groups: Labels, labels: Labels, counts: Labels) -> tuple[int, int, int]:
    """Measure the agents with data in some groups.

    Return the number of agents other than ``agent``, the bit length of the median count, and the largest other count.
    """
    sizes = np.zeros(64, np.int64)
    members = others = heaviest = 0
    for member in range(labels.size):
        count = counts[member]
        if count > 0 and _is_among(groups, labels[member]):
            sizes[_measure_bits(count)] += 1
            members += 1
            if member != agent:
                others += 1
                heaviest = max(heaviest, count)
    median, smaller = 1, sizes[1]
    while 2 * smaller < members:
        median += 1
        smaller += sizes[median]
    return others, median, heaviest


@jit
def subtract_excess(
    agent: int, groups: Labels, labels: Labels, limit: float, held: HeldArrays, gram: Matrix, moment: Vector
) -> Vector:
    """Scale other agents of some groups down to ``limit`` observations, in the sums of these groups.

    Return the decrease of counts, clicks, rounds and shortfalls.
    """
    fallen = np.zeros(4)
    for member in range(labels.size):
        count = held.observations[member]
        if count > limit and member != agent and _is_among(groups, labels[member]):
            share = 1.0 - limit / count
            moment -= share * held.moment[member]
            gram -= share * held.gram[member]
            fallen[0] += int(share * count)
            fallen[1] += int(share * held.clicks[member])
            fallen[2] += int(share * held.rounds[member])
            fallen[3] += share * held.shortfall[member]
    return fallen


class Partition(Restorable):
    """A partition of the agents: ``labels`` has the group of each, ``pools`` the summed statistics of each group."""

    state_label = "groups"
    state_names: ClassVar[tuple[str, ...]] = ("labels", "regrouped", "pools")
    free_names: ClassVar[tuple[str, ...]] = ("pools",)
    knows_clusters: ClassVar[bool] = False  # a simulation sets the true clusters

    def __init__(self, holdings: Holdings, labels: Labels) -> None:
        self.holdings = holdings
        self.labels = labels
        self.guard = UNLIMITED
        self.regrouped = np.zeros(labels.size, np.bool_)  # no download since the agent's group changed
        # One zero for all: statistics are values, and there may be a million groups.
        self.pools = dict.fromkeys(np.unique(labels).tolist(), Statistics.zero(holdings.dimension))

    def to_state(self) -> dict[str, Any]:
        return super().to_state() | {"pools": dict(self.pools)}

    def check_state(self) -> None:
        """Raise ValueError if restored attributes contradict each other."""
        self.check_sums("pools", self.pools, np.unique(self.labels))

    def check_sums(self, name: str, sums: Mapping[int, Statistics], keys: Labels) -> None:
        """Raise ValueError unless there are valid sums for these keys, and for no other."""
        require(sorted(sums) == keys.tolist(), f"groups.{name} must have a sum for each group")
        zero = Statistics.zero(self.holdings.dimension)
        for each in sums.values():
            require_alike(f"groups.{name}", each, zero)
            Ridge(each, self.holdings.lambda_)

    def __len__(self) -> int:
        return len(self.pools)

    def pooled(self, agent: int) -> Statistics:
        """Return the sum over the group of ``agent``."""
        return self.pools[int(self.labels[agent])]

    def count_members(self, agent: int) -> int:
        """Count the agents in the group of ``agent``, itself included."""
        return int(np.count_nonzero(self.labels == self.labels[agent]))

    def answer(self, agent: int) -> Statistics:
        """Return the statistics of a download: those of the agent's group (Algorithm 3, lines 1 and 2)."""
        return self.sum_groups(agent, self.labels[agent : agent + 1])

    def prior_for_newcomer(self) -> Statistics | None:
        """Return the prior of a user without data, as statistics without counts; None if the grouping has none."""
        return None

    def sum_groups(self, agent: int, groups: Labels) -> Statistics:
        """Sum distinct groups, the agent's own among them, for an answer to ``agent``.

        A guard limits the weight of each other agent, and excludes all of them if they are too few.
        """
        total = self.pools[int(groups[0])]
        for label in groups[1:].tolist():
            total += self.pools[label]
        if self.guard is UNLIMITED:
            return total
        held = self.holdings
        others, median, heaviest = measure_members(agent, groups, self.labels, held.count)
        if others < self.guard.min_others:
            return held[agent]
        limit = self.guard.compute_limit(median, others)
        if heaviest <= limit:
            return total
        gram, moment = total.gram.copy(), total.moment.copy()
        fallen = subtract_excess(agent, groups, self.labels, limit, held.arrays, gram, moment)
        count, clicks, rounds = map(int, fallen[:3])
        counts = total.count - count, total.clicks - clicks, total.rounds - rounds
        return Statistics(gram, moment, *counts, total.shortfall - float(fallen[3]))

    def add(self, agent: int, statistics: Statistics) -> None:
        """Add an upload to the sum of its group."""
        self.pools[int(self.labels[agent])] += statistics

    def revise(self, agent: int) -> None:
        """Update the partition after an upload of ``agent`` has been answered; fixed groupings do nothing."""

    def join(self) -> None:
        """Assign a group to the agent that the holdings have just added, or reject it."""
        self.append_agent(self.choose_label(self.labels.size))

    def restart(self, agent: int) -> None:
        """Treat an agent that the holdings have just cleared as a newcomer."""
        before, fresh = int(self.labels[agent]), self.choose_label(agent)
        self.labels[agent] = fresh
        for label in {before, fresh}:
            self.sum_group(label)

    def choose_label(self, agent: int) -> int:  # noqa: ARG002
        """Return the group of an agent that joins or restarts."""
        raise ValueError(f"{type(self).__name__} has no group for new agents: they cannot join late or start over")

    def take_tier_messages(self) -> Messages | None:
        """Return the messages between tiers of servers since the last call; None if there is one server."""
        return None

    def set_true_cluster(self, agent: int, cluster: int) -> None:
        """Set the true cluster of an agent, from its next restart on; ignored unless ``knows_clusters``."""

    def forget(self, agent: int) -> None:
        """Remove an agent that the holdings have just removed; the last agent takes its place."""
        label = int(self.labels[agent])
        self.labels, self.regrouped = drop_row(self.labels, agent), drop_row(self.regrouped, agent)
        self.sum_group(label)

    def sum_group(self, label: int) -> None:
        """Recompute the sum of a group from its members, without rounding from earlier ones; drop it if empty."""
        members = np.flatnonzero(self.labels == label)
        if members.size:
            self.pools[label] = self.holdings.total(members)
        else:
            self.pools.pop(label, None)

    def find_unused_label(self) -> int:
        return next(label for label in range(len(self.pools) + 1) if label not in self.pools)

    def append_agent(self, label: int) -> None:
        """Append an agent to a group, which may be new."""
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
        """Replace all groups; agents whose group changes are marked as regrouped."""
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
    """The true clusters of a simulation."""

    knows_clusters = True

    def __init__(self, holdings: Holdings, labels: Labels) -> None:
        super().__init__(holdings, labels)
        self._next_clusters: dict[int, int] = {}

    def set_true_cluster(self, agent: int, cluster: int) -> None:
        self._next_clusters[agent] = cluster

    def choose_label(self, agent: int) -> int:
        if agent == self.labels.size:
            return super().choose_label(agent)
        return self._next_clusters.pop(agent, int(self.labels[agent]))


class Grouping(Protocol):
    """A part of a policy that decides which agents share."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:
        """Return the partition before the first upload; ``truth`` is known in simulations only."""


@dataclass(frozen=True)
class Everyone:
    """One group for all agents."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return SharedPartition(holdings, np.zeros(len(holdings), np.int64))


@dataclass(frozen=True)
class Alone:
    """A group for each agent: no sharing."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return SeparatePartition(holdings, np.arange(len(holdings), dtype=np.int64))


@dataclass(frozen=True)
class KnownClusters:
    """The true clusters, an upper baseline for simulations."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:
        require(truth is not None, "known-clusters needs the true clusters: it runs in simulations only")
        labels = np.array(truth, np.int64)
        shape = (len(holdings),)
        require(labels.shape == shape, f"the true clusters must have shape {shape}, got {labels.shape}")
        return KnownPartition(holdings, labels)


def relabel_by_appearance(labels: Labels) -> tuple[Labels, Labels]:
    """Return the labels in order of first appearance, and the index of each agent's label in that order.

    >>> [array.tolist() for array in relabel_by_appearance(np.array([7, 3, 7]))]
    [[7, 3], [0, 1, 0]]
    """
    distinct, first, positions = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return distinct[order], np.argsort(order)[positions]


def relabel_canonically(labels: ArrayLike) -> tuple[int, ...]:
    """Rename labels in order of first appearance, so that equal partitions are equal tuples.

    >>> relabel_canonically([7, 3, 7])
    (0, 1, 0)
    """
    return tuple(relabel_by_appearance(np.asarray(labels))[1].tolist())
