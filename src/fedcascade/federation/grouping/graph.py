"""The heterogeneity graph (Algorithm 3): agents share with those to whom no data have refuted an edge."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, require, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.distance import is_far_apart
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.grouping.sparse import SparsePartition
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit, jit_brief
from fedcascade.numerics.linear import Matrix, Vector
from fedcascade.systems import measure_memory

# Two estimates are never further apart than their lengths together; this leaves room for rounding.
CERTAIN = 1.0 - 1e-9


def describe_alpha_d(default: float) -> Any:
    """The field alpha_d, of every grouping that deletes edges by line 9 of Algorithm 3."""
    meaning = "an edge is deleted beyond this many confidence widths"
    return constant(default, meaning=meaning, symbol="alpha_d", range=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class HeterogeneityGraph(Part):
    """Connected components of a graph that loses the edges that the data refute.

    In the paper it starts complete, which takes a byte for each pair of agents. With a ``degree`` it starts like that
    of CLUB: each agent is connected to so many others, drawn at random.
    """

    alpha_d: float = describe_alpha_d(7.0)
    degree: int = constant(
        0,
        meaning="to how many others, drawn at random, each agent is connected at first; 0 is to all",
        range=whole_numbers(0),
    )

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        if self.degree:
            return SparsePartition(holdings, self.alpha_d, self.degree)
        require_memory(len(holdings))
        return GraphPartition(holdings, self.alpha_d, ~np.eye(len(holdings), dtype=np.bool_))


def require_memory(agents: int) -> None:
    """Refuse a complete graph that takes more than half of the machine's memory."""
    memory = measure_memory()
    if memory is None:
        return
    need = f"a complete graph of {agents} agents needs {agents**2 / 1e9:.3g} GB, this machine has {memory / 1e9:.3g}"
    require(agents**2 <= memory // 2, f"{need}: set degree, to start each agent with so many neighbours")


class GraphPartition(Partition):
    """The state of a heterogeneity graph: edges, and the partition into connected components."""

    state_names = (*Partition.state_names, "edges")

    def __init__(self, holdings: Holdings, alpha_d: float, edges: NDArray[np.bool_]) -> None:
        super().__init__(holdings, np.zeros(len(holdings), np.int64))
        self.alpha_d = alpha_d
        self.edges = edges

    def revise(self, agent: int) -> None:
        """Algorithm 3, lines 5 to 13: delete the refuted edges of ``agent``; search for components only if any was."""
        if self.delete_refuted_edges(agent):
            self.split_group(int(self.labels[agent]))

    def delete_refuted_edges(self, agent: int) -> bool:
        """Algorithm 3, lines 5 to 13, without the partition; returns whether an edge was deleted."""
        held = self.holdings
        refuted = find_far_neighbours(self.edges[agent], held.theta, held.length, held.width, agent, self.alpha_d)
        if refuted.size:
            self.edges[agent, refuted] = self.edges[refuted, agent] = False
        return refuted.size > 0

    def join(self) -> None:
        """Connect the newcomer to all: no data refute its edges yet, so all agents share through it."""
        self.append_edges()
        if len(self) > 1:
            self.pools = {0: sum(self.pools.values(), Statistics.zero(self.holdings.dimension))}
            self.labels[:] = 0
        self.append_agent(next(iter(self.pools), 0))

    def append_edges(self) -> None:
        """Give the newcomer an edge to everybody."""
        newcomer = len(self.labels)
        require_memory(newcomer + 1)
        self.edges = append_zeros(self.edges, axes=2)
        self.edges[newcomer, :newcomer] = self.edges[:newcomer, newcomer] = True

    def restart(self, agent: int) -> None:
        """Connect the agent to all again, as a newcomer is."""
        self.connect(agent)
        self.regroup([np.arange(self.labels.size)])

    def connect(self, agent: int) -> None:
        """Give an agent an edge to every other one."""
        self.edges[agent] = self.edges[:, agent] = True
        self.edges[agent, agent] = False

    def forget(self, agent: int) -> None:
        """Take out an agent; agents that it alone connected are split."""
        label = int(self.labels[agent])
        self.edges = drop_row(self.edges, agent, axes=2)
        super().forget(agent)
        self.split_group(label)

    def split_group(self, label: int) -> None:
        """Replace a group by its connected components, where an edge less has left several."""
        components = find_components(self.edges, np.flatnonzero(self.labels == label))
        if len(components) > 1:
            self.split(label, components)


@jit_brief
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


def find_components(edges: NDArray[np.bool_], members: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The connected components of the graph restricted to ``members``, the largest first."""
    remaining = np.zeros(len(edges), np.bool_)
    remaining[members] = True
    components = []
    while remaining.any():
        component = _find_reachable(edges, int(remaining.argmax()), remaining)
        remaining ^= component
        components.append(np.flatnonzero(component))
    return sorted(components, key=len, reverse=True)


def _find_reachable(edges: NDArray[np.bool_], start: int, within: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The agents that a path inside ``within`` connects to ``start``.

    The search ends when all are reached: in a graph of many edges, after a few steps.
    """
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
