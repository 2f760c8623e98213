"""The heterogeneity graph (Algorithm 3): agents share with those to whom no data have refuted an edge."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require_positive
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings, confidence_width
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

# Two estimates are never further apart than their lengths together; this leaves room for rounding.
CERTAIN = 1.0 - 1e-9


@dataclass(frozen=True, kw_only=True)
class HeterogeneityGraph:
    """Connected components of a graph that starts complete and loses the edges that the data refute."""

    alpha_d: float = 7.0

    def __post_init__(self) -> None:
        require_positive("alpha_d", self.alpha_d)

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        """The complete graph: one component."""
        return GraphPartition(holdings, self.alpha_d, ~np.eye(len(holdings), dtype=np.bool_))


class GraphPartition(Partition):
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
        parts = find_components(self.edges, np.flatnonzero(self.labels == label))
        if len(parts) > 1:
            self.split(label, parts)

    def delete_refuted(self, agent: int) -> bool:
        """Lines 5 to 13, the edges alone; returns whether one went."""
        refuted = self._refuted(agent)
        if refuted.size:
            self.edges[agent, refuted] = self.edges[refuted, agent] = False
        return refuted.size > 0

    def join(self) -> None:
        """The graph is complete until data refute an edge: a newcomer is joined to all, so all share through it."""
        newcomer = len(self.labels)
        self.edges = append_vertex(self.edges)
        self.edges[newcomer, :newcomer] = self.edges[:newcomer, newcomer] = True
        if len(self) > 1:
            self._pooled = {0: sum(self._pooled.values(), Statistics.zero(self.holdings.dimension))}
            self.labels[:] = 0
        self.place(next(iter(self._pooled), 0))

    def forget(self, agent: int) -> None:
        """Without the agent, those whom it alone connected are no longer connected."""
        label = int(self.labels[agent])
        self.edges = np.delete(np.delete(self.edges, agent, axis=0), agent, axis=1)
        super().forget(agent)
        parts = find_components(self.edges, np.flatnonzero(self.labels == label))
        if len(parts) > 1:
            self.split(label, parts)

    def _refuted(self, agent: int) -> NDArray[np.intp]:
        """Line 9: the neighbours whose estimate is too far away."""
        held = self.holdings
        neighbours = find_candidates(self.edges[agent], held.theta, held.length, held.width, agent, self.alpha_d)
        if not neighbours.size:
            return neighbours
        apart = are_far_apart(
            self.alpha_d, held.theta[neighbours], held.count[neighbours], held.theta[agent], held.count[agent]
        )
        return np.asarray(neighbours[apart])


@jit
def find_candidates(
    connected: NDArray[np.bool_], theta: Matrix, length: Vector, width: Vector, agent: int, alpha: float
) -> NDArray[np.intp]:
    """The neighbours of an agent, less those who are certainly not too far away; of them there are very many.

    Two estimates are never further apart than their lengths together, which takes no look at them.
    """
    certain = CERTAIN * alpha
    own_length, own_width = length[agent], width[agent]
    long_enough = 0
    for other in range(connected.size):  # without a branch, so that many are looked at in one step
        long_enough += connected[other] & (not length[other] + own_length < certain * (width[other] + own_width))
    found, size = np.empty(long_enough, np.intp), 0
    for other in range(connected.size if long_enough else 0):
        bound = certain * (width[other] + own_width)
        candidate = connected[other] and not length[other] + own_length < bound
        if candidate and not squared_distance(theta[other], theta[agent]) < bound * bound:
            found[size] = other
            size += 1
    return found[:size]


@jit_inline
def squared_distance(one: Vector, other: Vector) -> float:
    """In two sums side by side, which takes half as long as in one; good for bounds that leave some room."""
    even, odd = 0.0, 0.0
    for k in range(0, one.size - 1, 2):
        even += (one[k] - other[k]) ** 2
        odd += (one[k + 1] - other[k + 1]) ** 2
    if one.size % 2:
        even += (one[-1] - other[-1]) ** 2
    return even + odd


def are_far_apart(
    alpha: float,
    thetas: NDArray[np.float64],
    counts: NDArray[np.int64],
    theta: NDArray[np.float64],
    count: np.int64,
) -> NDArray[np.bool_]:
    """Which of some estimates are further from one than alpha (F(T) + F(T')): Algorithm 3, line 9."""
    gap = np.linalg.norm(thetas - theta, axis=1)
    return np.asarray(gap > alpha * (confidence_width(counts) + confidence_width(count)))


def append_vertex(edges: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The graph with one more agent that has no edges; room is made for twice as many at a time."""
    agents = len(edges)
    room = edges if edges.base is None else edges.base
    if len(room) == agents:
        room = np.zeros((max(8, 2 * agents), max(8, 2 * agents)), np.bool_)
        room[:agents, :agents] = edges
    return room[: agents + 1, : agents + 1]


def find_components(edges: NDArray[np.bool_], members: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The connected components of the graph restricted to ``members``, the largest first."""
    left = np.zeros(len(edges), np.bool_)
    left[members] = True
    parts = []
    while left.any():
        part = _reachable(edges, int(left.argmax()), left)
        left ^= part
        parts.append(np.flatnonzero(part))
    return sorted(parts, key=len, reverse=True)


def _reachable(edges: NDArray[np.bool_], start: int, within: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The search ends when nobody is left to be found: in a graph of many edges, after a few steps."""
    left = within.copy()
    left[start] = False
    frontier = [start]
    while frontier:
        fresh = edges[frontier.pop()] & left
        left ^= fresh
        if not left.any():
            break
        frontier.extend(np.flatnonzero(fresh).tolist())
    return within ^ left
