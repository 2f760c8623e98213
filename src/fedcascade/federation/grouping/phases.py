"""Phase-based FCLUB: local servers pool their users, and a global server merges clusters when a phase starts.

A *cell* is the part of a cluster at one local server. Sharing inside a cell is free. Between the cells of a cluster and
the global server, determinants decide about uploads and downloads.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, require, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.graph.complete import ALPHA_D, find_components, find_far_pairs
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings, compute_confidence_width, require_places
from fedcascade.federation.messages import PUSH_RATIO, UPLOAD_RATIO, Cause, Messages, Upload
from fedcascade.learning.ridge import Ridge, compute_log_det
from fedcascade.learning.statistics import Statistics

MAX_PHASE = 60  # of a restored state: 2^60 rounds


@dataclass(frozen=True, kw_only=True)
class SplitAndMerge(Part):
    """Phase-based FCLUB: local servers split their users, and a global server merges similar clusters.

    Phases are 1, 2, 4, ... rounds long. When one starts, each local server deletes refuted edges between its users. The
    global server then merges clusters whose centres are within ``alpha_2`` confidence widths. Widths count rounds, not
    items.
    """

    alpha_d: float = constant(1.5, **ALPHA_D)
    alpha_2: float = constant(
        2.0, meaning="clusters are merged within this many confidence widths", symbol="alpha_2", range=POSITIVE
    )
    local_servers: int = constant(4, meaning="number of local servers", range=whole_numbers(1))
    gamma_u: float = constant(1.01, symbol="U", **UPLOAD_RATIO)
    gamma_d: float = constant(1.01, symbol="D", **PUSH_RATIO)

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        """Start with one cluster: without data, all centres are equal."""
        return PhasePartition(holdings, self)


class PhasePartition(Partition):
    """The state of phase-based FCLUB. Cells are numbered cluster * local_servers + local server."""

    state_names = (*Partition.state_names, "edges", "servers", "phase", "known", "unsent", "shared")
    free_names = ("pools", "known", "unsent", "shared")

    def __init__(self, holdings: Holdings, rule: SplitAndMerge) -> None:
        super().__init__(holdings, np.zeros(len(holdings), np.int64))
        self.rule = rule
        self.servers = np.arange(len(holdings)) % rule.local_servers
        together = self.servers[:, None] == self.servers[None, :]
        self.edges = together & ~np.eye(len(holdings), dtype=np.bool_)
        self.phase = 0
        self.known: dict[int, Statistics] = {}  # the statistics that a cell decides with
        self.unsent: dict[int, Statistics] = {}  # the part of ``known`` that the global server lacks
        self.shared: dict[int, Statistics] = {}  # the global server's sum of each cluster
        self._sent_log_det: dict[int, float] = {}
        self._uploads: list[Upload] = []
        self._downloads: list[tuple[int, Statistics]] = []
        self._share_everything()

    def answer(self, agent: int) -> Statistics:
        return self.known[self._get_cell(agent)]

    def take_tier_messages(self) -> Messages:
        messages = tuple(self._uploads), tuple(self._downloads)
        self._uploads, self._downloads = [], []
        return messages

    def add(self, agent: int, statistics: Statistics) -> None:
        """Add an upload to its cell, upload the cell if it has grown enough, and start a phase if one is over."""
        super().add(agent, statistics)
        cell = self._get_cell(agent)
        self.known[cell] += statistics
        self.unsent[cell] += statistics
        if self._compute_log_det(self.known[cell]) - self._get_sent_log_det(cell) > math.log(self.rule.gamma_u):
            self._upload(agent, cell)
        rounds = int(self.holdings.rounds.sum())
        if rounds >= 2 ** (self.phase + 1) - 1:  # the last round of the phase: 1, 3, 7, 15, ...
            self._start_phase()
            self.phase = (rounds + 1).bit_length() - 1

    def forget(self, agent: int) -> None:
        raise ValueError(f"agent {agent} cannot be forgotten: local servers keep sums of all their agents")

    def _get_cell(self, agent: int) -> int:
        return int(self.labels[agent] * self.rule.local_servers + self.servers[agent])

    def _get_sent_log_det(self, cell: int) -> float:
        """Return ln det of the part of a cell's statistics that the global server has."""
        if cell not in self._sent_log_det:
            self._sent_log_det[cell] = self._compute_log_det(self.known[cell] - self.unsent[cell])
        return self._sent_log_det[cell]

    def _compute_log_det(self, statistics: Statistics) -> float:
        return compute_log_det(statistics.gram, self.holdings.lambda_)

    def check_state(self) -> None:
        super().check_state()
        servers = self.rule.local_servers
        require_places("groups.servers", self.servers, servers)
        require(0 <= self.phase <= MAX_PHASE, f"groups.phase must be in 0..{MAX_PHASE}, got {self.phase}")
        self.check_sums("shared", self.shared, np.unique(self.labels))
        for name in ("known", "unsent"):
            self.check_sums(name, getattr(self, name), np.unique(self.labels * servers + self.servers))

    def _upload(self, agent: int, cell: int) -> None:
        """Send the unsent statistics of a cell, and push to every cell that is too far behind."""
        label = int(self.labels[agent])
        sent, self.unsent[cell] = self.unsent[cell], Statistics.zero(self.holdings.dimension)
        self.shared[label] += sent
        self._sent_log_det.pop(cell)
        self._uploads.append(Upload(agent=agent, sequence=0, cause=Cause.DETERMINANT, statistics=sent))
        level = self._compute_log_det(self.shared[label]) - math.log(self.rule.gamma_d)
        for other in self.known:
            if other // self.rule.local_servers == label and self._get_sent_log_det(other) < level:
                self._push(other)

    def _push(self, cell: int) -> None:
        label, server = divmod(cell, self.rule.local_servers)
        member = int(((self.labels == label) & (self.servers == server)).argmax())
        statistics = self.shared[label]
        self.known[cell] = statistics + self.unsent[cell]
        self._sent_log_det.pop(cell, None)
        self._downloads.append((member, statistics))

    def _start_phase(self) -> None:
        """Split clusters at local servers, merge them globally, and synchronise all cells."""
        held = self.holdings
        self.edges &= ~find_far_pairs(held.theta, _compute_widths(held.rounds), self.rule.alpha_d)
        local = find_components(self.edges, np.arange(len(held)))
        totals = [held.total(cluster) for cluster in local]
        for cluster, total in zip(local, totals, strict=True):
            sent = Upload(agent=int(cluster[0]), sequence=0, cause=Cause.SYNCHRONISATION, statistics=total)
            self._uploads.append(sent)
        self.regroup(self._merge_clusters(local, totals))
        self._share_everything()
        for cell in self.known:
            self._push(cell)

    def _merge_clusters(self, local: list[NDArray[np.intp]], totals: list[Statistics]) -> list[NDArray[np.intp]]:
        """Merge clusters whose centres are close, within and across local servers."""
        theta = np.array([Ridge(total, self.holdings.lambda_).theta for total in totals])
        width = _compute_widths(np.array([total.rounds for total in totals]))
        close = ~find_far_pairs(theta, width, self.rule.alpha_2)
        merged = find_components(close, np.arange(len(local)))
        return [np.sort(np.concatenate([local[cluster] for cluster in part])) for part in merged]

    def _share_everything(self) -> None:
        """Set the global server and every cell to the full sum of their cluster."""
        self.shared = dict(self.pools)
        cells = np.unique(self.labels * self.rule.local_servers + self.servers).tolist()
        self.known = {cell: self.shared[cell // self.rule.local_servers] for cell in cells}
        self.unsent = {cell: Statistics.zero(self.holdings.dimension) for cell in cells}
        self._sent_log_det = {}


def _compute_widths(rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.array([compute_confidence_width(int(count)) for count in rounds])
