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
def bound_trace(count: int) -> float:
    """The largest trace that the gram of ``count`` items can have."""
    return float(count * LARGEST_SQUARE * (1 + SLACK))


@jit_inline
def bound_leverage(clicks: int) -> float:
    """The largest leverage that a moment of ``clicks`` clicks can have."""
    return float(clicks * (1 + SLACK) + SLACK)


@jit
def measure_gram(gram: linear.Matrix, moment: linear.Vector) -> tuple[float, float, float]:
    """The trace of gram; with e as above, ln det(gram + e I) and the leverage moment^T (gram + e I)^-1 moment."""
    trace = 0.0
    for i in range(moment.size):
        trace += gram[i, i]
    theta, _, log_det = linear.solve_ridge(gram, moment, SHIFT * max(trace, SLACK))
    leverage = 0.0
    for i in range(moment.size):
        leverage += moment[i] * theta[i]
    return trace, log_det, leverage


@jit
def are_possible(numbers: linear.Matrix, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which uploads pass ``check_upload``.

    Args:
        numbers: an upload in each row: upper triangle of the gram, then moment.
        counts: its count, clicks and rounds.
    """
    rows, size = numbers.shape
    d = int((np.sqrt(9.0 + 8.0 * size) - 3.0) / 2.0 + 0.5)  # d (d + 3) / 2 numbers
    gram, possible = np.empty((d, d)), np.empty(rows, np.bool_)
    for row in range(rows):
        at = 0
        for i in range(d):
            for j in range(i, d):
                gram[i, j] = gram[j, i] = numbers[row, at]
                at += 1
        possible[row] = _is_possible(gram, numbers[row, at:], counts[row, 0], counts[row, 1], counts[row, 2])
    return possible


@jit
def _is_possible(gram: linear.Matrix, moment: linear.Vector, count: int, clicks: int, rounds: int) -> bool:
    if not (0 <= clicks <= rounds <= count and rounds > 0 and linear.is_finite_symmetric(gram, moment)):
        return False
    trace, log_det, leverage = measure_gram(gram, moment)
    is_finite = np.isfinite(log_det) and np.isfinite(leverage)
    return bool(is_finite and trace <= bound_trace(count) and leverage <= bound_leverage(clicks))


def check_upload(statistics: Statistics, dimension: int) -> None:
    """Raise ValueError with the reason if no data can have these statistics."""
    statistics.check(dimension)
    count, clicks, rounds = statistics.count, statistics.clicks, statistics.rounds
    if not clicks <= rounds <= count:
        raise ValueError(f"counts must satisfy clicks <= rounds <= count, got {clicks}, {rounds}, {count}")
    require(rounds > 0, "an upload must hold at least one round")
    trace, log_det, leverage = measure_gram(statistics.gram, statistics.moment)
    if not trace <= bound_trace(count):
        raise ValueError(f"the trace of gram must be at most the count ({count}), got {trace:.6g}")
    require(math.isfinite(log_det), "gram must be positive semi-definite")
    if not (math.isfinite(leverage) and leverage <= bound_leverage(clicks)):
        wanted = f"moment^T gram^+ moment <= clicks ({clicks})"
        raise ValueError(f"moment must lie in the range of gram with {wanted}, got {leverage:.6g}")
