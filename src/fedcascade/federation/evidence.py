"""Grouping by evidence: agents start apart and join where the data say that one theta explains both.

The evidence is the log Bayes factor of 'one theta' against 'two', each theta ~ N(0, tau^2 I) and clicks with
noise sigma^2. With l = sigma^2 / tau^2 the evidence of statistics (S, b) is, up to what cancels,

    E(S, b) = b^T (S + l I)^-1 b / (2 sigma^2) - (ln det(S + l I) - d ln l) / 2,

and E(S_1 + S_2, b_1 + b_2) - E(S_1, b_1) - E(S_2, b_2) is 0 without data, grows like (d/2) ln T for equals
and falls without bound for unequals. There is no gap between clusters to know.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedcascade.checks import positive
from fedcascade.federation.grouping import Groups, Labels
from fedcascade.federation.holdings import Holdings
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

NOBODY = -1  # the label of an agent between two groups


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Agents start apart; at each of its uploads an agent joins the group with the most evidence, or none.

    ``hurdle`` is the evidence that it takes to join, ``variance`` the noise of a click, ``prior`` is l.
    """

    hurdle: float = 4.0
    variance: float = 0.2
    prior: float = 4.0

    def __post_init__(self) -> None:
        positive("variance", self.variance)
        positive("prior", self.prior)

    def begin(self, holdings: Holdings, truth: Labels | None) -> Groups:  # noqa: ARG002
        """Everybody apart."""
        return EvidenceGroups(holdings, hurdle=self.hurdle, variance=self.variance, prior=self.prior)


def evidence(statistics: Statistics, *, variance: float, prior: float) -> float:
    """E(S, b)."""
    ridge = Ridge(statistics, prior)
    fit = float(statistics.moment @ ridge.theta) / variance
    return 0.5 * (fit - ridge.log_det + statistics.dimension * math.log(prior))


class EvidenceGroups(Groups):
    """The state of a grouping by evidence: a partition in which an agent may move at each of its uploads."""

    def __init__(self, holdings: Holdings, *, hurdle: float, variance: float, prior: float) -> None:
        super().__init__(holdings, np.arange(len(holdings), dtype=np.int64))
        self.hurdle = hurdle
        self.variance = variance
        self.prior = prior
        self._known = dict.fromkeys(self._pooled, 0.0)

    def add(self, agent: int, statistics: Statistics) -> None:  # noqa: ARG002 (the holdings have it already)
        """Take an upload: the agent leaves its group and goes where the evidence is, before it is answered."""
        left = int(self.labels[agent])
        self.labels[agent] = NOBODY
        self._sum_up(left)
        joined = self._best_group(self.holdings[agent])
        self.labels[agent] = joined
        self._sum_up(joined)

    def join(self) -> None:
        """A newcomer starts apart, like everybody."""
        label = self._unused()
        self.place(label)
        self._sum_up(label)

    def forget(self, agent: int) -> None:
        """Without the agent, its group knows less."""
        label = int(self.labels[agent])
        super().forget(agent)
        self._sum_up(label)

    def _best_group(self, own: Statistics) -> int:
        """The group with the most evidence that ``own`` belongs to it, or a fresh one."""
        alone = self._evidence(own)
        gains = {
            label: self._evidence(own + pooled) - alone - self._known[label]
            for label, pooled in self._pooled.items()
            if pooled.count > 0
        }
        best = max(gains, key=gains.__getitem__, default=NOBODY)
        if best != NOBODY and gains[best] > self.hurdle:
            return best
        return self._unused()

    def _unused(self) -> int:
        return next(label for label in range(len(self.labels) + 1) if label not in self._pooled)

    def _sum_up(self, label: int) -> None:
        """Sum a group anew, so that coming and going leaves no rounding behind; an empty one goes."""
        members = np.flatnonzero(self.labels == label)
        self._pooled.pop(label, None)
        self._known.pop(label, None)
        if members.size:
            self._pooled[label] = self.holdings.total(members)
            self._known[label] = self._evidence(self._pooled[label])

    def _evidence(self, statistics: Statistics) -> float:
        return evidence(statistics, variance=self.variance, prior=self.prior)
