"""Compiled selection of a list: single precision rules out items, the reference's arithmetic ranks the rest.

Lists are exact. Single-precision scores order two items only if they differ by more than their errors; closer items
are scored again, equal to the reference to the bit.
"""

import numpy as np

from fedcascade.environments.behaviours import Logistic, apply_link, compute_weights, fade_weight
from fedcascade.learning.cascade import compute_expected_value
from fedcascade.learning.oracles import select_top, select_top_into
from fedcascade.numerics import linear, simd, streams
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Matrix, Vector
from fedcascade.simulation.exact import screening
from fedcascade.simulation.exact.arrays import CompiledEnvironment
from fedcascade.simulation.exact.screening import Indices, Scratch, Singles, bound_error, collect_reaching


@jit_inline
def select_list(
    seed: np.uint64, t: int, items: int, theta: Vector, root: Matrix, beta: float, margin: float, scratch: Scratch
) -> None:
    """Write the list of the reference into ``scratch.selected``."""
    floor = min(scratch.reached[screening.SCORE], 1.0) - 2.0 * margin
    candidates = scratch.candidates[: collect_reaching(scratch.score, items, floor, scratch.candidates)]
    value = scratch.value[: candidates.size]
    for place in range(candidates.size):
        score = scratch.score[candidates[place]]
        value[place] = 1.0 if score > 1.0 + margin else score
    if _rescore_close(theta, root, beta, margin, candidates, value, scratch):
        _draw_ties(seed, t, items, candidates, scratch)
    selected = scratch.selected[:items]
    select_top_into(value, scratch.ties, selected)
    for position in range(selected.size):
        selected[position] = candidates[selected[position]]


@jit  # allocates arrays
def select_pair_list(
    seed: np.uint64, t: int, items: int, theta: Vector, root: Matrix, own_root: Matrix, beta: float, scratch: Scratch
) -> None:
    """Write the list of an agent with a personal part into ``scratch.selected``, from exact scores of all items."""
    columns = np.ascontiguousarray(scratch.columns[: theta.size, :items])
    scores = linear.compute_ucb_scores(theta, root, beta, columns, own_root)
    select_top_into(scores, streams.words(seed, streams.TIE, t, items), scratch.selected[:items])


@jit_inline
def _draw_ties(seed: np.uint64, t: int, items: int, candidates: Indices, scratch: Scratch) -> None:
    """Draw the tie-breaks of candidates; of all items together if there are many candidates."""
    many = candidates.size > screening.FEW_CANDIDATES
    if many:
        streams.draw_words_into(seed, streams.TIE, t, scratch.tie_words[:items], scratch.draft)
    for place in range(candidates.size):
        item = candidates[place]
        scratch.ties[place] = scratch.tie_words[item] if many else streams.philox(seed, streams.TIE, t, item, 0)[0]


@jit_inline
def compute_mean(theta: Vector, columns: Singles, item: int) -> float:
    """Return <theta, x> of one item, equal to ``linear.compute_means`` to the bit."""
    mean = 0.0
    for k in range(theta.size):
        mean += theta[k] * columns[k, item]
    return mean


@jit_inline
def compute_attraction(theta: Vector, columns: Singles, item: int) -> float:
    """Return the click probability of one item without a link: <theta, x>, clipped to [0, 1]."""
    return min(max(compute_mean(theta, columns, item), 0.0), 1.0)


@jit_inline
def compute_best_reward(
    values: Matrix | None, environment: CompiledEnvironment, user: int, items: int, length: int, scratch: Scratch
) -> float:
    """Return the expected reward of the best list for true weights; single precision rules out items.

    Links are increasing, so the items with the highest means have the highest weights. With ``values``, all items are
    compared.
    """
    theta, link, behaviour = environment.thetas[user], environment.link, environment.behaviour
    if values is not None:
        return _compute_best_value(link, theta, values[user], scratch.columns, items, length)
    margin = bound_error(theta.size, 1.0)  # ||theta|| is at most 1
    floor = scratch.reached[screening.TRUTH] - 2.0 * margin
    count = collect_reaching(scratch.true_mean, items, floor, scratch.candidates)
    best = scratch.best[: min(length, items)]
    best[:] = -np.inf
    for item in scratch.candidates[:count]:
        screening.insert_descending(best, apply_link(link, compute_mean(theta, scratch.columns, item)))
    missed = 1.0
    for position in range(best.size):
        missed *= 1.0 - fade_weight(behaviour, position, best[position])
    return 1.0 - missed


@jit  # allocates arrays
def _compute_best_value(
    link: Logistic | None, theta: Vector, values: Vector, columns: Singles, items: int, length: int
) -> float:
    features = np.ascontiguousarray(columns[: theta.size, :items])
    weights, means = compute_weights(link, theta, features), compute_weights(None, values, features)
    best = select_top(weights * means, np.zeros(items, np.uint32), length)
    return compute_expected_value(weights[best], means[best])


@jit_inline
def _rescore_close(
    theta: Vector, root: Matrix, beta: float, margin: float, candidates: Indices, value: Vector, scratch: Scratch
) -> bool:
    """Compute exact scores of items that are too close; return whether there may be ties."""
    close, clipped = 0, 0
    for place in range(candidates.size):
        if scratch.score[candidates[place]] > 1.0 + margin:
            clipped += 1
        elif candidates.size > screening.FEW_CANDIDATES or _has_neighbour(value, place, 2.0 * margin):
            scratch.close[close] = place
            close += 1
    for first in range(0, close, simd.LANES):
        places = scratch.close[first : min(first + simd.LANES, close)]
        for k in range(theta.size):
            for lane in range(places.size):
                scratch.gathered[k, lane] = scratch.columns[k, candidates[places[lane]]]
        exact_score = scratch.exact_score
        linear.compute_ucb_scores_into(theta, root, None, beta, scratch.gathered, exact_score[0], exact_score[1:])
        for lane in range(places.size):
            value[places[lane]] = exact_score[0, lane]
    return clipped + close > 1


@jit_inline
def _has_neighbour(value: Vector, place: int, distance: float) -> bool:
    """Return whether another value is within ``distance``."""
    for neighbour in range(value.size):
        if neighbour != place and abs(value[neighbour] - value[place]) <= distance:
            return True
    return False
