"""Compiled selection for oracles with limits, by the same functions as in ``learning``: all items are scored exactly.

Where there are no limits, ``limits`` is None. Numba then compiles the first line alone, so that systems which show the
best items neither compile nor pay for the rest.
"""

import numpy as np

from fedcascade.environments import draws
from fedcascade.environments.behaviours import compute_weights, fade_weight
from fedcascade.learning.exploration import GREEDY, compute_propensities, explore
from fedcascade.learning.knapsack import find_best_within_budget, select_within_budget
from fedcascade.learning.oracles import select_per_category, select_top
from fedcascade.numerics import linear, streams
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, Vector
from fedcascade.simulation.exact.arrays import BETA, AgentState, CompiledEnvironment, CompiledLimits
from fedcascade.simulation.exact.screening import Scratch


@jit
def select_constrained(
    limits: CompiledLimits | None, environment: CompiledEnvironment, state: AgentState, own_root: Matrix | None,
    true_theta: Vector, scratch: Scratch, t: int, items: int,
) -> tuple[int, float]:  # fmt: skip
    """Write the list into ``scratch.selected``, and the squared widths of its items.

    ``own_root`` is that of the agent's personal part, None where it has none. Returns the length of the list and the
    reward of the best feasible one; -1 and -1 where there are no limits.
    """
    if limits is None:
        return -1, -1.0
    seed, theta, root, beta = environment.seed, state.theta, state.root, state.numbers[BETA]
    columns = np.ascontiguousarray(scratch.columns[: theta.size, :items])
    ties = streams.words(seed, streams.TIE, t, items)
    scores = linear.compute_ucb_scores(theta, root, beta, columns, own_root)
    weights = compute_weights(environment.link, true_theta, columns)
    length = limits.length
    if limits.exploration != GREEDY:
        selected = explore(limits.exploration, limits.level, scores, ties, length)
        given = compute_propensities(limits.exploration, limits.level, scores, selected)
        scratch.chances[: selected.size] = given
        best = select_top(weights, np.zeros(items, np.uint32), length)
    elif limits.per_category > 0:
        kinds, limit = draws.draw_categories(seed, t, items, environment.categories), limits.per_category
        selected = select_per_category(scores, ties, kinds, limit, length)
        best = select_per_category(weights, np.zeros(items, np.uint32), kinds, limit, length)
    else:
        costs = draws.draw_costs(seed, t, items)
        selected = select_within_budget(scores, ties, costs, limits.budget, length)
        best = find_best_within_budget(weights, costs, limits.budget, length)
    widths, missed = linear.compute_squared_widths(root, columns), 1.0
    for position in range(selected.size):
        item = selected[position]
        scratch.selected[position] = item
        scratch.squared_width[item] = widths[item]
    for position in range(best.size):
        missed *= 1.0 - fade_weight(environment.behaviour, position, weights[best[position]])
    return int(selected.size), 1.0 - missed
