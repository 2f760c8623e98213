"""Compiled choice of a list: single precision says what cannot be in it, the reference's arithmetic decides.

Nothing here is approximate in effect. A list is taken from single-precision scores only where they are
further apart than they can be wrong; everything closer is scored again, to the bit as the reference does.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade import lanes
from fedcascade.compiled import bare, compiled
from fedcascade.environments import streams
from fedcascade.learning import linear
from fedcascade.learning.oracles import top_into

FEW = 16  # up to so many candidates are treated one by one
TRUTH, SCORE = 0, 1  # places in Scratch.reached
ROWS = 4  # of the root are taken at a time
_ZERO, _LOWEST = np.float32(0.0), np.float32(-np.inf)
_BIT = np.uint64(1)
FLOOR = -1e30  # every score reaches it, and the padding does not


class Scratch(NamedTuple):
    """Room for one round of one thread. Rows of items are padded to whole lanes, factors with zeros."""

    draft: streams.Draft
    columns: NDArray[np.float32]
    flat: NDArray[np.float32]  # the same, row after row
    truth: NDArray[np.float32]
    score: NDArray[np.float32]
    square: NDArray[np.float32]
    theta: NDArray[np.float32]
    root: NDArray[np.float32]  # row after row
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
    items, rows = _padded(most_items, lanes.BITS), dimension + dimension % 2
    width = _padded(most_items, lanes.COUNT)
    flat = _room(rows * width)
    return Scratch(
        draft=streams.make_draft(),
        columns=flat.reshape(rows, width),
        flat=flat,
        truth=_room(items),
        score=_room(items),
        square=_room(items),
        theta=_room(rows),
        root=_room(_padded(dimension, ROWS) * rows),
        true_theta=_room(rows),
        reached=np.empty(2, np.float64),
        best=np.empty(length, np.float64),
        candidates=np.empty(items, np.int64),
        value=np.empty(items, np.float64),
        close=np.empty(items, np.int64),
        few=np.zeros((dimension, lanes.COUNT), np.float32),
        exact=np.empty((3, lanes.COUNT)),
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
    return lanes.lined_up(np.zeros(count + lanes.COUNT, np.float32))


@bare
def load(theta: NDArray[np.float64], root: NDArray[np.float64], beta: float, scratch: Scratch) -> float:
    """Take an agent's decision over in single precision; returns how far a score there may be off.

    With u = 2^-24, rounding the factors and summing d terms in any order moves a score by less than
    2 (d + 3) u (||theta|| + beta ||root||); the margin is twice that.
    """
    d, length, frobenius, rows = theta.size, 0.0, 0.0, scratch.theta.size
    for j in range(d):
        length += theta[j] * theta[j]
        scratch.theta[j] = theta[j]
        for k in range(j + 1):
            frobenius += root[j, k] * root[j, k]
            scratch.root[j * rows + k] = root[j, k]
    return may_be_off(d, np.sqrt(length) + beta * np.sqrt(frobenius))


@bare
def may_be_off(d: int, size: float) -> float:
    """A bound on the error of single precision, ``size`` being the length of theta plus beta times that of the root."""
    return float(4.0 * (d + 4) * 2.0**-24 * size)


@bare
def choose(
    seed: np.uint64,
    t: int,
    items: int,
    length: int,
    theta: NDArray[np.float64],
    root: NDArray[np.float64],
    beta: float,
    margin: float,
    scratch: Scratch,
) -> None:
    """Put the list that the reference would show into ``scratch.chosen``."""
    reached = min(scratch.reached[SCORE], 1.0)
    candidates = scratch.candidates[: _reaching(scratch.score, items, reached - 2.0 * margin, scratch.candidates)]
    value = scratch.value[: candidates.size]
    for one in range(candidates.size):
        score = scratch.score[candidates[one]]
        value[one] = 1.0 if score > 1.0 + margin else score
    if _rescore_close(theta, root, beta, margin, candidates, value, scratch):
        _draw_ties(seed, t, items, candidates, scratch)
    chosen = scratch.chosen[: min(length, items)]
    top_into(value, scratch.ties, chosen)
    for position in range(chosen.size):
        chosen[position] = candidates[chosen[position]]


@bare
def _draw_ties(seed: np.uint64, t: int, items: int, candidates: NDArray[np.int64], scratch: Scratch) -> None:
    """The candidates' tie-breaks; where there are many, those of all items are drawn together."""
    many = candidates.size > FEW
    if many:
        streams.words_into(seed, streams.TIE, t, scratch.words[:items], scratch.draft)
    for one in range(candidates.size):
        item = candidates[one]
        scratch.ties[one] = scratch.words[item] if many else streams.philox(seed, streams.TIE, t, item, 0)[0]


