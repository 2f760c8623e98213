"""The heterogeneity graph (Algorithm 3): agents share within connected components, and data refute edges."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, require
from fedcascade.constants import Part, constant, enum_values
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit, jit_brief, jit_inline
from fedcascade.numerics.linear import Matrix, Vector
from fedcascade.platforms import measure_memory

Edges = NDArray[np.bool_]  # a symmetric matrix
# The declaration of alpha_d (Algorithm 3, line 9), without a default.
ALPHA_D: dict[str, Any] = {
    "meaning": "an edge is deleted beyond this many confidence widths",
    "symbol": "alpha_d",
    "range": POSITIVE,
}
ROUNDING_MARGIN = 1.0 - 1e-9  # for the triangle inequality in ``find_far``


@dataclass(frozen=True, kw_only=True)
class HeterogeneityGraph(Part):
    """Connected components of a graph that starts complete and loses refuted edges. It takes n^2 bytes."""

    alpha_d: float = constant(7.0, **ALPHA_D)

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return GraphPartition(holdings, self.alpha_d)


class Width(StrEnum):
    """F(T) of CLUB-cascade: sqrt(1 + ln(1 + T)) over sqrt(1 + T) in its paper, over 1 + T in its authors' code."""

    CODE = "code"
    PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class ClubGraph(HeterogeneityGraph):
    """The graph of CLUB-cascade: a ``HeterogeneityGraph`` with the F(T) of its authors' code, or of their paper."""

    width: Width = constant(
        Width.CODE, meaning="F(T) of the authors' code or of their paper, which is sqrt(1 + T) times as wide",
        symbol="F", range=enum_values(Width),
    )  # fmt: skip

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return GraphPartition(holdings, self.alpha_d, is_narrow=self.width == Width.CODE)


def require_memory(agents: int) -> None:
    """Reject a complete graph that takes more than half of the machine's memory."""
    memory = measure_memory()
    if memory is None:
        return
    need = f"a complete graph of {agents} agents needs {agents**2 / 1e9:.3g} GB, this machine has {memory / 1e9:.3g}"
    require(agents**2 <= memory // 2, f"{need}: use a policy without a graph, such as population")


class GraphPartition(Partition):
    """The state of a heterogeneity graph: edges, and the partition into connected components."""

    state_names = (*Partition.state_names, "edges")

    def __init__(self, holdings: Holdings, alpha_d: float, *, is_narrow: bool = False) -> None:
        require_memory(len(holdings))
        super().__init__(holdings, np.zeros(len(holdings), np.int64))
        self.alpha_d, self.is_narrow = alpha_d, is_narrow
        self.edges = ~np.eye(len(holdings), dtype=np.bool_)

    def revise(self, agent: int) -> None:
        """Delete the refuted edges of ``agent``, and split its group if any was (Algorithm 3, lines 5 to 13)."""
        if self.delete_refuted_edges(agent):
            self.split_group(int(self.labels[agent]))

    def delete_refuted_edges(self, agent: int) -> bool:
        """Delete the refuted edges of ``agent``, and return whether there were any."""
        held = self.holdings
        width = held.width / np.sqrt(1.0 + held.count) if self.is_narrow else held.width
        refuted = find_far(self.edges[agent], held.theta, held.length, width, agent, self.alpha_d)
        if refuted.size:
            self.edges[agent, refuted] = self.edges[refuted, agent] = False
        return refuted.size > 0

    def connect_to_all(self, agent: int) -> None:
        """Connect an agent to all others."""
        self.edges[agent] = self.edges[:, agent] = True
        self.edges[agent, agent] = False

    def join(self) -> None:
        """Connect a new agent to all others. Its edges join all groups into one."""
        self.append_edges()
        if len(self) > 1:
            self.pools = {0: sum(self.pools.values(), Statistics.zero(self.holdings.dimension))}
            self.labels[:] = 0
        self.append_agent(next(iter(self.pools), 0))

    def append_edges(self) -> None:
        """Connect a new agent to all others."""
        newcomer = len(self.labels)
        require_memory(newcomer + 1)
        self.edges = append_zeros(self.edges, axes=2)
        self.connect_to_all(newcomer)

    def restart(self, agent: int) -> None:
        """Connect the agent to all others again."""
        self.connect_to_all(agent)
        self.regroup([np.arange(self.labels.size)])

    def forget(self, agent: int) -> None:
        """Remove an agent, and split its group where it was the only connection."""
        label = int(self.labels[agent])
        self.edges = drop_row(self.edges, agent, axes=2)
        super().forget(agent)
        self.split_group(label)

    def split_group(self, label: int) -> None:
        """Replace a group by its connected components."""
        components = find_components(self.edges, np.flatnonzero(self.labels == label))
        if len(components) > 1:
            self.split(label, components)


@jit_inline
def is_far_apart(theta_u: Vector, width_u: float, theta_v: Vector, width_v: float, alpha: float) -> bool:
    """Return whether ||theta_u - theta_v|| > alpha (width_u + width_v) (Algorithm 3, line 9)."""
    bound = alpha * (width_u + width_v)
    even, odd = 0.0, 0.0  # two independent sums take half the time of one
    for k in range(0, theta_u.size - 1, 2):
        even += (theta_u[k] - theta_v[k]) ** 2
        odd += (theta_u[k + 1] - theta_v[k + 1]) ** 2
    if theta_u.size % 2:
        even += (theta_u[-1] - theta_v[-1]) ** 2
    return even + odd > bound * bound


@jit_brief
def find_far(
    connected: NDArray[np.bool_], theta: Matrix, length: Vector, width: Vector, agent: int, alpha: float
) -> NDArray[np.intp]:
    """Return the neighbours of ``agent`` whose estimate is too far away (Algorithm 3, lines 6 to 12).

    The triangle inequality rules out most of them: no distance exceeds the sum of the two lengths.
    """
    certain, own_length, own_width = ROUNDING_MARGIN * alpha, length[agent], width[agent]
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
def find_far_pairs(theta: Matrix, width: Vector, alpha: float) -> Edges:
    """Return which pairs of estimates, one per row of ``theta``, are too far apart."""
    far = np.zeros((width.size, width.size), np.bool_)
    for u in range(width.size):
        for v in range(u):
            far[u, v] = far[v, u] = is_far_apart(theta[u], width[u], theta[v], width[v], alpha)
    return far


def find_components(edges: Edges, members: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return the connected components of the graph restricted to ``members``, the largest first."""
    remaining = np.zeros(len(edges), np.bool_)
    remaining[members] = True
    components = []
    while remaining.any():
        component = _find_reachable(edges, int(remaining.argmax()), remaining)
        remaining ^= component
        components.append(np.flatnonzero(component))
    return sorted(components, key=len, reverse=True)


def _find_reachable(edges: Edges, start: int, within: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the agents that a path inside ``within`` connects to ``start``."""
    unreached = within.copy()
    unreached[start] = False
    frontier = [start]
    while frontier:
        reached = edges[frontier.pop()] & unreached
        unreached ^= reached
        if not unreached.any():
            break
        frontier.extend(np.flatnonzero(reached).tolist())
    return within ^ unreached
