"""Compiled scores of a round's items in single precision, to find those that may be in its list.

Most items are far from the list. Where an agent's widths have a known largest one, even their widths need not be
computed: a mean and that bound are enough.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import simd, streams
from fedcascade.numerics.jit import bare, compiled

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
    slope: NDArray[np.float32]  # a squared width is at most widest + (last coordinate) <slope, x>
    widest: NDArray[np.float64]
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


@compiled
def make_scratch(dimension: int, most_items: int, length: int) -> Scratch:
    """Room for the largest round there can be."""
    items, rows = _padded(most_items, simd.BITS), dimension + dimension % 2
    width = _padded(most_items, simd.COUNT)
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
        widest=np.full(1, np.inf),
        root=_room(_padded(dimension, ROWS) * rows),
        turned=_room(dimension * _padded(dimension, simd.COUNT)),
        true_theta=_room(rows),
        reached=np.empty(2, np.float64),
        best=np.empty(length, np.float64),
        candidates=np.empty(items, np.int64),
        value=np.empty(items, np.float64),
        close=np.empty(items, np.int64),
        few=np.zeros((dimension, simd.COUNT), np.float32),
        exact=np.empty((3, simd.COUNT)),
        upper=np.empty((dimension, dimension)),
        root_room=np.empty((dimension, dimension)),
        moments=np.empty(dimension),
        words=np.empty(most_items, np.uint32),
        ties=np.zeros(items, np.uint32),
        chosen=np.empty(length, np.intp),
        listed=np.empty((length, dimension), np.float32),
    )


@bare
def _padded(count: int, to: int) -> int:
    return (count + to - 1) // to * to


@compiled
def _room(count: int) -> NDArray[np.float32]:
    return simd.lined_up(np.zeros(count + simd.COUNT, np.float32))


@bare
def load(theta: NDArray[np.float64], root: NDArray[np.float64], beta: float, widest: float, scratch: Scratch) -> float:
    """Take an agent's decision over in single precision; returns how far a score there may be off.

    With u = 2^-24, rounding the factors and summing d terms in any order moves a score by less than
    2 (d + 3) u (||theta|| + beta ||root||); the margin is twice that. ``widest`` is that of ``linear.widest``, or
    infinite where it is not known.
    """
    d, length, frobenius, rows = theta.size, 0.0, 0.0, scratch.theta.size
    for j in range(d):
        length += theta[j] * theta[j]
        scratch.theta[j] = theta[j]
        for k in range(j + 1):
            frobenius += root[j, k] * root[j, k]
            scratch.root[j * rows + k] = root[j, k]
    scratch.widest[0] = np.inf
    if widest < np.inf:
        _load_bound(root, widest, scratch)
    return may_be_off(d, np.sqrt(length) + beta * np.sqrt(frobenius))


@bare
def _load_bound(root: NDArray[np.float64], widest: float, scratch: Scratch) -> None:
    """Take over what bounds the squared width of x = (y, c), and the root as it is needed for single items.

    With R^T R = (A, b; b^T, g) it is y^T A y + 2 c <b, y> + g c^2. The first term is at most widest (1 - c^2), and b
    and g are the last row of R times its last number.
    """
    d, size, height = root.shape[0], 0.0, scratch.turned.size // root.shape[0]
    last = d - 1
    for k in range(d):
        for j in range(k, d):
            scratch.turned[k * height + j] = root[j, k]
        factor = 2.0 * root[last, last] * root[last, k] if k < last else root[last, last] ** 2 - widest
        scratch.slope[k] = factor
        size += factor * factor
    # Features may be longer than 1 by rounding, and all of this may be off; the bound must not be too low.
    scratch.widest[0] = (1.0 + 1e-5) * widest + may_be_off(d, np.sqrt(size) + widest)


@bare
def may_be_off(d: int, size: float) -> float:
    """A bound on the error of single precision, ``size`` being the length of theta plus beta times that of the root."""
    return float(4.0 * (d + 4) * 2.0**-24 * size)


@bare
def filter_items(items: int, length: int, beta: float, margin: float, scratch: Scratch) -> None:
    """True weights and scores of all items in single precision, not clipped, and squared widths.

    Also, of both weights and scores, a number that at least ``length`` items reach. The score of an item that cannot
    be in the list may be too high, though not so high that it seems to be in it, and its squared width is missing.
    """
    for at in range(_padded(items, simd.COUNT), _padded(items, simd.BITS), simd.COUNT):
        simd.store(scratch.score, at, simd.fill(_LOWEST))
        simd.store(scratch.truth, at, simd.fill(_LOWEST))
    if scratch.widest[0] == np.inf or not _score_few(items, length, beta, margin, scratch):
        _score_all(items, length, beta, scratch)


@bare
def _score_all(items: int, length: int, beta: float, scratch: Scratch) -> None:
    """Everything; a number that enough items reach is, of the best in each lane, the length-th."""
    size, beta_lanes = scratch.theta.size, simd.fill(np.float32(beta))
    best_truth = best_score = simd.fill(_LOWEST)
    for at in range(0, items, simd.COUNT):
        mean, truth = _two_sums(scratch.flat, at, scratch.columns.shape[1], scratch.theta, scratch.true_theta)
        square = _square(scratch.flat, at, scratch.columns.shape[1], scratch.listed.shape[1], size, scratch.root)
        score = simd.first(simd.add_product(beta_lanes, simd.root(square), mean), items - at)
        truth = simd.first(truth, items - at)
        best_truth, best_score = simd.larger(truth, best_truth), simd.larger(score, best_score)
        simd.store(scratch.square, at, square)
        simd.store(scratch.score, at, score)
        simd.store(scratch.truth, at, truth)
    scratch.reached[SCORE], scratch.reached[TRUTH] = _highest(best_score, length), _highest(best_truth, length)


@bare
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


@bare
def _bound_all(items: int, length: int, beta: float, scratch: Scratch) -> float:
    """True weights, means, and scores that are too high; returns one of them that at least ``length`` items reach."""
    beta_lanes, widest = simd.fill(np.float32(beta)), simd.fill(np.float32(scratch.widest[0]))
    width, last = scratch.columns.shape[1], scratch.listed.shape[1] - 1
    best_truth = best_score = simd.fill(_LOWEST)
    for at in range(0, items, simd.COUNT):
        mean = truth = slope = simd.fill(_ZERO)
        for k in range(scratch.theta.size):
            x = simd.load(scratch.flat, k * width + at)
            mean = simd.add_product(simd.spread(scratch.theta, k), x, mean)
            truth = simd.add_product(simd.spread(scratch.true_theta, k), x, truth)
            slope = simd.add_product(simd.spread(scratch.slope, k), x, slope)
        square = simd.add_product(simd.load(scratch.flat, last * width + at), slope, widest)
        score = simd.first(simd.add_product(beta_lanes, simd.root(square), mean), items - at)
        truth = simd.first(truth, items - at)
        best_truth, best_score = simd.larger(truth, best_truth), simd.larger(score, best_score)
        simd.store(scratch.mean, at, mean)
        simd.store(scratch.square, at, simd.fill(_NOT_YET))
        simd.store(scratch.score, at, score)
        simd.store(scratch.truth, at, truth)
    scratch.reached[TRUTH] = _highest(best_truth, length)
    return _highest(best_score, length)


@bare
def _score_some(which: NDArray[np.int64], beta: np.float32, best: NDArray[np.float64], scratch: Scratch) -> None:
    """Squared widths and scores of those that have none yet; ``best`` keeps the best of the scores."""
    width, d = scratch.columns.shape[1], scratch.listed.shape[1]
    for item in which:
        if scratch.square[item] < _ZERO:
            square = _square_of(scratch.flat, item, width, d, scratch.turned)
            score = scratch.mean[item] + beta * np.sqrt(square)
            scratch.square[item], scratch.score[item] = square, score
            insert(best, np.float64(score))


@bare
def _square_of(flat: NDArray[np.float32], item: int, width: int, d: int, turned: NDArray[np.float32]) -> np.float32:
    """The squared length of root x for one item: sixteen rows of the root at a time."""
    total, height = simd.fill(_ZERO), turned.size // d
    for j in range(0, d, simd.COUNT):
        part = simd.fill(_ZERO)
        for k in range(min(j + simd.COUNT, d)):
            part = simd.add_product(simd.load(turned, k * height + j), simd.spread(flat, k * width + item), part)
        total = simd.add_product(part, part, total)
    return np.float32(simd.total(total))


@bare
def insert(best: NDArray[np.float64], value: float) -> None:
    """Keep the largest values, in falling order; without a branch, which nobody could predict."""
    for place in range(best.size):
        kept = best[place]
        best[place] = max(kept, value)
        value = min(kept, value)


@bare
def _two_sums(
    flat: NDArray[np.float32], at: int, width: int, one: NDArray[np.float32], other: NDArray[np.float32]
) -> tuple[Any, Any]:
    """Two sums of the columns' rows, each row times its factor; even and odd rows apart, so that none waits."""
    even = odd = other_even = other_odd = simd.fill(_ZERO)
    for k in range(0, one.size, 2):
        x, y = simd.load(flat, k * width + at), simd.load(flat, (k + 1) * width + at)
        even = simd.add_product(simd.spread(one, k), x, even)
        other_even = simd.add_product(simd.spread(other, k), x, other_even)
        odd = simd.add_product(simd.spread(one, k + 1), y, odd)
        other_odd = simd.add_product(simd.spread(other, k + 1), y, other_odd)
    return simd.add(even, odd), simd.add(other_even, other_odd)


