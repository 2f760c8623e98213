"""Compiled screening: single-precision scores of a round's items, to find those that may be in the list."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import simd, streams
from fedcascade.numerics.jit import jit_inline, jit_within
from fedcascade.numerics.linear import Matrix, Vector

Indices = NDArray[np.int64]
Singles = NDArray[np.float32]
FEW_CANDIDATES = 16  # up to this many candidates are compared and get tie-breaks one by one
TRUTH, SCORE = 0, 1  # indices into Scratch.reached
ROOT_ROWS = 4  # rows of the root that are multiplied at a time
_ZERO, _LOWEST = np.float32(0.0), np.float32(-np.inf)
_BIT = np.uint64(1)
FLOOR = -1e30  # below all scores, above the padding of -inf


class Scratch(NamedTuple):
    """The workspace of a thread for one round. Rows of items are padded to whole lanes, factors with zeros."""

    draft: streams.WordBuffer
    columns: Singles  # features, one column per item
    flat_columns: Singles  # the memory of ``columns``, row by row
    true_mean: Singles
    score: Singles
    squared_width: Singles
    theta: Singles
    root: Singles  # row by row
    true_theta: Singles
    reached: NDArray[np.float64]  # a true mean (TRUTH) and a score (SCORE) that enough items reach
    best: NDArray[np.float64]
    candidates: Indices
    value: NDArray[np.float64]
    close: Indices
    gathered: Singles
    exact_score: NDArray[np.float64]
    upper: NDArray[np.float64]
    moment: NDArray[np.float64]
    tie_words: NDArray[np.uint32]
    ties: NDArray[np.uint32]
    selected: NDArray[np.intp]  # the list
    chances: NDArray[np.float64]  # propensity of each listed item given those above it, with exploration
    listed_features: Singles
    clicked: NDArray[np.bool_]  # clicked positions, for models with several clicks


def make_scratch(dimension: int, most_items: int, length: int) -> Scratch:
    """Make the workspace for the largest possible round."""
    items, rows = _pad(most_items, simd.MASK_BITS), dimension + dimension % 2
    width = _pad(most_items, simd.LANES)
    flat = _allocate(rows * width)
    return Scratch(
        draft=streams.make_word_buffer(),
        columns=flat.reshape(rows, width),
        flat_columns=flat,
        true_mean=_allocate(items),
        score=_allocate(items),
        squared_width=_allocate(items),
        theta=_allocate(rows),
        root=_allocate(_pad(dimension, ROOT_ROWS) * rows),
        true_theta=_allocate(rows),
        reached=np.empty(2, np.float64),
        best=np.empty(length, np.float64),
        candidates=np.empty(items, np.int64),
        value=np.empty(items, np.float64),
        close=np.empty(items, np.int64),
        gathered=np.zeros((dimension, simd.LANES), np.float32),
        exact_score=np.empty((3, simd.LANES)),
        upper=np.empty((dimension, dimension)),
        moment=np.empty(dimension),
        tie_words=np.empty(most_items, np.uint32),
        ties=np.zeros(items, np.uint32),
        selected=np.empty(length, np.intp),
        chances=np.ones(length),
        listed_features=np.empty((length, dimension), np.float32),
        clicked=np.zeros(length, np.bool_),
    )


@jit_within
def _pad(count: int, to: int) -> int:
    """Round ``count`` up to a multiple of ``to``."""
    return (count + to - 1) // to * to


def _allocate(count: int) -> Singles:
    """Allocate ``count`` zeros at a cache line, followed by one vector of zeros."""
    return simd.align_to_cache_line(np.zeros(count + simd.LANES, np.float32))


@jit_inline
def load_decision(theta: Vector, root: Matrix, beta: float, scratch: Scratch) -> float:
    """Convert an agent's decision to single precision; return the error margin of its scores.

    With u = 2^-24, rounding the factors and summing d terms in any order changes a score by less than
    2 (d + 3) u (||theta|| + beta ||root||); the margin is twice that.
    """
    d, length, frobenius, rows = theta.size, 0.0, 0.0, scratch.theta.size
    for j in range(d):
        length += theta[j] * theta[j]
        scratch.theta[j] = theta[j]
        for k in range(j + 1):
            frobenius += root[j, k] * root[j, k]
            scratch.root[j * rows + k] = root[j, k]
    return bound_error(d, np.sqrt(length) + beta * np.sqrt(frobenius))


@jit_inline
def bound_error(d: int, size: float) -> float:
    """Bound the error of a single-precision score; ``size`` is ||theta|| plus beta times ||root||."""
    return float(4.0 * (d + 4) * 2.0**-24 * size)


@jit_inline
def screen_items(items: int, length: int, beta: float, scratch: Scratch) -> None:
    """Compute true means, unclipped scores and squared widths of all items in single precision.

    ``scratch.reached`` gets a true mean and a score that at least ``length`` items reach: the length-th highest of the
    lanes' maxima.
    """
    for at in range(_pad(items, simd.LANES), _pad(items, simd.MASK_BITS), simd.LANES):
        simd.store(scratch.score, at, simd.broadcast(_LOWEST))
        simd.store(scratch.true_mean, at, simd.broadcast(_LOWEST))
    size, beta_lanes = scratch.theta.size, simd.broadcast(np.float32(beta))
    width, d = scratch.columns.shape[1], scratch.listed_features.shape[1]
    best_truth = best_score = simd.broadcast(_LOWEST)
    for at in range(0, items, simd.LANES):
        mean, truth = _compute_two_means(scratch.flat_columns, at, width, scratch.theta, scratch.true_theta)
        square = _compute_squared_widths(scratch.flat_columns, at, width, d, size, scratch.root)
        score = simd.keep_first(simd.multiply_add(beta_lanes, simd.sqrt(square), mean), items - at)
        truth = simd.keep_first(truth, items - at)
        best_truth, best_score = simd.maximum(truth, best_truth), simd.maximum(score, best_score)
        simd.store(scratch.squared_width, at, square)
        simd.store(scratch.score, at, score)
        simd.store(scratch.true_mean, at, truth)
    scratch.reached[SCORE] = _find_nth_highest(best_score, length)
    scratch.reached[TRUTH] = _find_nth_highest(best_truth, length)


@jit_inline
def insert_descending(best: Vector, value: float) -> None:
    """Insert a value into ``best``, the largest values in descending order, without branches."""
    for place in range(best.size):
        previous = best[place]
        best[place] = max(previous, value)
        value = min(previous, value)


@jit_inline
def _compute_two_means(flat: Singles, at: int, width: int, theta: Singles, true_theta: Singles) -> tuple[Any, Any]:
    """Return <theta, x> and <true theta, x> of a vector of items; sums even and odd rows in parallel."""
    even = odd = true_even = true_odd = simd.broadcast(_ZERO)
    for k in range(0, theta.size, 2):
        x, y = simd.load(flat, k * width + at), simd.load(flat, (k + 1) * width + at)
        even = simd.multiply_add(simd.load_broadcast(theta, k), x, even)
        true_even = simd.multiply_add(simd.load_broadcast(true_theta, k), x, true_even)
        odd = simd.multiply_add(simd.load_broadcast(theta, k + 1), y, odd)
        true_odd = simd.multiply_add(simd.load_broadcast(true_theta, k + 1), y, true_odd)
    return simd.add(even, odd), simd.add(true_even, true_odd)


@jit_inline
def _compute_squared_widths(flat: Singles, at: int, width: int, d: int, size: int, root: Singles) -> Any:
    """Return ||root x||^2 of a vector of items; sums four rows of the root in parallel."""
    total = simd.broadcast(_ZERO)
    for j in range(0, d, ROOT_ROWS):
        a = b = c = e = simd.broadcast(_ZERO)
        row = j * size
        for k in range(min(j + ROOT_ROWS, size)):
            x = simd.load(flat, k * width + at)
            a = simd.multiply_add(simd.load_broadcast(root, row + k), x, a)
            b = simd.multiply_add(simd.load_broadcast(root, row + size + k), x, b)
            c = simd.multiply_add(simd.load_broadcast(root, row + 2 * size + k), x, c)
            e = simd.multiply_add(simd.load_broadcast(root, row + 3 * size + k), x, e)
        total = simd.multiply_add(b, b, simd.multiply_add(a, a, total))
        total = simd.multiply_add(e, e, simd.multiply_add(c, c, total))
    return total


@jit_inline
def _find_nth_highest(best: Any, length: int) -> float:
    """Return the ``length``-th highest number of the lanes; -inf if there are fewer."""
    reached, rest = simd.reduce_max(best), best
    while reached > _LOWEST and simd.count_at_least(best, reached) < length:
        rest = simd.keep_below(rest, reached)
        reached = simd.reduce_max(rest)
    return float(reached)


@jit_inline
def collect_reaching(score: Singles, items: int, floor: float, candidates: Indices) -> int:
    """Write the items whose score reaches the floor into ``candidates``, in order; return their number."""
    low = np.float32(max(floor - 1e-6 * max(1.0, abs(floor)), FLOOR))  # rounding must not raise the floor
    count = 0
    for at in range(0, items, simd.MASK_BITS):
        bits = simd.mask_at_least(score, at, low)
        while bits != 0:
            candidates[count] = at + simd.find_lowest_bit(bits)
            count += 1
            bits &= bits - _BIT
    return count
