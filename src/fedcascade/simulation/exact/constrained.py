"""Compiled selection for oracles with limits, with the functions of ``learning`` and exact scores of all items.

Without limits, ``limits`` is None. Numba then compiles only the first line, so that top-k policies do not pay for it.
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments import draws
from fedcascade.environments.behaviours import CompiledBehaviour, compute_weights, fade_weight
from fedcascade.learning.cascade import compute_expected_value
from fedcascade.learning.exploration import GREEDY, compute_propensities, explore
from fedcascade.learning.knapsack import find_best_within_budget, select_within_budget
from fedcascade.learning.oracles import select_per_category, select_top
from fedcascade.numerics import linear, streams
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, Vector
from fedcascade.simulation.exact.arrays import BETA, AgentState, CompiledEnvironment, CompiledLimits
from fedcascade.simulation.exact.screening import Scratch, Singles


@jit
def select_constrained(
    limits: CompiledLimits | None, environment: CompiledEnvironment, state: AgentState, own_root: Matrix | None,
    user: int, scratch: Scratch, t: int, items: int,
) -> tuple[int, float]:  # fmt: skip
    """Write the list into ``scratch.selected``, and the squared widths of its items.

    ``own_root`` belongs to the agent's personal part, if it has one. Return the length of the list and the reward of
    the best feasible list; -1 and -1 without limits.
    """
    if limits is None:
        return -1, -1.0
    seed, beta = environment.seed, state.numbers[BETA]
    theta, root = state.theta, state.root
    columns = np.ascontiguousarray(scratch.columns[: theta.size, :items])
    ties = streams.words(seed, streams.TIE, t, items)
    scores = linear.compute_ucb_scores(theta, root, beta, columns, own_root)
    weights = compute_weights(environment.link, environment.thetas[user], columns)
    means, merits = _value_items(environment.values, user, columns, weights)
    length = limits.length
    if limits.exploration != GREEDY:
        selected = explore(limits.exploration, limits.level, scores, ties, length)
        scratch.chances[: selected.size] = compute_propensities(limits.exploration, limits.level, scores, selected)
        best = select_top(merits, np.zeros(items, np.uint32), length)
    elif limits.per_category > 0:
        limit = limits.per_category
        categories = draws.draw_categories(seed, t, items, environment.categories)
        selected = select_per_category(scores, ties, categories, limit, length)
        best = select_per_category(merits, np.zeros(items, np.uint32), categories, limit, length)
    else:
        costs = draws.draw_costs(seed, t, items)
        selected = select_within_budget(scores, ties, costs, limits.budget, length)
        best = find_best_within_budget(merits, costs, limits.budget, length)
    widths = linear.compute_squared_widths(root, columns)
    for position in range(selected.size):
        item = selected[position]
        scratch.selected[position] = item
        scratch.squared_width[item] = widths[item]
    return int(selected.size), _measure_list(environment.values, environment.behaviour, means, weights, best)


@jit
def _value_items(values: Matrix | None, user: int, columns: Singles, weights: Vector) -> tuple[Vector, Vector]:
    """Return the mean reward of a click on each item, and of examining it; without values, twice the weights."""
    if values is None:
        return weights, weights
    means = compute_weights(None, values[user], columns)
    return means, weights * means


@jit
def _measure_list(
    values: Matrix | None, behaviour: CompiledBehaviour | None, means: Vector, weights: Vector, chosen: NDArray[np.intp]
) -> float:
    """Return the expected reward of a list."""
    if values is not None:
        return compute_expected_value(weights[chosen], means[chosen])
    missed = 1.0
    for position in range(chosen.size):
        missed *= 1.0 - fade_weight(behaviour, position, weights[chosen[position]])
    return 1.0 - missed