@bare
def weight(theta: NDArray[np.float64], columns: NDArray[np.float32], item: int) -> float:
    """The probability of a click on one item: <theta, x> to the bit as ``linear.means`` has it, clipped."""
    mean = 0.0
    for k in range(theta.size):
        mean += theta[k] * columns[k, item]
    return min(max(mean, 0.0), 1.0)


@bare
def best_reward(theta: NDArray[np.float64], items: int, length: int, scratch: Scratch) -> float:
    """The reward of the best list for known weights; single precision says which items can be in it."""
    margin = may_be_off(theta.size, 1.0)  # ||theta|| is at most 1
    found = _reaching(scratch.truth, items, scratch.reached[TRUTH] - 2.0 * margin, scratch.candidates)
    best = scratch.best[: min(length, items)]
    best[:] = -np.inf
    for item in scratch.candidates[:found]:
        _insert(best, weight(theta, scratch.columns, item))
    missed = 1.0
    for value in best:
        missed *= 1.0 - value
    return 1.0 - missed


@bare
def _insert(best: NDArray[np.float64], value: float) -> None:
    """Keep the largest values, in falling order."""
    place = best.size
    while place > 0 and best[place - 1] < value:
        place -= 1
    for later in range(best.size - 1, place, -1):
        best[later] = best[later - 1]
    if place < best.size:
        best[place] = value


@bare
def filter_items(items: int, length: int, beta: float, scratch: Scratch) -> None:
    """True weights, squared widths and scores of all items in single precision, not clipped.

    Also, of both weights and scores, a number that at least ``length`` items reach: of the best in each lane,
    the length-th.
    """
    size, beta_lanes = scratch.theta.size, lanes.fill(np.float32(beta))
    best_truth = best_score = lanes.fill(_LOWEST)
    for at in range(0, items, lanes.COUNT):
        mean, truth = _two_sums(scratch.flat, at, scratch.columns.shape[1], scratch.theta, scratch.true_theta)
        square = _square(scratch.flat, at, scratch.columns.shape[1], scratch.listed.shape[1], size, scratch.root)
        score = lanes.first(lanes.add_product(beta_lanes, lanes.root(square), mean), items - at)
        truth = lanes.first(truth, items - at)
        best_truth, best_score = lanes.larger(truth, best_truth), lanes.larger(score, best_score)
        lanes.store(scratch.square, at, square)
        lanes.store(scratch.score, at, score)
        lanes.store(scratch.truth, at, truth)
    for at in range(_padded(items, lanes.COUNT), _padded(items, lanes.BITS), lanes.COUNT):
        lanes.store(scratch.score, at, lanes.fill(_LOWEST))
        lanes.store(scratch.truth, at, lanes.fill(_LOWEST))
    scratch.reached[SCORE], scratch.reached[TRUTH] = _highest(best_score, length), _highest(best_truth, length)


