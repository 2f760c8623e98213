"""Checks of uploads that hold for all honest data by theorem, so no honest agent is ever refused.

Let X be the examined items, one row each, and y the rewards: 0 without a click, and in [0, 1] with one. Then gram =
X^T X and moment = X^T y. With ||x|| <= 1 the trace of gram is at most the count. For every s > 0, moment^T (gram + s
I)^-1 moment <= ||y||^2 <= sum(y) <= clicks, where sum(y) is clicks minus the shortfall; for a moment outside the range
of gram the left side grows like 1/s. So one factorisation of gram + s I tests whether gram is positive semi-definite,
and whether the moment can belong to it.

A late reward corrects the moment of an earlier upload, so moment and shortfall of an upload with corrections are
bounded only together with the agent's earlier uploads: the theorem holds for the total (``corrects``). Totals of
uploads that pass alone pass too, because b^T S^+ b is subadditive.

Features and rewards are multiples of 2^-12, so an honest gram and moment are exact, and s need only cover the rounding
of this check itself: with unit roundoff u, factorising and solving in dimension d is exact for a gram that differs by
less than (d + 2)^2 u trace, which is s / 2. An accepted gram has no eigenvalue below -1.5 s, and s is a fixed share of
the trace.
Slack therefore adds up over uploads as the trace does, and not with their number: over ``LARGEST_TOTAL`` observations
it stays below half of ``find_smallest_lambda``. An agent may upload so many, and all others together have half of that
weight in an answer. Every such sum can therefore be factorised
(docs/decisions/0007-poisoning-upload-checks-and-bounded-influence.md).
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.privacy import LARGEST_SQUARE, PrivateUploads
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.grid import GRID
from fedcascade.numerics.jit import jit, jit_inline

REWARD_STEPS, STEPS = 1.0 / GRID, 1.0 / GRID**2  # grid steps per unit; gram and moment sum products of two numbers
ROUNDING = 2.0**-52  # two units of roundoff
SLACK = 1e-6  # relative tolerance of the bounds on trace and leverage


@jit_inline
def bound_trace(count: int) -> float:
    """Bound the trace of the gram of ``count`` items."""
    return float(count * LARGEST_SQUARE * (1 + SLACK))


@jit_inline
def bound_leverage(reward: float) -> float:
    """Bound the leverage of a moment of clicks with a sum of rewards."""
    return float(reward * (1 + SLACK) + SLACK)


@jit_inline
def compute_shift(trace: float, dimension: int) -> float:
    """Compute s, which covers the rounding of the check; a gram on the grid with a trace below one step is zero."""
    return float(ROUNDING * (dimension + 2) ** 2 * max(trace, 1.0 / STEPS))


def find_smallest_lambda(dimension: int) -> float:
    """Return the smallest lambda with which every sum of accepted uploads can be factorised.

    >>> round(find_smallest_lambda(20), 6)
    0.000215
    """
    return 4.0 * compute_shift(bound_trace(LARGEST_TOTAL), dimension)


@jit
def measure_gram(gram: linear.Matrix, moment: linear.Vector) -> tuple[float, float, float]:
    """Return the trace of gram, ln det(gram + s I) and the leverage moment^T (gram + s I)^-1 moment."""
    trace = 0.0
    for i in range(moment.size):
        trace += gram[i, i]
    upper = linear.factorise_shifted(gram, compute_shift(trace, moment.size))
    return trace, linear.compute_log_det(upper), linear.solve_factor_into(upper, moment.copy())


@jit
def is_on_grid(gram: linear.Matrix, moment: linear.Vector) -> bool:
    """Return whether all entries are multiples of their grid steps."""
    for i in range(moment.size):
        if np.floor(moment[i] * STEPS) != moment[i] * STEPS:
            return False
        for j in range(moment.size):
            if np.floor(gram[i, j] * STEPS) != gram[i, j] * STEPS:
                return False
    return True


@jit
def are_possible(numbers: linear.Matrix, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each upload whether it passes ``check_upload``.

    Rows of ``numbers`` are upper triangles of grams, moments and shortfalls; rows of ``counts`` are count, clicks and
    rounds.
    """
    rows, size = numbers.shape
    d = int((np.sqrt(1.0 + 8.0 * size) - 3.0) / 2.0 + 0.5)  # d (d + 3) / 2 + 1 numbers
    gram, moment, possible = np.empty((d, d)), np.empty(d), np.empty(rows, np.bool_)
    for row in range(rows):
        linear.unpack_sums(numbers[row], gram, moment)
        count, clicks, played = counts[row, 0], counts[row, 1], counts[row, 2]
        possible[row] = _is_possible(gram, moment, count, clicks, played, numbers[row, size - 1])
    return possible


