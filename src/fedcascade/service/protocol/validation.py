"""Bad uploads are refused by theorem, so no honest agent is ever refused.

Let X be the examined items, one row each, and c the clicks, 0 or 1. Then gram = X^T X and moment = X^T c. With
||x|| <= 1 the trace of gram is at most the count. For every e > 0, moment^T (gram + e I)^-1 moment <= ||c||^2 =
clicks; for a moment outside the range of gram the left side grows like 1/e. So one factorisation of gram + e I
says whether gram is positive semi-definite, and whether the moment can belong to it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.agent import LARGEST_SQUARE
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit, jit_inline

# Sums of n products in float64 err by less than n 2^-53 of the trace; e is far above that.
SHIFT = 1e-8
SLACK = 1e-6


@jit_inline
def most_trace(count: int) -> float:
    """The largest trace of the gram of so many items."""
    return float(count * LARGEST_SQUARE * (1 + SLACK))


@jit_inline
def most_leverage(clicks: int) -> float:
    """The largest leverage of so many clicks."""
    return float(clicks * (1 + SLACK) + SLACK)


@jit
def examined(gram: linear.Matrix, moment: linear.Vector) -> tuple[float, float, float]:
    """The trace of gram; with e as above, ln det(gram + e I) and moment^T (gram + e I)^-1 moment."""
    trace = 0.0
    for i in range(moment.size):
        trace += gram[i, i]
    theta, _, log_det = linear.solve_ridge(gram, moment, SHIFT * max(trace, SLACK))
    leverage = 0.0
    for i in range(moment.size):
        leverage += moment[i] * theta[i]
    return trace, log_det, leverage


@jit
def possible(numbers: linear.Matrix, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which uploads pass ``check_upload``, one in each row: triangle and moment; count, clicks and rounds."""
    rows, size = numbers.shape
    d = int((np.sqrt(9.0 + 8.0 * size) - 3.0) / 2.0 + 0.5)  # d (d + 3) / 2 numbers
    gram, found = np.empty((d, d)), np.empty(rows, np.bool_)
    for row in range(rows):
        at = 0
        for i in range(d):
            for j in range(i, d):
                gram[i, j] = gram[j, i] = numbers[row, at]
                at += 1
        found[row] = _is_possible(gram, numbers[row, at:], counts[row, 0], counts[row, 1], counts[row, 2])
    return found


@jit
def _is_possible(gram: linear.Matrix, moment: linear.Vector, count: int, clicks: int, rounds: int) -> bool:
    if not (0 <= clicks <= rounds <= count and rounds > 0 and linear.is_finite_symmetric(gram, moment)):
        return False
    trace, log_det, leverage = examined(gram, moment)
    return bool(
        trace <= most_trace(count)
        and np.isfinite(log_det)
        and np.isfinite(leverage)
        and leverage <= most_leverage(clicks)
    )


def check_upload(statistics: Statistics, dimension: int) -> None:
    """Refuse statistics that no data can have."""
    statistics.check(dimension)
    count, clicks, rounds = statistics.count, statistics.clicks, statistics.rounds
    if not clicks <= rounds <= count:
        raise ValueError(f"counts must satisfy clicks <= rounds <= count, got {clicks}, {rounds}, {count}")
    require(rounds > 0, "an upload must hold at least one round")
    trace, log_det, leverage = examined(statistics.gram, statistics.moment)
    if not trace <= most_trace(count):
        raise ValueError(f"the trace of gram must be at most the count ({count}), got {trace:.6g}")
    require(math.isfinite(log_det), "gram must be positive semi-definite")
    if not (math.isfinite(leverage) and leverage <= most_leverage(clicks)):
        wanted = f"moment^T gram^+ moment <= clicks ({clicks})"
        raise ValueError(f"moment must lie in the range of gram with {wanted}, got {leverage:.6g}")
