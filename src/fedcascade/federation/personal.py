"""A part of theta that an agent keeps to itself, beside the one that all share: theta = [theta_g; theta_u]."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.ridge import Estimate, Ridge, stack_estimates
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.linear import multiply


@dataclass(frozen=True)
class AlternatingMinimisation:
    """Async-LinUCB-AM: each part is fitted to what the other leaves unexplained, in turns, one turn a round."""

    def begin(self, dimension: int, lambda_: float) -> "PersonalEstimate":
        return PersonalEstimate(dimension, lambda_)


class PersonalEstimate:
    """The personal part of one agent: the statistics of all its rounds, and theta_u. Neither leaves the agent."""

    def __init__(self, dimension: int, lambda_: float) -> None:
        self.lambda_ = lambda_
        self.statistics = Statistics.zero(dimension)
        self.theta = np.zeros(dimension)

    def observe(self, listed: NDArray[np.float32], click: int | None) -> None:
        self.statistics = self.statistics.observe(listed, click)

    def subtract_personal(self, statistics: Statistics) -> Statistics:
        """The statistics with partial rewards y - <theta_u, x>, to which the shared part is fitted."""
        return subtract_explained(statistics, self.theta)

    def fit_to(self, shared: Ridge) -> Estimate:
        """Fit theta_u to y - <theta_g, x>; returns the estimate of both parts together."""
        own = Ridge(subtract_explained(self.statistics, shared.theta), self.lambda_)
        self.theta = own.theta
        return stack_estimates(shared, own)


def subtract_explained(statistics: Statistics, theta: NDArray[np.float64]) -> Statistics:
    """The statistics with rewards y - <theta, x> instead of y."""
    moment = statistics.moment - multiply(statistics.gram, theta)
    return Statistics(statistics.gram, moment, statistics.count, statistics.clicks, statistics.rounds)
