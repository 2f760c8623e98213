"""Compiled scores of a round's items in single precision, to find those that may be in its list.

Most items are far from the list. Where an agent's widths have a known largest one, even their widths need not be
computed: a mean and that bound are enough.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import simd, streams
from fedcascade.numerics.jit import jit, jit_inline

FEW = 16  # up to so many candidates are treated one by one
TRUTH, SCORE = 0, 1  # places in Scratch.reached
ROWS = 4  # of the root are taken at a time
WORTH = 4  # a bound is worth its while if it leaves one item of so many
_ZERO, _LOWEST = np.float32(0.0), np.float32(-np.inf)
_NOT_YET = np.float32(-1.0)  # a squared width that was not computed
_BIT = np.uint64(1)
FLOOR = -1e30  # every score reaches it, and the padding does not


class Scratch(NamedTuple):
    """Room for one round of one thread. Rows of items are padded to whole lanes, factors with zeros."""

    draft: streams.Draft
    columns: NDArray[np.float32]
    flat: NDArray[np.float32]  # the same, row after row
    truth: NDArray[np.float32]
    mean: NDArray[np.float32]
    score: NDArray[np.float32]
    square: NDArray[np.float32]
    theta: NDArray[np.float32]
    slope: NDArray[np.float32]  # a squared width is at most bound_width + (last coordinate) <slope, x>
    bound_width: NDArray[np.float64]
    root: NDArray[np.float32]  # row after row
    turned: NDArray[np.float32]  # the root's columns, one after another
    true_theta: NDArray[np.float32]
    reached: NDArray[np.float64]  # a true weight and a score that enough items reach
    best: NDArray[np.float64]
    candidates: NDArray[np.int64]
    value: NDArray[np.float64]
    close: NDArray[np.int64]
    few: NDArray[np.float32]
    exact: NDArray[np.float64]
    upper: NDArray[np.float64]
    root_room: NDArray[np.float64]
    moments: NDArray[np.float64]
    words: NDArray[np.uint32]
    ties: NDArray[np.uint32]
    chosen: NDArray[np.intp]
    listed: NDArray[np.float32]


@jit
def make_scratch(dimension: int, most_items: int, length: int) -> Scratch:
    """Room for the largest round there can be."""
    items, rows = _padded(most_items, simd.MASK_BITS), dimension + dimension % 2
    width = _padded(most_items, simd.LANES)
    flat = _room(rows * width)
    return Scratch(
        draft=streams.make_draft(),
        columns=flat.reshape(rows, width),
        flat=flat,
        truth=_room(items),
        mean=_room(items),
        score=_room(items),
        square=_room(items),
        theta=_room(rows),
        slope=_room(rows),
        bound_width=np.full(1, np.inf),
        root=_room(_padded(dimension, ROWS) * rows),
        turned=_room(dimension * _padded(dimension, simd.LANES)),
        true_theta=_room(rows),
        reached=np.empty(2, np.float64),
        best=np.empty(length, np.float64),
        candidates=np.empty(items, np.int64),
        value=np.empty(items, np.float64),
        close=np.empty(items, np.int64),
        few=np.zeros((dimension, simd.LANES), np.float32),
        exact=np.empty((3, simd.LANES)),
        upper=np.empty((dimension, dimension)),
        root_room=np.empty((dimension, dimension)),
        moments=np.empty(dimension),
        words=np.empty(most_items, np.uint32),
        ties=np.zeros(items, np.uint32),
        chosen=np.empty(length, np.intp),
        listed=np.empty((length, dimension), np.float32),
    )


@jit_inline
def _padded(count: int, to: int) -> int:
    return (count + to - 1) // to * to


@jit
def _room(count: int) -> NDArray[np.float32]:
    return simd.align_to_cache_line(np.zeros(count + simd.LANES, np.float32))


@jit_inline
def load(
    theta: NDArray[np.float64], root: NDArray[np.float64], beta: float, bound_width: float, scratch: Scratch
) -> float:
    """Take an agent's decision over in single precision; returns how far a score there may be off.

    With u = 2^-24, rounding the factors and summing d terms in any order moves a score by less than
    2 (d + 3) u (||theta|| + beta ||root||); the margin is twice that. ``bound_width`` is that of
    ``linear.bound_width``, or infinite where it is not known.
    """
    d, length, frobenius, rows = theta.size, 0.0, 0.0, scratch.theta.size
    for j in range(d):
        length += theta[j] * theta[j]
        scratch.theta[j] = theta[j]
        for k in range(j + 1):
            frobenius += root[j, k] * root[j, k]
            scratch.root[j * rows + k] = root[j, k]
    scratch.bound_width[0] = np.inf
    if bound_width < np.inf:
        _load_bound(root, bound_width, scratch)
    return may_be_off(d, np.sqrt(length) + beta * np.sqrt(frobenius))


@jit_inline
def _load_bound(root: NDArray[np.float64], bound_width: float, scratch: Scratch) -> None:
    """Take over what bounds the squared width of x = (y, c), and the root as it is needed for single items.

    With R^T R = (A, b; b^T, g) it is y^T A y + 2 c <b, y> + g c^2. The first term is at most bound_width (1 - c^2),
    and b and g are the last row of R times its last number.
    """
    d, size, height = root.shape[0], 0.0, scratch.turned.size // root.shape[0]
    last = d - 1
    for k in range(d):
        for j in range(k, d):
            scratch.turned[k * height + j] = root[j, k]
        factor = 2.0 * root[last, last] * root[last, k] if k < last else root[last, last] ** 2 - bound_width
        scratch.slope[k] = factor
        size += factor * factor
    # Features may be longer than 1 by rounding, and all of this may be off; the bound must not be too low.
    scratch.bound_width[0] = (1.0 + 1e-5) * bound_width + may_be_off(d, np.sqrt(size) + bound_width)


@jit_inline
def may_be_off(d: int, size: float) -> float:
    """A bound on the error of single precision, ``size`` being the length of theta plus beta times that of the root."""
    return float(4.0 * (d + 4) * 2.0**-24 * size)


@jit_inline
def filter_items(items: int, length: int, beta: float, margin: float, scratch: Scratch) -> None:
    """True weights and scores of all items in single precision, not clipped, and squared widths.

    Also, of both weights and scores, a number that at least ``length`` items reach. The score of an item that cannot
    be in the list may be too high, though not so high that it seems to be in it, and its squared width is missing.
    """
    for at in range(_padded(items, simd.LANES), _padded(items, simd.MASK_BITS), simd.LANES):
        simd.store(scratch.score, at, simd.broadcast(_LOWEST))
        simd.store(scratch.truth, at, simd.broadcast(_LOWEST))
    if scratch.bound_width[0] == np.inf or not _score_few(items, length, beta, margin, scratch):
        _score_all(items, length, beta, scratch)


@jit_inline
def _score_all(items: int, length: int, beta: float, scratch: Scratch) -> None:
    """Everything; a number that enough items reach is, of the best in each lane, the length-th."""
    size, beta_lanes = scratch.theta.size, simd.broadcast(np.float32(beta))
    best_truth = best_score = simd.broadcast(_LOWEST)
    for at in range(0, items, simd.LANES):
        mean, truth = _two_sums(scratch.flat, at, scratch.columns.shape[1], scratch.theta, scratch.true_theta)
        square = _square(scratch.flat, at, scratch.columns.shape[1], scratch.listed.shape[1], size, scratch.root)
        score = simd.keep_first(simd.multiply_add(beta_lanes, simd.sqrt(square), mean), items - at)
        truth = simd.keep_first(truth, items - at)
        best_truth, best_score = simd.maximum(truth, best_truth), simd.maximum(score, best_score)
        simd.store(scratch.square, at, square)
        simd.store(scratch.score, at, score)
        simd.store(scratch.truth, at, truth)
    scratch.reached[SCORE], scratch.reached[TRUTH] = _highest(best_score, length), _highest(best_truth, length)


@jit_inline
def _score_few(items: int, length: int, beta: float, margin: float, scratch: Scratch) -> bool:
    """The same with widths of those items alone that may be in the list; returns whether they were few enough.

    The items with the highest bounds say what a list can reach. Who cannot reach it by its bound is not in it.
    """
    reached = _bound_all(items, length, beta, scratch)
    best = scratch.best[:length]
    best[:] = -np.inf
    for _ in range(2):
        found = reaching(scratch.score, items, min(reached, 1.0) - 3.0 * margin, scratch.candidates)
        if found * WORTH > items:
            return False
        _score_some(scratch.candidates[:found], np.float32(beta), best, scratch)
        reached = best[length - 1]
    scratch.reached[SCORE] = reached
    return True


@jit_inline
def _bound_all(items: int, length: int, beta: float, scratch: Scratch) -> float:
    """True weights, means, and scores that are too high; returns one of them that at least ``length`` items reach."""
    beta_lanes, bound_width = simd.broadcast(np.float32(beta)), simd.broadcast(np.float32(scratch.bound_width[0]))
    width, last = scratch.columns.shape[1], scratch.listed.shape[1] - 1
    best_truth = best_score = simd.broadcast(_LOWEST)
    for at in range(0, items, simd.LANES):
        mean = truth = slope = simd.broadcast(_ZERO)
        for k in range(scratch.theta.size):
            x = simd.load(scratch.flat, k * width + at)
            mean = simd.multiply_add(simd.load_broadcast(scratch.theta, k), x, mean)
            truth = simd.multiply_add(simd.load_broadcast(scratch.true_theta, k), x, truth)
            slope = simd.multiply_add(simd.load_broadcast(scratch.slope, k), x, slope)
        square = simd.multiply_add(simd.load(scratch.flat, last * width + at), slope, bound_width)
        score = simd.keep_first(simd.multiply_add(beta_lanes, simd.sqrt(square), mean), items - at)
        truth = simd.keep_first(truth, items - at)
        best_truth, best_score = simd.maximum(truth, best_truth), simd.maximum(score, best_score)
        simd.store(scratch.mean, at, mean)
        simd.store(scratch.square, at, simd.broadcast(_NOT_YET))
        simd.store(scratch.score, at, score)
        simd.store(scratch.truth, at, truth)
    scratch.reached[TRUTH] = _highest(best_truth, length)
    return _highest(best_score, length)


@jit_inline
def _score_some(which: NDArray[np.int64], beta: np.float32, best: NDArray[np.float64], scratch: Scratch) -> None:
    """Squared widths and scores of those that have none yet; ``best`` keeps the best of the scores."""
    width, d = scratch.columns.shape[1], scratch.listed.shape[1]
    for item in which:
        if scratch.square[item] < _ZERO:
            square = _square_of(scratch.flat, item, width, d, scratch.turned)
            score = scratch.mean[item] + beta * np.sqrt(square)
            scratch.square[item], scratch.score[item] = square, score
            insert(best, np.float64(score))


@jit_inline
def _square_of(flat: NDArray[np.float32], item: int, width: int, d: int, turned: NDArray[np.float32]) -> np.float32:
    """The squared length of root x for one item: sixteen rows of the root at a time."""
    total, height = simd.broadcast(_ZERO), turned.size // d
    for j in range(0, d, simd.LANES):
        part = simd.broadcast(_ZERO)
        for k in range(min(j + simd.LANES, d)):
            part = simd.multiply_add(
                simd.load(turned, k * height + j), simd.load_broadcast(flat, k * width + item), part
            )
        total = simd.multiply_add(part, part, total)
    return np.float32(simd.reduce_sum(total))


@jit_inline
def insert(best: NDArray[np.float64], value: float) -> None:
    """Keep the largest values, in falling order; without a branch, which nobody could predict."""
    for place in range(best.size):
        kept = best[place]
        best[place] = max(kept, value)
        value = min(kept, value)


@jit_inline
def _two_sums(
    flat: NDArray[np.float32], at: int, width: int, one: NDArray[np.float32], other: NDArray[np.float32]
) -> tuple[Any, Any]:
    """Two sums of the columns' rows, each row times its factor; even and odd rows apart, so that none waits."""
    even = odd = other_even = other_odd = simd.broadcast(_ZERO)
    for k in range(0, one.size, 2):
        x, y = simd.load(flat, k * width + at), simd.load(flat, (k + 1) * width + at)
        even = simd.multiply_add(simd.load_broadcast(one, k), x, even)
        other_even = simd.multiply_add(simd.load_broadcast(other, k), x, other_even)
        odd = simd.multiply_add(simd.load_broadcast(one, k + 1), y, odd)
        other_odd = simd.multiply_add(simd.load_broadcast(other, k + 1), y, other_odd)
    return simd.add(even, odd), simd.add(other_even, other_odd)


