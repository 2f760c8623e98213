"""Groupings: whose statistics are pooled for whom.

A grouping is a frozen part of a policy; ``begin`` starts its state at one server. That state is always a
partition of the agents with the pooled statistics of each group, kept up to date upload by upload, so an
exchange never sums over all agents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import positive, require, whole
from fedcascade.federation.holdings import Holdings
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

Labels = NDArray[np.int64]


class Groups:
    """A partition of the agents: a label for each, and the pooled statistics of each label."""

    def __init__(self, holdings: Holdings, labels: Labels) -> None:
        self.holdings = holdings
        self.labels = labels
        self.regrouped = np.zeros(labels.size, np.bool_)  # agents that have not been told of their new group
        self._pooled = {int(label): Statistics.zero(holdings.dimension) for label in np.unique(labels)}

    def __len__(self) -> int:
        return len(self._pooled)

    def pooled(self, agent: int) -> Statistics:
        """Algorithm 3, lines 1 and 2: the sum over the group of ``agent``."""
        return self._pooled[int(self.labels[agent])]

    def add(self, agent: int, statistics: Statistics) -> None:
        """Take an upload into the sum of its group."""
        self._pooled[int(self.labels[agent])] += statistics

    def set_pooled(self, label: int, statistics: Statistics) -> None:
        """Replace the sum of a group, by an engine that has added it up elsewhere."""
        self._pooled[label] = statistics

    def revise(self, agent: int) -> None:
        """Look at the partition again after an upload of ``agent``; a fixed grouping does nothing."""

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


class Grouping(Protocol):
    """A part of a policy that says who shares with whom."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Groups:
        """The partition before the first upload. ``truth`` is there in simulations only."""


@dataclass(frozen=True)
class Everyone:
    """All agents share, always."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Groups:  # noqa: ARG002
        """One group."""
        return Groups(holdings, np.zeros(len(holdings), np.int64))


@dataclass(frozen=True)
class Alone:
    """Nobody shares."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Groups:  # noqa: ARG002
        """A group for each agent."""
        return Groups(holdings, np.arange(len(holdings), dtype=np.int64))


@dataclass(frozen=True)
class KnownClusters:
    """The true clusters, which no real system knows: a yardstick."""

    def begin(self, holdings: Holdings, truth: Labels | None) -> Groups:
        """The truth."""
        require(truth is not None, "known-clusters needs the true clusters: it is a yardstick for simulations")
        labels = np.array(truth, np.int64)
        require(labels.shape == (len(holdings),), f"the truth must name {len(holdings)} clusters, got {labels.shape}")
        return Groups(holdings, labels)


@dataclass(frozen=True, kw_only=True)
class HeterogeneityGraph:
    """Connected components of a graph that starts complete and loses the edges that the data refute."""

    alpha_d: float = 7.0

    def __post_init__(self) -> None:
        positive("alpha_d", self.alpha_d)

    def begin(self, holdings: Holdings, truth: Labels | None) -> Groups:  # noqa: ARG002
        """The complete graph: one component."""
        return Components(holdings, self.alpha_d, ~np.eye(len(holdings), dtype=np.bool_))


class Components(Groups):
    """The state of a heterogeneity graph: edges, and the partition into connected components."""

    def __init__(self, holdings: Holdings, alpha_d: float, edges: NDArray[np.bool_]) -> None:
        super().__init__(holdings, np.zeros(len(holdings), np.int64))
        self.alpha_d = alpha_d
        self.edges = edges

    def revise(self, agent: int) -> None:
        """Algorithm 3, lines 5 to 13: delete the refuted edges of ``agent``; search only where one went."""
        if not self.delete_refuted(agent):
            return
        label = int(self.labels[agent])
        parts = components(self.edges, np.flatnonzero(self.labels == label))
        if len(parts) > 1:
            self.split(label, parts)

    def delete_refuted(self, agent: int) -> bool:
        """Lines 5 to 13, the edges alone; returns whether one went."""
        refuted = self._refuted(agent)
        self.edges[agent, refuted] = self.edges[refuted, agent] = False
        return refuted.size > 0

    def _refuted(self, agent: int) -> NDArray[np.intp]:
        """Line 9: the neighbours whose estimate is too far away."""
        held = self.holdings
        neighbours = np.flatnonzero(self.edges[agent])
        apart = far_apart(
            self.alpha_d, held.theta[neighbours], held.count[neighbours], held.theta[agent], held.count[agent]
        )
        return np.asarray(neighbours[apart])


