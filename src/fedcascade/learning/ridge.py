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
    return float(linear.compute_log_det(linear.factorise_shifted(gram, float(lambda_))))


class PairEstimate(Estimate):
    """The estimate of two parts of theta that share their features: thetas add up, and so do widths."""

    __slots__ = ("own_root",)

    def __init__(self, shared: Estimate, own_root: NDArray[np.float64]) -> None:
        super().__init__(shared.theta, shared.root, shared.log_det, shared.lambda_)
        self.own_root = own_root

    def width(self, features: ArrayLike) -> NDArray[np.float64]:
        own: NDArray[np.float64] = np.sqrt(linear.compute_squared_widths(self.own_root, to_columns(features)))
        return super().width(features) + own

    def scores(self, features: ArrayLike, beta: float) -> NDArray[np.float64]:
        return linear.compute_pair_scores(self.theta, self.root, self.own_root, beta, to_columns(features))


def pair_estimates(shared: Ridge, own: Ridge) -> PairEstimate:
    """The estimate of a shared part and an own one, each theta kept to length 1."""
    theta = linear.limit_length(shared.theta) + linear.limit_length(own.theta)
    return PairEstimate(Estimate(theta, shared.root, shared.log_det, shared.lambda_), own.root)


def to_columns(features: ArrayLike) -> NDArray[np.float32]:
    """Features with one row per item as columns, which compiled code reads; no copy if they are stored that way."""
    return np.ascontiguousarray(np.asarray(features, np.float32).T)