@jit_inline
def _square(flat: NDArray[np.float32], at: int, width: int, d: int, size: int, root: NDArray[np.float32]) -> Any:
    """The squared length of root x: four rows of the root at a time, sums that need not wait for each other."""
    total = simd.broadcast(_ZERO)
    for j in range(0, d, ROWS):
        a = b = c = e = simd.broadcast(_ZERO)
        row = j * size
        for k in range(min(j + ROWS, size)):
            x = simd.load(flat, k * width + at)
            a = simd.multiply_add(simd.load_broadcast(root, row + k), x, a)
            b = simd.multiply_add(simd.load_broadcast(root, row + size + k), x, b)
            c = simd.multiply_add(simd.load_broadcast(root, row + 2 * size + k), x, c)
            e = simd.multiply_add(simd.load_broadcast(root, row + 3 * size + k), x, e)
        total = simd.multiply_add(b, b, simd.multiply_add(a, a, total))
        total = simd.multiply_add(e, e, simd.multiply_add(c, c, total))
    return total


@jit_inline
def _highest(best: Any, length: int) -> float:
    """The length-th of the lanes; -inf if there are not so many numbers in them."""
    reached, rest = simd.reduce_max(best), best
    while reached > _LOWEST and simd.count_at_least(best, reached) < length:
        rest = simd.keep_below(rest, reached)
        reached = simd.reduce_max(rest)
    return float(reached)


@jit_inline
def reaching(score: NDArray[np.float32], items: int, floor: float, candidates: NDArray[np.int64]) -> int:
    """Put the items that reach the floor into ``candidates``, in order; returns how many they are."""
    low = np.float32(max(floor - 1e-6 * max(1.0, abs(floor)), FLOOR))  # rounding must not raise it
    found = 0
    for at in range(0, items, simd.MASK_BITS):
        bits = simd.mask_at_least(score, at, low)
        while bits != 0:
            candidates[found] = at + simd.find_lowest_bit(bits)
            found += 1
            bits &= bits - _BIT
    return found