@dataclass(frozen=True, kw_only=True)
class SplitAndMerge:
    """Phase-based FCLUB: local servers split their users on evidence, a global one merges what looks alike.

    Agents are dealt out to ``local_servers``. Edges join agents of one local server alone, and are deleted as
    in a heterogeneity graph. At the end of each phase, 1, 2, 4, ... rounds long, the clusters are formed
    anew: connected components of local servers, merged across servers where their centres are not further
    apart than ``alpha_2`` confidence widths.
    """

    alpha_d: float = 1.5
    alpha_2: float = 2.0
    local_servers: int = 4

    def __post_init__(self) -> None:
        positive("alpha_d", self.alpha_d)
        positive("alpha_2", self.alpha_2)
        whole("local_servers", self.local_servers)

    def begin(self, holdings: Holdings, truth: Labels | None) -> Groups:  # noqa: ARG002
        """One cluster: where nothing is known, all centres are alike."""
        return Phases(holdings, self)


class Phases(Components):
    """The state of phase-based FCLUB: edges within local servers, clusters since the end of the last phase."""

    def __init__(self, holdings: Holdings, parts: SplitAndMerge) -> None:
        self.parts = parts
        self.servers = np.arange(len(holdings)) % parts.local_servers
        together = self.servers[:, None] == self.servers[None, :]
        super().__init__(holdings, parts.alpha_d, together & ~np.eye(len(holdings), dtype=np.bool_))
        self.phase = 0

    @property
    def phase_ends(self) -> int:
        """The round after which the present phase is over: 1, 3, 7, 15, ..."""
        return int(2 ** (self.phase + 1) - 1)

    def add(self, agent: int, statistics: Statistics) -> None:
        """Take an upload in; when the server has heard of enough rounds, the phase is over."""
        super().add(agent, statistics)
        rounds = int(self.holdings.rounds.sum())
        if rounds >= self.phase_ends:
            self.regroup(self.merged())
        while rounds >= self.phase_ends:
            self.phase += 1

    def revise(self, agent: int) -> None:
        """Gather evidence; it counts when the phase ends."""
        self.delete_refuted(agent)

    def merged(self) -> list[NDArray[np.intp]]:
        """Local clusters, merged across local servers where their centres are close."""
        held = self.holdings
        local = components(self.edges, np.arange(len(held)))
        ridges = [Ridge(held.total(part), held.lambda_) for part in local]
        theta = np.array([ridge.theta for ridge in ridges])
        count = np.array([ridge.statistics.count for ridge in ridges])
        server = np.array([self.servers[part[0]] for part in local])
        close = np.array(
            [
                ~far_apart(self.parts.alpha_2, theta, count, theta[one], count[one]) & (server != server[one])
                for one in range(len(local))
            ]
        )
        joined = components(close, np.arange(len(local)))
        return [np.sort(np.concatenate([local[one] for one in part])) for part in joined]


def far_apart(
    alpha: float,
    thetas: NDArray[np.float64],
    counts: NDArray[np.int64],
    theta: NDArray[np.float64],
    count: np.int64,
) -> NDArray[np.bool_]:
    """Which of some estimates are further from one than alpha (F(T) + F(T')): Algorithm 3, line 9."""
    gap = np.linalg.norm(thetas - theta, axis=1)
    return np.asarray(gap > alpha * (confidence_width(counts) + confidence_width(count)))


def confidence_width(count: NDArray[np.int64] | np.int64) -> NDArray[np.float64]:
    """F(T) = sqrt((1 + ln(1 + T)) / (1 + T))."""
    return np.asarray(np.sqrt((1.0 + np.log1p(count)) / (1.0 + count)))


def components(edges: NDArray[np.bool_], members: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The connected components of the graph restricted to ``members``, the largest first."""
    left = np.zeros(len(edges), np.bool_)
    left[members] = True
    parts = []
    for start in members:
        if left[start]:
            part = _reachable(edges, start, left)
            left &= ~part
            parts.append(np.flatnonzero(part))
    return sorted(parts, key=len, reverse=True)


def _reachable(edges: NDArray[np.bool_], start: np.intp, within: NDArray[np.bool_]) -> NDArray[np.bool_]:
    reached = np.zeros(len(edges), np.bool_)
    reached[start] = True
    frontier = [start]
    while frontier:
        fresh = edges[frontier.pop()] & within & ~reached
        reached |= fresh
        frontier.extend(np.flatnonzero(fresh))
    return reached
