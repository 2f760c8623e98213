"""A heterogeneity graph of few edges: each agent starts with some neighbours, drawn at random, as in CLUB.

What an upload costs depends on the number of neighbours. When an edge goes, two searches start from its ends and take
turns. In a random graph they soon meet; where they cannot, the one in the smaller part ends first, and that part
becomes a group of its own.

A cluster that has the share s of n agents stays in one piece, with high probability, if its agents have more than
ln(s n) neighbours among themselves: 2 s degree > ln(s n) + 3 is a safe choice.
"""

import numpy as np

from fedcascade.federation.grouping.distance import is_far_apart
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import streams
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, Vector

CHUNK = 4096  # agents that are summed at once
_SEED = np.uint64(0)  # of the first edges: a server has none of its own, and replays must agree


class SparsePartition(Partition):
    """The state of a sparse graph: each agent's neighbours, in the first ``degrees`` places of its row."""

    state_names = (*Partition.state_names, "neighbours", "degrees")

    def __init__(self, holdings: Holdings, alpha_d: float, degree: int) -> None:
        self.neighbours, self.degrees = connect_at_random(len(holdings), degree)
        super().__init__(holdings, label_components(self.neighbours, self.degrees))
        self.alpha_d = alpha_d
        self.degree = degree

    def revise(self, agent: int) -> None:
        """Algorithm 3, lines 5 to 13: delete the refuted edges of ``agent``, and split its group if that parts it."""
        held, neighbours = self.holdings, self.neighbours[agent, : self.degrees[agent]]
        refuted = find_far_agents(neighbours, held.theta, held.width, agent, self.alpha_d)
        for neighbour in refuted:
            remove_edge(self.neighbours, self.degrees, agent, neighbour)
        if refuted.size:
            self._split([agent, *refuted.tolist()])

    def _split(self, ends: list[int]) -> None:
        """Give parts that no path connects any more groups of their own; each part has one of ``ends`` in it."""
        apart: list[int] = []
        for end in ends:
            for other in apart:
                if self.labels[end] == self.labels[other]:
                    is_connected, part = search_path(self.neighbours, self.degrees, end, other)
                    if is_connected:
                        break
                    self._split_off(part)
            else:
                apart.append(end)

    def _split_off(self, part: Labels) -> None:
        label, fresh = int(self.labels[part[0]]), max(self.pools) + 1
        self.regrouped[self.labels == label] = True
        self.labels[part] = fresh
        some = (part[start : start + CHUNK] for start in range(0, part.size, CHUNK))
        self.pools[fresh] = sum(map(self.holdings.total, some), Statistics.zero(self.holdings.dimension))
        self.pools[label] -= self.pools[fresh]

    def join(self) -> None:
        """Connect the newcomer to agents drawn at random: all of their groups share through it."""
        newcomer = self.labels.size
        self.neighbours, self.degrees = append_zeros(self.neighbours), append_zeros(self.degrees)
        self.append_agent(self._connect(newcomer))

    def restart(self, agent: int) -> None:
        """Replace the neighbours of an agent by others drawn at random, as if it were a newcomer."""
        self.sum_group(int(self.labels[agent]))
        self._split([agent, *self._disconnect(agent).tolist()])
        if self.labels.size > 1:
            self.pools.pop(int(self.labels[agent]))
            self.labels[agent] = self._connect(agent)

    def _disconnect(self, agent: int) -> Labels:
        """Remove all edges of an agent; returns who its neighbours were."""
        ends = self.neighbours[agent, : self.degrees[agent]].copy()
        for neighbour in ends:
            remove_edge(self.neighbours, self.degrees, agent, neighbour)
        return ends

    def _connect(self, newcomer: int) -> int:
        """Connect an agent without edges to others drawn at random; returns the label of the group that they form."""
        others = len(self.holdings) - 1
        count = min(self.degree, others)
        drawn = streams.sample_few_indices(_SEED, streams.EDGE, newcomer, others, count)
        drawn += drawn >= newcomer
        widest = int(max(count, self.degrees[drawn].max(initial=0) + 1))
        if widest > self.neighbours.shape[1]:
            self.neighbours = np.pad(self.neighbours, ((0, 0), (0, widest - self.neighbours.shape[1])))
        for neighbour in drawn:
            add_edge(self.neighbours, self.degrees, newcomer, neighbour)
        labels = np.unique(self.labels[drawn]).tolist() or [0]
        for label in labels[1:]:
            self.labels[self.labels == label] = labels[0]
            self.pools[labels[0]] += self.pools.pop(label)
        return int(labels[0])

    def forget(self, agent: int) -> None:
        """Take out an agent; agents that it alone connected are split."""
        ends = self._disconnect(agent)
        last = self.labels.size - 1
        for neighbour in self.neighbours[last, : self.degrees[last]]:
            row = self.neighbours[neighbour]
            row[row == last] = agent
        ends[ends == last] = agent
        self.neighbours, self.degrees = drop_row(self.neighbours, agent), drop_row(self.degrees, agent)
        super().forget(agent)
        self._split(ends.tolist())


