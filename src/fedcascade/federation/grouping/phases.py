"""Phase-based FCLUB: clusters that local servers split, and a global one merges at the end of each phase."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.graph import GraphPartition, describe_alpha_d, find_components, find_far_pairs
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings, compute_confidence_width
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics


@dataclass(frozen=True, kw_only=True)
class SplitAndMerge(Part):
    """Phase-based FCLUB: local servers split their users on evidence, a global one merges what looks alike.

    Agents are dealt out to ``local_servers``. Edges join agents of one local server alone, and are deleted as
    in a heterogeneity graph. At the end of each phase, 1, 2, 4, ... rounds long, the clusters are formed
    anew: connected components of local servers, merged across servers where their centres are not further
    apart than ``alpha_2`` confidence widths.
    """

    alpha_d: float = describe_alpha_d(1.5)
    alpha_2: float = constant(
        2.0,
        meaning="local clusters whose centres are within so many widths are merged",
        symbol="alpha_2",
        range=POSITIVE,
    )
    local_servers: int = constant(
        4, meaning="how many local servers the agents are dealt out to", range=whole_numbers(1)
    )

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        """Start with one cluster: without data, all centres are alike."""
        return PhasePartition(holdings, self)


class PhasePartition(GraphPartition):
    """The state of phase-based FCLUB: edges within local servers, clusters since the end of the last phase."""

    state_names = (*GraphPartition.state_names, "servers", "phase")

    def __init__(self, holdings: Holdings, rule: SplitAndMerge) -> None:
        self.rule = rule
        self.servers = np.arange(len(holdings)) % rule.local_servers
        together = self.servers[:, None] == self.servers[None, :]
        super().__init__(holdings, rule.alpha_d, together & ~np.eye(len(holdings), dtype=np.bool_))
        self.phase = 0

    @property
    def phase_ends(self) -> int:
        """The round after which the present phase is over: 1, 3, 7, 15, ..."""
        return int(2 ** (self.phase + 1) - 1)

    def add(self, agent: int, statistics: Statistics) -> None:
        """Add an upload, and form the clusters anew when the uploads have reached the end of the phase."""
        super().add(agent, statistics)
        rounds = int(self.holdings.rounds.sum())
        if rounds >= self.phase_ends:
            self.regroup(self.form_clusters())
        while rounds >= self.phase_ends:
            self.phase += 1

    def revise(self, agent: int) -> None:
        """Delete refuted edges; clusters follow when the phase ends."""
        self.delete_refuted_edges(agent)

    def form_clusters(self) -> list[NDArray[np.intp]]:
        """The clusters of local servers, merged across local servers where their centres are close."""
        held = self.holdings
        local = find_components(self.edges, np.arange(len(held)))
        ridges = [Ridge(held.total(cluster), held.lambda_) for cluster in local]
        theta = np.array([ridge.theta for ridge in ridges])
        width = np.array([compute_confidence_width(ridge.statistics.count) for ridge in ridges])
        server = np.array([self.servers[cluster[0]] for cluster in local])
        close = ~find_far_pairs(theta, width, self.rule.alpha_2) & (server[:, None] != server[None, :])
        merged = find_components(close, np.arange(len(local)))
        return [np.sort(np.concatenate([local[cluster] for cluster in part])) for part in merged]