@bare
def _square(flat: NDArray[np.float32], at: int, width: int, d: int, size: int, root: NDArray[np.float32]) -> Any:
    """The squared length of root x: four rows of the root at a time, sums that need not wait for each other."""
    total = simd.fill(_ZERO)
    for j in range(0, d, ROWS):
        a = b = c = e = simd.fill(_ZERO)
        row = j * size
        for k in range(min(j + ROWS, size)):
            x = simd.load(flat, k * width + at)
            a = simd.add_product(simd.spread(root, row + k), x, a)
            b = simd.add_product(simd.spread(root, row + size + k), x, b)
            c = simd.add_product(simd.spread(root, row + 2 * size + k), x, c)
            e = simd.add_product(simd.spread(root, row + 3 * size + k), x, e)
        total = simd.add_product(b, b, simd.add_product(a, a, total))
        total = simd.add_product(e, e, simd.add_product(c, c, total))
    return total


@bare
def _highest(best: Any, length: int) -> float:
    """The length-th of the lanes; -inf if there are not so many numbers in them."""
    reached, rest = simd.highest(best), best
    while reached > _LOWEST and simd.how_many(best, reached) < length:
        rest = simd.below(rest, reached)
        reached = simd.highest(rest)
    return float(reached)


@bare
def reaching(score: NDArray[np.float32], items: int, floor: float, candidates: NDArray[np.int64]) -> int:
    """Put the items that reach the floor into ``candidates``, in order; returns how many they are."""
    low = np.float32(max(floor - 1e-6 * max(1.0, abs(floor)), FLOOR))  # rounding must not raise it
    found = 0
    for at in range(0, items, simd.BITS):
        bits = simd.reaching(score, at, low)
        while bits != 0:
            candidates[found] = at + simd.lowest(bits)
            found += 1
            bits &= bits - _BIT
    return found
