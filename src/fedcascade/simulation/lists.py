"""Compiled choice of a list: single precision says what cannot be in it, the reference's arithmetic decides.

Nothing here is approximate in effect. A list is taken from single-precision scores only where they are
further apart than they can be wrong; everything closer is scored again, to the bit as the reference does.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.compiled import approximate, compiled
from fedcascade.environments import streams
from fedcascade.learning import linear
from fedcascade.learning.oracles import top

LANES = 16  # rows of items are padded to a multiple of this, so that vector loops have no slow remainder
FEW = 16  # up to so many candidates are compared with each other
_ZERO, _LOWEST = np.float32(0.0), np.float32(-np.inf)


class Scratch(NamedTuple):
    """Room for one round of one thread."""

    columns: NDArray[np.float32]
    truth: NDArray[np.float32]
    score: NDArray[np.float32]
    square: NDArray[np.float32]
    part: NDArray[np.float32]
    next_part: NDArray[np.float32]
    theta: NDArray[np.float32]
    root: NDArray[np.float32]
    true_theta: NDArray[np.float32]
    lanes: NDArray[np.float32]
    best: NDArray[np.float64]
    candidates: NDArray[np.int64]
    value: NDArray[np.float64]
    close: NDArray[np.int64]
    few: NDArray[np.float32]
    no_ties: NDArray[np.uint32]
    listed: NDArray[np.float32]


@compiled
def make_scratch(dimension: int, most_items: int, length: int) -> Scratch:
    """Room for the largest round there can be."""
    items = (most_items + LANES - 1) // LANES * LANES
    rows = (dimension + 2) // 3 * 3
    return Scratch(
        columns=np.zeros((rows, items), np.float32),
        truth=np.empty(items, np.float32),
        score=np.empty(items, np.float32),
        square=np.empty(items, np.float32),
        part=np.empty(items, np.float32),
        next_part=np.empty(items, np.float32),
        theta=np.zeros(rows, np.float32),
        root=np.zeros((dimension + 1, rows), np.float32),  # a row more: rows are taken in pairs
        true_theta=np.zeros(rows, np.float32),
        lanes=np.empty(LANES, np.float32),
        best=np.empty(length, np.float64),
        candidates=np.empty(items, np.int64),
        value=np.empty(items, np.float64),
        close=np.empty(items, np.int64),
        few=np.zeros((dimension, LANES), np.float32),
        no_ties=np.zeros(items, np.uint32),
        listed=np.empty((length, dimension), np.float32),
    )


@compiled
def load(theta: NDArray[np.float64], root: NDArray[np.float64], beta: float, scratch: Scratch) -> float:
    """Take an agent's decision over in single precision; returns how far a score there may be off.

    With u = 2^-24, rounding the factors and summing d terms in any order moves a score by less than
    2 (d + 3) u (||theta|| + beta ||root||); the margin is twice that.
    """
    d, length, frobenius = theta.size, 0.0, 0.0
    for j in range(d):
        length += theta[j] * theta[j]
        scratch.theta[j] = theta[j]
        for k in range(j + 1):
            frobenius += root[j, k] * root[j, k]
            scratch.root[j, k] = root[j, k]
    size = np.sqrt(length) + beta * np.sqrt(frobenius)
    return float(4.0 * (d + 4) * 2.0**-24 * size)


@compiled
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
) -> NDArray[np.intp]:
    """The list that the reference would show."""
    _filter(scratch.columns, np.float32(beta), scratch)
    floor = min(_surely_reached(scratch.score, items, min(length, items), scratch.lanes), 1.0) - 2.0 * margin
    candidates = _reaching(scratch.score, items, floor, scratch.candidates)
    value = scratch.value[: candidates.size]
    for one in range(candidates.size):
        score = scratch.score[candidates[one]]
        value[one] = 1.0 if score > 1.0 + margin else score
    if _rescore_close(theta, root, beta, margin, candidates, value, scratch):
        chosen = top(value, streams.words(seed, streams.TIE, t, items)[candidates], length)
    else:
        chosen = top(value, scratch.no_ties, length)
    for position in range(chosen.size):
        chosen[position] = candidates[chosen[position]]
    return chosen


@compiled
def weight(theta: NDArray[np.float64], columns: NDArray[np.float32], item: int) -> float:
    """The probability of a click on one item: <theta, x> to the bit as ``linear.means`` has it, clipped."""
    mean = 0.0
    for k in range(theta.size):
        mean += theta[k] * columns[k, item]
    return min(max(mean, 0.0), 1.0)


@compiled
def best_reward(theta: NDArray[np.float64], items: int, length: int, scratch: Scratch) -> float:
    """The reward of the best list for known weights; single precision says which items can be in it."""
    floor = _surely_reached(scratch.truth, items, min(length, items), scratch.lanes)
    margin = 4.0 * (theta.size + 4) * 2.0**-24 * np.sqrt(theta.size)  # ||theta|| is at most 1
    candidates = _reaching(scratch.truth, items, floor - 2.0 * margin, scratch.candidates)
    best = scratch.best[: min(length, items)]
    best[:] = -np.inf
    for item in candidates:
        _insert(best, weight(theta, scratch.columns, item))
    missed = 1.0
    for value in best:
        missed *= 1.0 - value
    return 1.0 - missed


@compiled
def _insert(best: NDArray[np.float64], value: float) -> None:
    """Keep the largest values, in falling order."""
    place = best.size
    while place > 0 and best[place - 1] < value:
        place -= 1
    for later in range(best.size - 1, place, -1):
        best[later] = best[later - 1]
    if place < best.size:
        best[place] = value


@approximate
def _filter(columns: NDArray[np.float32], beta: np.float32, scratch: Scratch) -> None:
    """True weights, squared widths and scores of all items in single precision, not clipped."""
    d, items = scratch.listed.shape[1], columns.shape[1]
    score, square, part, next_part = scratch.score, scratch.square, scratch.part, scratch.next_part
    _two_sums(columns, scratch.theta, scratch.true_theta, d, score, scratch.truth)
    square[:] = _ZERO
    for j in range(0, d, 2):
        _two_sums(columns, scratch.root[j], scratch.root[j + 1], min(j + 2, d), part, next_part)
        for i in range(items):
            square[i] += part[i] * part[i] + next_part[i] * next_part[i]
    for i in range(items):
        score[i] += beta * np.sqrt(square[i])


@approximate
def _two_sums(
    columns: NDArray[np.float32],
    one: NDArray[np.float32],
    other: NDArray[np.float32],
    rows: int,
    out: NDArray[np.float32],
    next_out: NDArray[np.float32],
) -> None:
    """Two sums of the first rows of ``columns``, each row times its factor.

    Three rows and two sums at a time save loads and stores; with more, LLVM cannot tell the arrays apart in
    time and does not vectorise. Rows and factors are padded with zeros to a multiple of three.
    """
    a, b, c, d, e, f = one[0], one[1], one[2], other[0], other[1], other[2]
    for i in range(out.size):
        x, y, z = columns[0, i], columns[1, i], columns[2, i]
        out[i] = a * x + b * y + c * z
        next_out[i] = d * x + e * y + f * z
    for k in range(3, rows, 3):
        a, b, c, d, e, f = one[k], one[k + 1], one[k + 2], other[k], other[k + 1], other[k + 2]
        for i in range(out.size):
            x, y, z = columns[k, i], columns[k + 1, i], columns[k + 2, i]
            out[i] += a * x + b * y + c * z
            next_out[i] += d * x + e * y + f * z


@compiled
def _surely_reached(score: NDArray[np.float32], items: int, length: int, lanes: NDArray[np.float32]) -> float:
    """A score that at least ``length`` items reach: of the best of every 16th item, the length-th."""
    lanes[:] = _LOWEST
    whole = items // LANES * LANES
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] = max(lanes[lane], score[first + lane])
    for i in range(whole, items):
        lanes[i - whole] = max(lanes[i - whole], score[i])
    for _ in range(length - 1):
        lanes[np.argmax(lanes)] = _LOWEST
    return float(lanes.max())


@compiled
def _reaching(score: NDArray[np.float32], items: int, floor: float, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """The items that reach the floor, in order."""
    low = np.float32(floor - 1e-6 * max(1.0, abs(floor)))  # rounding must not raise it
    found = 0
    for i in range(items):
        if score[i] >= low:
            candidates[found] = i
            found += 1
    return candidates[:found]


@compiled
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
    for first in range(0, close, LANES):
        which = scratch.close[first : min(first + LANES, close)]
        for k in range(theta.size):
            for lane in range(which.size):
                scratch.few[k, lane] = scratch.columns[k, candidates[which[lane]]]
        scores = linear.optimistic_scores(theta, root, beta, scratch.few)
        for lane in range(which.size):
            value[which[lane]] = scores[lane]
    return clipped + close > 1


@compiled
def _has_neighbour(value: NDArray[np.float64], one: int, within: float) -> bool:
    for other in range(value.size):  # noqa: SIM110 (numba has no any)
        if other != one and abs(value[other] - value[one]) <= within:
            return True
    return False
