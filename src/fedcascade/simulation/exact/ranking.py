"""Compiled choice of a list: single precision says what cannot be in it, the reference's arithmetic decides.

Nothing here is approximate in effect. A list is taken from single-precision scores only where they are
further apart than they can be wrong; everything closer is scored again, to the bit as the reference does.
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.oracles import select_top_into
from fedcascade.numerics import linear, simd, streams
from fedcascade.numerics.jit import jit_inline
from fedcascade.simulation.exact.screening import FEW, SCORE, TRUTH, Scratch, insert, may_be_off, reaching


@jit_inline
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
    candidates = scratch.candidates[: reaching(scratch.score, items, reached - 2.0 * margin, scratch.candidates)]
    value = scratch.value[: candidates.size]
    for one in range(candidates.size):
        score = scratch.score[candidates[one]]
        value[one] = 1.0 if score > 1.0 + margin else score
    if _rescore_close(theta, root, beta, margin, candidates, value, scratch):
        _draw_ties(seed, t, items, candidates, scratch)
    chosen = scratch.chosen[: min(length, items)]
    select_top_into(value, scratch.ties, chosen)
    for position in range(chosen.size):
        chosen[position] = candidates[chosen[position]]


@jit_inline
def _draw_ties(seed: np.uint64, t: int, items: int, candidates: NDArray[np.int64], scratch: Scratch) -> None:
    """The candidates' tie-breaks; where there are many, those of all items are drawn together."""
    many = candidates.size > FEW
    if many:
        streams.words_into(seed, streams.TIE, t, scratch.words[:items], scratch.draft)
    for one in range(candidates.size):
        item = candidates[one]
        scratch.ties[one] = scratch.words[item] if many else streams.philox(seed, streams.TIE, t, item, 0)[0]


@jit_inline
def weight(theta: NDArray[np.float64], columns: NDArray[np.float32], item: int) -> float:
    """The probability of a click on one item: <theta, x> to the bit as ``linear.compute_means`` has it, clipped."""
    mean = 0.0
    for k in range(theta.size):
        mean += theta[k] * columns[k, item]
    return min(max(mean, 0.0), 1.0)


@jit_inline
def best_reward(theta: NDArray[np.float64], items: int, length: int, scratch: Scratch) -> float:
    """The reward of the best list for known weights; single precision says which items can be in it."""
    margin = may_be_off(theta.size, 1.0)  # ||theta|| is at most 1
    found = reaching(scratch.truth, items, scratch.reached[TRUTH] - 2.0 * margin, scratch.candidates)
    best = scratch.best[: min(length, items)]
    best[:] = -np.inf
    for item in scratch.candidates[:found]:
        insert(best, weight(theta, scratch.columns, item))
    missed = 1.0
    for value in best:
        missed *= 1.0 - value
    return 1.0 - missed


@jit_inline
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
    for first in range(0, close, simd.LANES):
        which = scratch.close[first : min(first + simd.LANES, close)]
        for k in range(theta.size):
            for lane in range(which.size):
                scratch.few[k, lane] = scratch.columns[k, candidates[which[lane]]]
        linear.compute_ucb_scores_into(theta, root, beta, scratch.few, scratch.exact[0], scratch.exact[1:])
        for lane in range(which.size):
            value[which[lane]] = scratch.exact[0, lane]
    return clipped + close > 1


@jit_inline
def _has_neighbour(value: NDArray[np.float64], one: int, within: float) -> bool:
    for other in range(value.size):  # noqa: SIM110 (numba has no any)
        if other != one and abs(value[other] - value[one]) <= within:
            return True
    return False
