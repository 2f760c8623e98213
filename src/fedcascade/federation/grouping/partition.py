"""Groupings: whose statistics are pooled for whom.

A grouping is a frozen part of a policy; ``begin`` starts its state at one server. That state is always a
partition of the agents with the pooled statistics of each group, kept up to date upload by upload, so an
exchange never sums over all agents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.holdings import Holdings
from fedcascade.learning.statistics import Statistics

Labels = NDArray[np.int64]


STATE_FORMAT = 1


class Partition:
    """A partition of the agents: a label for each, and the pooled statistics of each label."""

    def __init__(self, holdings: Holdings, labels: Labels) -> None:
        self.holdings = holdings
        self.labels = labels
        self.regrouped = np.zeros(labels.size, np.bool_)  # agents that have not been told of their new group
        self._pooled = {int(label): Statistics.zero(holdings.dimension) for label in np.unique(labels)}

    def to_state(self) -> dict[str, Any]:
        """What outlives a process, as values and arrays that this partition goes on changing.

        The agents' statistics are not part of it: they are the state of the holdings.
        """
        return {
            "format": STATE_FORMAT,
            "labels": self.labels,
            "regrouped": self.regrouped,
            "pooled": dict(self._pooled),
        }

    @staticmethod
    def from_state(grouping: "Grouping", holdings: Holdings, state: Mapping[str, Any]) -> "Partition":
        """The partition by ``grouping`` whose ``to_state`` gave ``state``; it may change the arrays of the state."""
        written = state["format"]
        require(written == STATE_FORMAT, f"the state of a partition must have format {STATE_FORMAT}, got {written}")
        partition = grouping.begin(holdings, state["labels"])
        partition.load_state(state)
        return partition

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_state`` gave; a subclass that adds to the state overrides both."""
        self.labels, self.regrouped, self._pooled = state["labels"], state["regrouped"], dict(state["pooled"])

    def __len__(self) -> int:
        return len(self._pooled)

    def pooled(self, agent: int) -> Statistics:
        """The sum over the group of ``agent``."""
        return self._pooled[int(self.labels[agent])]

    def answer(self, agent: int) -> Statistics:
        """Algorithm 3, lines 1 and 2: what ``agent`` is told, which is what its group knows."""
        return self.pooled(agent)

    def add(self, agent: int, statistics: Statistics) -> None:
        """Take an upload into the sum of its group."""
        self._pooled[int(self.labels[agent])] += statistics

    def set_pooled(self, label: int, statistics: Statistics) -> None:
        """Replace the sum of a group, by an engine that has added it up elsewhere."""
        self._pooled[label] = statistics

    def revise(self, agent: int) -> None:
        """Look at the partition again after an upload of ``agent``; a fixed grouping does nothing."""

    def join(self) -> None:
        """Place the newcomer that the holdings have just made room for; a grouping that cannot say where refuses."""
        raise ValueError(f"{type(self).__name__} does not say with whom a newcomer shares: agents cannot join late")

    def forget(self, agent: int) -> None:
        """Take out an agent that the holdings have just removed: its group is summed anew over who is left."""
        label = int(self.labels[agent])
        self.labels = np.delete(self.labels, agent)
        self.regrouped = np.delete(self.regrouped, agent)
        self._sum_up(label)

    def _sum_up(self, label: int) -> None:
        """Sum a group anew, so that coming and going leaves no rounding behind; an empty one goes."""
        members = np.flatnonzero(self.labels == label)
        if members.size:
            self._pooled[label] = self.holdings.total(members)
        else:
            self._pooled.pop(label, None)

    def _unused(self) -> int:
        """A label that no group has."""
        return next(label for label in range(len(self._pooled) + 1) if label not in self._pooled)

    def place(self, label: int) -> None:
        """Give the newcomer a label, which may be a new one."""
        self.labels = np.append(self.labels, label)
        self.regrouped = np.append(self.regrouped, False)
        self._pooled.setdefault(label, Statistics.zero(self.holdings.dimension))

    def split(self, label: int, parts: Sequence[NDArray[np.intp]]) -> None:
        """Replace one group by several; the first part keeps its label."""
        fresh = max(self._pooled) + 1
        for part, name in zip(parts, [label, *range(fresh, fresh + len(parts) - 1)], strict=True):
            self.labels[part] = name
            self.regrouped[part] = True
            self._pooled[name] = self.holdings.total(part)

    def regroup(self, parts: Sequence[NDArray[np.intp]]) -> None:
        """Replace all groups."""
        before = self.labels.copy()
        self._pooled = {}
        for label, part in enumerate(parts):
            self.labels[part] = label
            self.regrouped[part] |= not np.array_equal(part, np.flatnonzero(before == before[part[0]]))
            self._pooled[label] = self.holdings.total(part)


class Shared(Partition):
    """One group for all."""

    def join(self) -> None:
        """Into the group."""
        self.place(0)


class Apart(Partition):
    """A group for each."""

    def join(self) -> None:
        """Into a new group."""
        self.place(self._unused())


class Grouping(Protocol):
    """A part of a policy that says who shares with whom."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:
        """The partition before the first upload. ``truth`` is there in simulations only."""


@dataclass(frozen=True)
class Everyone:
    """All agents share, always."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        """One group."""
        return Shared(holdings, np.zeros(len(holdings), np.int64))


@dataclass(frozen=True)
class Alone:
    """Nobody shares."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        """A group for each agent."""
        return Apart(holdings, np.arange(len(holdings), dtype=np.int64))


@dataclass(frozen=True)
class KnownClusters:
    """The true clusters, which no real system knows: a yardstick."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:
        """The truth."""
        require(truth is not None, "known-clusters needs the true clusters: it is a yardstick for simulations")
        labels = np.array(truth, np.int64)
        require(labels.shape == (len(holdings),), f"the truth must name {len(holdings)} clusters, got {labels.shape}")
        return Partition(holdings, labels)


def relabel_by_appearance(labels: Labels) -> tuple[Labels, Labels]:
    """Labels in the order in which they first appear, and for each agent where its label is among them.

    >>> [found.tolist() for found in relabel_by_appearance(np.array([7, 3, 7]))]
    [[7, 3], [0, 1, 0]]
    """
    names, first, places = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return names[order], np.argsort(order)[places]
