"""A heterogeneity graph in which agents with little data do not connect groups, so that idle agents join no clusters.

Agents are processed by amount of data, the heaviest first. An agent that fits two groups, each with an agent of much
more data, does not join them: it is a *leaf*. A leaf is answered with the sums of all groups that it fits, as in the
paper, and is a member of the nearest one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import PROBABILITY
from fedcascade.constants import constant
from fedcascade.federation.grouping.graph.complete import Edges, GraphPartition, HeterogeneityGraph
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings, drop_row
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix

NO_GROUP = -1


@dataclass(frozen=True, kw_only=True)
class GuardedGraph(HeterogeneityGraph):
    """The heterogeneity graph, in which only agents with comparable amounts of data connect groups."""

    bridge_share: float = constant(
        0.5,
        meaning="an agent connects two groups only with this share of the data of the heaviest agent of one of them",
        range=PROBABILITY,
    )

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return GuardedPartition(holdings, self)


class GuardedPartition(GraphPartition):
    """The state of a guarded graph: edges, groups and leaves."""

    state_names = (*GraphPartition.state_names, "leaf")

    def __init__(self, holdings: Holdings, rule: GuardedGraph) -> None:
        super().__init__(holdings, rule.alpha_d)
        self.bridge_share = float(rule.bridge_share)
        self.leaf = np.zeros(len(holdings), np.bool_)

    def answer(self, agent: int) -> Statistics:
        """Return the sum of the agent's group, or of all groups that it fits if it is a leaf."""
        if not self.leaf[agent]:
            return super().answer(agent)
        return self.sum_groups(agent, np.union1d(self._find_fitting(agent), self.labels[agent]))

    def revise(self, agent: int) -> None:
        """Delete the refuted edges of ``agent``, then move a leaf or split a group (Algorithm 3, lines 5 to 13)."""
        if not self.leaf[agent]:
            super().revise(agent)
        elif self.delete_refuted_edges(agent):
            self._place_leaf(agent)

    def join(self) -> None:
        """Connect a new agent to all others. It joins the only group, or is a leaf of the largest."""
        self.append_edges()
        self.leaf = np.append(self.leaf, len(self) > 1)
        labels, sizes = np.unique(self.labels, return_counts=True)
        self.append_agent(int(labels[sizes.argmax()]) if labels.size else 0)

    def restart(self, agent: int) -> None:
        """Remove the agent from its group, and connect it to all others as a new agent."""
        self.edges[agent] = self.edges[:, agent] = False
        self.split_group(int(self.labels[agent]))
        self.connect_to_all(agent)
        labels, sizes = np.unique(np.delete(self.labels, agent), return_counts=True)
        self.leaf[agent] = labels.size > 1
        if labels.size:
            self.pools.pop(int(self.labels[agent]))
            self.labels[agent] = labels[sizes.argmax()]

    def forget(self, agent: int) -> None:
        self.leaf = drop_row(self.leaf, agent)
        super().forget(agent)

    def split_group(self, label: int) -> None:
        """Split a group by its remaining edges, and update its leaves."""
        members = np.flatnonzero(self.labels == label)
        order = members[np.argsort(-self.holdings.count[members], kind="stable")]
        groups, leaf = form_groups(self.edges, order, self.holdings.count, self.holdings.theta, self.bridge_share)
        undecided = order[self.leaf[order] & ~leaf]  # they may also fit other groups
        self.leaf[order] = leaf
        parts = [np.sort(order[groups == group]) for group in np.unique(groups)]
        if len(parts) > 1:
            self.split(label, sorted(parts, key=len, reverse=True))
        for agent in undecided:
            self.leaf[agent] = self._find_fitting(agent).size > 1

    def _find_fitting(self, agent: int) -> Labels:
        """Return the labels of the groups that a leaf has edges to, apart from edges to other leaves."""
        return np.unique(self.labels[self.edges[agent] & ~self.leaf])

    def _place_leaf(self, agent: int) -> None:
        """Move a leaf whose edges have changed to a group that it fits. It stays a leaf while it fits several."""
        fits, before = self._find_fitting(agent), int(self.labels[agent])
        self.leaf[agent] = fits.size > 1
        if before in fits:
            return
        self.labels[agent] = self._find_nearest(agent, fits) if fits.size else self.find_unused_label()
        self.regrouped[agent] = True
        self.sum_group(before)
        self.sum_group(int(self.labels[agent]))

    def _find_nearest(self, agent: int, fits: Labels) -> int:
        """Return the fitting group whose heaviest agent has the nearest estimate."""
        held, distances = self.holdings, []
        for label in fits:
            members = np.flatnonzero((self.labels == label) & ~self.leaf)
            leader = members[held.count[members].argmax()]
            distances.append(np.sum((held.theta[leader] - held.theta[agent]) ** 2))
        return int(fits[int(np.argmin(distances))])


@jit
def form_groups(
    edges: Edges, order: NDArray[np.intp], count: Labels, theta: Matrix, bridge_share: float
) -> tuple[Labels, NDArray[np.bool_]]:
    """Return the group of each agent of ``order``, sorted by falling count, and whether it is a leaf.

    An agent connects the groups that it has an edge to. It is a leaf instead if it has less than ``bridge_share`` of
    the data of the heaviest agent in two of them.
    """
    groups, leaf = np.full(order.size, NO_GROUP), np.zeros(order.size, np.bool_)
    leader = np.empty(order.size, np.int64)  # the heaviest agent of each group
    known = 0
    is_met = np.zeros(order.size, np.bool_)
    for place in range(order.size):
        agent, heavier_groups = order[place], 0
        nearest, distance = NO_GROUP, np.inf
        is_met[:known] = False
        for earlier in range(place):
            if edges[agent, order[earlier]] and not leaf[earlier]:
                is_met[groups[earlier]] = True
        for group in range(known):
            if is_met[group]:
                heavier_groups += bridge_share * count[leader[group]] > count[agent]
                apart = 0.0
                for k in range(theta.shape[1]):
                    apart += (theta[leader[group], k] - theta[agent, k]) ** 2
                if apart < distance:
                    nearest, distance = group, apart
        if nearest == NO_GROUP:
            leader[known] = agent
            nearest = known
            known += 1
        elif heavier_groups > 1:
            leaf[place] = True
        else:
            nearest = _merge_groups(groups, is_met, place, known)
        groups[place] = nearest
    return groups, leaf


@jit
def _merge_groups(groups: Labels, is_met: NDArray[np.bool_], place: int, known: int) -> int:
    """Merge the groups that were met into the first, whose leader is the heaviest, and return its number."""
    first = NO_GROUP
    for group in range(known):
        if is_met[group] and first == NO_GROUP:
            first = group
    for earlier in range(place):
        if is_met[groups[earlier]]:
            groups[earlier] = first
    return first