@jit
def _is_possible(
    gram: linear.Matrix, moment: linear.Vector, count: int, clicks: int, rounds: int, shortfall: float
) -> bool:
    if not (0 <= clicks <= rounds <= count <= LARGEST_TOTAL and rounds > 0 and 0.0 <= shortfall <= clicks):
        return False
    if np.floor(shortfall * REWARD_STEPS) != shortfall * REWARD_STEPS:
        return False
    if not (linear.is_finite_symmetric(gram, moment) and is_on_grid(gram, moment)):
        return False
    trace, log_det, leverage = measure_gram(gram, moment)
    is_finite = np.isfinite(log_det) and np.isfinite(leverage)
    return bool(is_finite and trace <= bound_trace(count) and leverage <= bound_leverage(clicks - shortfall))


def check_upload(statistics: Statistics, dimension: int) -> None:
    """Raise ValueError if no data can have these statistics."""
    leverage = _check_items(statistics, dimension)
    clicks, shortfall = statistics.clicks, statistics.shortfall
    require(0 <= shortfall <= clicks, f"rewards must sum to 0 .. {clicks}, the clicks, got {statistics.reward:.6g}")
    if not (math.isfinite(leverage) and leverage <= bound_leverage(statistics.reward)):
        wanted = f"moment^T gram^+ moment <= the sum of rewards ({statistics.reward:g})"
        raise ValueError(f"moment must lie in the range of gram with {wanted}, got {leverage:.6g}")


def check_private_upload(privacy: PrivateUploads, statistics: Statistics, dimension: int) -> None:
    """Raise ValueError if data and noise have these statistics with a probability below 1e-9 only."""
    privacy.check(statistics, dimension)
    count = statistics.count
    require(count <= LARGEST_TOTAL, f"an upload must hold at most {LARGEST_TOTAL} observations, got {count}")
    require(statistics.shortfall == 0.0, "a private upload must not hold rewards beside its moment")
    is_even = is_on_grid(statistics.gram, statistics.moment)
    require(is_even, "gram and moment must hold multiples of 2^-24, noise included")


def _check_items(statistics: Statistics, dimension: int) -> float:
    """Raise ValueError if no items can have this gram and these counts; return the leverage of the moment."""
    statistics.check(dimension)
    count, clicks, rounds = statistics.count, statistics.clicks, statistics.rounds
    if not clicks <= rounds <= count:
        raise ValueError(f"counts must satisfy clicks <= rounds <= count, got {clicks}, {rounds}, {count}")
    require(rounds > 0, "an upload must hold at least one round")
    require(count <= LARGEST_TOTAL, f"an upload must hold at most {LARGEST_TOTAL} observations, got {count}")
    steps = "gram and moment must hold multiples of 2^-24: round features and rewards to multiples of 2^-12"
    is_even = statistics.shortfall * REWARD_STEPS == math.floor(statistics.shortfall * REWARD_STEPS)
    require(is_on_grid(statistics.gram, statistics.moment) and is_even, steps)
    trace, log_det, leverage = measure_gram(statistics.gram, statistics.moment)
    if not trace <= bound_trace(count):
        raise ValueError(f"the trace of gram must be at most the count ({count}), got {trace:.6g}")
    require(math.isfinite(log_det), "gram must be positive semi-definite")
    return leverage


def can_exist(statistics: Statistics) -> bool:
    """Return whether some data can have these statistics."""
    return _passes(check_upload, statistics)


def can_correct(statistics: Statistics) -> bool:
    """Return whether items can have this gram and these counts, so that earlier uploads may explain the moment."""
    return _passes(_check_items, statistics)


def _passes(check: Callable[[Statistics, int], object], statistics: Statistics) -> bool:
    try:
        check(statistics, statistics.dimension)
    except ValueError:
        return False
    return True


def corrects(statistics: Statistics, earlier: Statistics) -> bool:
    """Return whether some data can have these statistics after ``earlier`` ones whose rewards they may correct."""
    return can_correct(statistics) and can_exist(earlier + statistics)


@jit
def can_factorise(gram: linear.Matrix, added: linear.Matrix, lambda_: float) -> bool:
    """Return whether lambda I + gram + added has a Cholesky factor."""
    return bool(np.isfinite(linear.compute_log_det(linear.factorise_shifted(gram + added, lambda_))))
