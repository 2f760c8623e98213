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

    def begin(self, dimension: int, lambda_: float) -> "Personal":
        """An agent that has seen nothing."""
        return Personal(dimension, lambda_)


class Personal:
    """The personal part of one agent: all that it ever saw, and theta_u. Neither leaves the agent."""

    def __init__(self, dimension: int, lambda_: float) -> None:
        self.lambda_ = lambda_
        self.seen = Statistics.zero(dimension)
        self.theta = np.zeros(dimension)

    def observe(self, listed: NDArray[np.float32], click: int | None) -> None:
        """Learn from one more round."""
        self.seen = self.seen.observe(listed, click)

    def partial(self, statistics: Statistics) -> Statistics:
        """The same data with partial rewards y - <theta_u, x>: what the shared part is fitted to."""
        return subtract_explained(statistics, self.theta)

    def beside(self, shared: Ridge) -> Estimate:
        """Fit theta_u to y - <theta_g, x>; decide with both parts."""
        own = Ridge(subtract_explained(self.seen, shared.theta), self.lambda_)
        self.theta = own.theta
        return stack_estimates(shared, own)


def subtract_explained(statistics: Statistics, theta: NDArray[np.float64]) -> Statistics:
    """Statistics of the rewards that are left when <theta, x> is taken off each."""
    explained = multiply(statistics.gram, theta)
    return Statistics(
        statistics.gram, statistics.moment - explained, statistics.count, statistics.clicks, statistics.rounds
    )