@bare
def _two_sums(
    flat: NDArray[np.float32], at: int, width: int, one: NDArray[np.float32], other: NDArray[np.float32]
) -> tuple[Any, Any]:
    """Two sums of the columns' rows, each row times its factor; even and odd rows apart, so that none waits."""
    even = odd = other_even = other_odd = lanes.fill(_ZERO)
    for k in range(0, one.size, 2):
        x, y = lanes.load(flat, k * width + at), lanes.load(flat, (k + 1) * width + at)
        even = lanes.add_product(lanes.spread(one, k), x, even)
        other_even = lanes.add_product(lanes.spread(other, k), x, other_even)
        odd = lanes.add_product(lanes.spread(one, k + 1), y, odd)
        other_odd = lanes.add_product(lanes.spread(other, k + 1), y, other_odd)
    return lanes.add(even, odd), lanes.add(other_even, other_odd)


@bare
def _square(flat: NDArray[np.float32], at: int, width: int, d: int, size: int, root: NDArray[np.float32]) -> Any:
    """The squared length of root x: four rows of the root at a time, sums that need not wait for each other."""
    total = lanes.fill(_ZERO)
    for j in range(0, d, ROWS):
        a = b = c = e = lanes.fill(_ZERO)
        row = j * size
        for k in range(min(j + ROWS, size)):
            x = lanes.load(flat, k * width + at)
            a = lanes.add_product(lanes.spread(root, row + k), x, a)
            b = lanes.add_product(lanes.spread(root, row + size + k), x, b)
            c = lanes.add_product(lanes.spread(root, row + 2 * size + k), x, c)
            e = lanes.add_product(lanes.spread(root, row + 3 * size + k), x, e)
        total = lanes.add_product(b, b, lanes.add_product(a, a, total))
        total = lanes.add_product(e, e, lanes.add_product(c, c, total))
    return total


@bare
def _highest(best: Any, length: int) -> float:
    """The length-th of the lanes; -inf if there are not so many numbers in them."""
    reached, rest = lanes.highest(best), best
    while reached > _LOWEST and lanes.how_many(best, reached) < length:
        rest = lanes.below(rest, reached)
        reached = lanes.highest(rest)
    return float(reached)


@bare
def _reaching(score: NDArray[np.float32], items: int, floor: float, candidates: NDArray[np.int64]) -> int:
    """Put the items that reach the floor into ``candidates``, in order; returns how many they are."""
    low = np.float32(max(floor - 1e-6 * max(1.0, abs(floor)), FLOOR))  # rounding must not raise it
    found = 0
    for at in range(0, items, lanes.BITS):
        bits = lanes.reaching(score, at, low)
        while bits != 0:
            candidates[found] = at + lanes.lowest(bits)
            found += 1
            bits &= bits - _BIT
    return found


@bare
def _rescore_close(
    theta: NDArray[np.float64],
    root: NDArray[np.float64],
    beta: float,
    margin: float,
    candidates: NDArray[np.int64],
    value: NDArray[np.float64],
    scratch: Scratch,
) -> bool:
    """Score exactly what is too close to call; returns whether there may be ties."""
    close, clipped = 0, 0
    for one in range(candidates.size):
        if scratch.score[candidates[one]] > 1.0 + margin:
            clipped += 1
        elif candidates.size > FEW or _has_neighbour(value, one, 2.0 * margin):
            scratch.close[close] = one
            close += 1
    for first in range(0, close, lanes.COUNT):
        which = scratch.close[first : min(first + lanes.COUNT, close)]
        for k in range(theta.size):
            for lane in range(which.size):
                scratch.few[k, lane] = scratch.columns[k, candidates[which[lane]]]
        linear.optimistic_scores_into(theta, root, beta, scratch.few, scratch.exact[0], scratch.exact[1:])
        for lane in range(which.size):
            value[which[lane]] = scratch.exact[0, lane]
    return clipped + close > 1


@bare
def _has_neighbour(value: NDArray[np.float64], one: int, within: float) -> bool:
    for other in range(value.size):  # noqa: SIM110 (numba has no any)
        if other != one and abs(value[other] - value[one]) <= within:
            return True
    return False
