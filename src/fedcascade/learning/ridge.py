"""Ridge regression on sufficient statistics: estimate, width of an item, log-determinant."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import POSITIVE, require
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.linear import Matrix, Vector


class LinearEstimate:
    """An estimate of theta, with a root R for which the width of x is the length of R x, and a log-determinant.

    If theta has a personal part, ``own_root`` is its root, and widths add up.
    """

    __slots__ = ("lambda_", "log_det", "own_root", "root", "theta")

    def __init__(
        self, theta: Vector, root: Matrix, log_det: float, lambda_: float, own_root: Matrix | None = None
    ) -> None:
        self.theta, self.root, self.log_det, self.lambda_, self.own_root = theta, root, log_det, lambda_, own_root

    def width(self, features: ArrayLike) -> Vector:
        """Compute ||x|| in the norm of Sigma^-1 for every row of ``features``."""
        columns = to_columns(features)
        roots = [root for root in (self.root, self.own_root) if root is not None]
        width: Vector = np.sum([np.sqrt(linear.compute_squared_widths(root, columns)) for root in roots], axis=0)
        return width

    def scores(self, features: ArrayLike, beta: float) -> Vector:
        """Compute U(i) = min(<theta, x> + beta ||x||, 1) for every row of ``features`` (Algorithm 2, line 2)."""
        return linear.compute_ucb_scores(self.theta, self.root, beta, to_columns(features), self.own_root)


class Ridge(LinearEstimate):
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
        """Compute the growth of the log-determinant by a buffer, ln det(Sigma + gram) - ln det(Sigma)."""
        return compute_log_det(self.statistics.gram + buffer.gram, self.lambda_) - self.log_det


def compute_log_det(gram: NDArray[np.float64], lambda_: float) -> float:
    """Compute ln det(lambda I + gram)."""
    return float(linear.compute_log_det(linear.factorise_shifted(gram, float(lambda_))))


def to_columns(features: ArrayLike) -> NDArray[np.float32]:
    """Convert features from one row per item to columns for compiled code; no copy if stored that way."""
    return np.ascontiguousarray(np.asarray(features, np.float32).T)
