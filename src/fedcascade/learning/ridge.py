"""Ridge regression on sufficient statistics: estimate, width of an item, log-determinant."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import POSITIVE, require
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear


class Estimate:
    """What an agent decides with: theta, the root whose product with x has the length ||x||, and a log-determinant."""

    __slots__ = ("lambda_", "log_det", "root", "theta")

    def __init__(self, theta: NDArray[np.float64], root: NDArray[np.float64], log_det: float, lambda_: float) -> None:
        self.theta = theta
        self.root = root
        self.log_det = log_det
        self.lambda_ = lambda_

    def width(self, features: ArrayLike) -> NDArray[np.float64]:
        """||x|| in the norm of Sigma^-1, for every row of ``features``."""
        return np.sqrt(linear.compute_squared_widths(self.root, to_columns(features)))

    def scores(self, features: ArrayLike, beta: float) -> NDArray[np.float64]:
        """U(i) = min(<theta, x> + beta ||x||, 1) for every row of ``features`` (Algorithm 2, line 2)."""
        return linear.compute_ucb_scores(self.theta, self.root, beta, to_columns(features))


class Ridge(Estimate):
    """The ridge estimate from statistics: Sigma = lambda I + gram, theta = Sigma^-1 moment.

    >>> ridge = Ridge(Statistics.zero(2), lambda_=4.0)
    >>> ridge.theta.tolist(), float(ridge.width([[1.0, 0.0]])[0]), round(ridge.log_det, 6)
    ([0.0, 0.0], 0.5, 2.772589)
    """

    __slots__ = ("statistics",)

    def __init__(self, statistics: Statistics, lambda_: float) -> None:
        POSITIVE.check("lambda", lambda_)
        sound = bool(linear.is_finite_symmetric(statistics.gram, statistics.moment))
        require(sound, "gram and moment must be finite, and gram symmetric")
        theta, root, log_det = linear.solve_ridge(statistics.gram, statistics.moment, float(lambda_))
        require(math.isfinite(log_det), "gram must be positive semi-definite")
        super().__init__(theta, root, log_det, lambda_)
        self.statistics = statistics

    def growth(self, buffer: Statistics) -> float:
        """ln det(Sigma + gram of the buffer) - ln det(Sigma): how much the buffer would teach."""
        return compute_log_det(self.statistics.gram + buffer.gram, self.lambda_) - self.log_det


def compute_log_det(gram: NDArray[np.float64], lambda_: float) -> float:
    """ln det(lambda I + gram)."""
    return float(linear.compute_log_det(linear.cholesky(linear.add_diagonal(gram, float(lambda_)))))


def stack_estimates(shared: Ridge, personal: Ridge) -> Estimate:
    """Theta and width of [theta_g; theta_u] for items whose features are [x; x]: squared widths add up."""
    root = linear.combine_roots(shared.root, personal.root)
    return Estimate(shared.theta + personal.theta, root, shared.log_det, shared.lambda_)


def to_columns(features: ArrayLike) -> NDArray[np.float32]:
    """Features with one row per item as columns, which compiled code reads; no copy if they are stored that way."""
    return np.ascontiguousarray(np.asarray(features, np.float32).T)
