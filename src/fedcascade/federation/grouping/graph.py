"""The heterogeneity graph (Algorithm 3): agents share with those to whom no data have refuted an edge."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

# Two estimates are never further apart than their lengths together; this leaves room for rounding.
CERTAIN = 1.0 - 1e-9


def describe_alpha_d(default: float) -> Any:
    """The field alpha_d, of every grouping that deletes edges by line 9 of Algorithm 3."""
    meaning = "an edge is deleted beyond this many confidence widths"
    return constant(default, meaning=meaning, symbol="alpha_d", range=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class HeterogeneityGraph(Part):
    """Connected components of a graph that starts complete and loses the edges that the data refute."""

    alpha_d: float = describe_alpha_d(7.0)

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        """The complete graph: one component."""
        return GraphPartition(holdings, self.alpha_d, ~np.eye(len(holdings), dtype=np.bool_))


class GraphPartition(Partition):
    """The state of a heterogeneity graph: edges, and the partition into connected components."""

    def __init__(self, holdings: Holdings, alpha_d: float, edges: NDArray[np.bool_]) -> None:
        super().__init__(holdings, np.zeros(len(holdings), np.int64))
        self.alpha_d = alpha_d
        self.edges = edges

    def to_state(self) -> dict[str, Any]:
        """The partition and its edges."""
        return super().to_state() | {"edges": self.edges}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_state`` gave."""
        super().load_state(state)
        self.edges = state["edges"]

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
        held = self.holdings
        refuted = find_far_neighbours(self.edges[agent], held.theta, held.length, held.width, agent, self.alpha_d)
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


@jit_inline
def is_far_apart(theta_u: Vector, width_u: float, theta_v: Vector, width_v: float, alpha: float) -> bool:
    """Algorithm 3, line 9: ||theta_u - theta_v|| > alpha (F(T_u) + F(T_v)), where F(T_u) is ``width_u``."""
    bound = alpha * (width_u + width_v)
    return compute_squared_distance(theta_u, theta_v) > bound * bound


@jit_inline
def compute_squared_distance(theta_u: Vector, theta_v: Vector) -> float:
    """||theta_u - theta_v||^2, in two sums side by side: half the time of a single one."""
    even, odd = 0.0, 0.0
    for k in range(0, theta_u.size - 1, 2):
        even += (theta_u[k] - theta_v[k]) ** 2
        odd += (theta_u[k + 1] - theta_v[k + 1]) ** 2
    if theta_u.size % 2:
        even += (theta_u[-1] - theta_v[-1]) ** 2
    return even + odd


@jit
def find_far_neighbours(
    connected: NDArray[np.bool_], theta: Matrix, length: Vector, width: Vector, agent: int, alpha: float
) -> NDArray[np.intp]:
    """Algorithm 3, lines 6 to 12: the neighbours of ``agent`` whose estimate is too far away.

    Most are ruled out by the lengths of the estimates alone: no two are further apart than their lengths together.
    """
    certain = CERTAIN * alpha
    own_length, own_width = length[agent], width[agent]
    candidates = 0
    for neighbour in range(connected.size):  # without a branch, so that LLVM vectorises the loop
        short = length[neighbour] + own_length < certain * (width[neighbour] + own_width)
        candidates += connected[neighbour] & (not short)
    far, size = np.empty(candidates, np.intp), 0
    for neighbour in range(connected.size if candidates else 0):
        short = length[neighbour] + own_length < certain * (width[neighbour] + own_width)
        if not connected[neighbour] or short:
            continue
        if is_far_apart(theta[neighbour], width[neighbour], theta[agent], own_width, alpha):
            far[size] = neighbour
            size += 1
    return far[:size]


@jit
def find_far_pairs(theta: Matrix, width: Vector, alpha: float) -> NDArray[np.bool_]:
    """Which pairs of estimates, one per row of ``theta``, are too far apart, as a symmetric matrix."""
    far = np.zeros((width.size, width.size), np.bool_)
    for u in range(width.size):
        for v in range(u):
            far[u, v] = far[v, u] = is_far_apart(theta[u], width[u], theta[v], width[v], alpha)
    return far


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