@jit
def add_edge(neighbours: Labels, degrees: Labels, agent: int, neighbour: int) -> None:
    """Connect two agents; their rows must have room."""
    for k in range(degrees[agent]):
        if neighbours[agent, k] == neighbour:
            return
    neighbours[agent, degrees[agent]] = neighbour
    neighbours[neighbour, degrees[neighbour]] = agent
    degrees[agent] += 1
    degrees[neighbour] += 1


@jit
def remove_edge(neighbours: Labels, degrees: Labels, agent: int, neighbour: int) -> None:
    """Disconnect two neighbours; the last one of a row takes the place that becomes free."""
    for row, gone in ((agent, neighbour), (neighbour, agent)):
        degrees[row] -= 1
        for k in range(degrees[row]):
            if neighbours[row, k] == gone:
                neighbours[row, k] = neighbours[row, degrees[row]]


@jit
def connect_at_random(agents: int, degree: int) -> tuple[Labels, Labels]:
    """Neighbours and degrees of a graph in which each agent draws so many others; an edge that both draw is one."""
    count = min(degree, agents - 1)
    drawn, room = np.empty((agents, count), np.int64), np.full(agents, count)
    for agent in range(agents):
        drawn[agent] = streams.sample_few_indices(_SEED, streams.EDGE, agent, agents - 1, count)
        for k in range(count):
            drawn[agent, k] += drawn[agent, k] >= agent
            room[drawn[agent, k]] += 1
    neighbours, degrees = np.zeros((agents, room.max()), np.int64), np.zeros(agents, np.int64)
    for agent in range(agents):
        for k in range(count):
            add_edge(neighbours, degrees, agent, drawn[agent, k])
    return neighbours, degrees


@jit
def label_components(neighbours: Labels, degrees: Labels) -> Labels:
    """The number of each agent's connected component, in the order of their first agents."""
    labels, queue, known = np.full(degrees.size, -1), np.empty(degrees.size, np.int64), 0
    for start in range(degrees.size):
        if labels[start] >= 0:
            continue
        queue[0], begin, end = start, 0, 1
        labels[start] = known
        while begin < end:
            agent = queue[begin]
            begin += 1
            for k in range(degrees[agent]):
                neighbour = neighbours[agent, k]
                if labels[neighbour] < 0:
                    labels[neighbour] = known
                    queue[end] = neighbour
                    end += 1
        known += 1
    return labels


@jit
def search_path(neighbours: Labels, degrees: Labels, first: int, second: int) -> tuple[bool, Labels]:
    """Whether a path connects two agents; if none does, all agents of the part whose search ends first."""
    side = np.zeros(degrees.size, np.int8)  # 1 or 2: which search has reached an agent
    queues, begin, end = np.empty((2, degrees.size), np.int64), np.zeros(2, np.int64), np.ones(2, np.int64)
    queues[0, 0], queues[1, 0] = first, second
    side[first], side[second] = 1, 2
    turn = 0
    while begin[turn] < end[turn]:
        agent = queues[turn, begin[turn]]
        begin[turn] += 1
        for k in range(degrees[agent]):
            neighbour = neighbours[agent, k]
            if side[neighbour] == 2 - turn:
                return True, queues[0, :0]
            if side[neighbour] == 0:
                side[neighbour] = turn + 1
                queues[turn, end[turn]] = neighbour
                end[turn] += 1
        turn = 1 - turn
    return False, queues[turn, : end[turn]].copy()


@jit
def find_far_agents(candidates: Labels, theta: Matrix, width: Vector, agent: int, alpha: float) -> Labels:
    """Algorithm 3, line 9: those of some agents whose estimate is too far away."""
    far, size = np.empty(candidates.size, np.int64), 0
    for candidate in candidates:
        if is_far_apart(theta[candidate], width[candidate], theta[agent], width[agent], alpha):
            far[size] = candidate
            size += 1
    return far[:size]
