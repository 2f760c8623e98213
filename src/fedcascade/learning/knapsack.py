"""Lists within a budget: a knapsack problem, solved by greedy exchanges or exactly.

1 - prod(1 - w) grows with the sum of v = -ln(1 - w), so the best list of at most K items within the budget B solves a
0/1 knapsack problem with a limit on the number of items.

**Greedy exchanges.** Start with the K most valuable items that fit alone. While the list is over budget, replace an
item by a cheaper one, or by nothing, with the least loss of value per cost saved. The result is the better of the first
list within budget, and the item removed last.

**The factor is 1/2.** Each list L on the way maximises v(L) - m c(L) over all lists of at most K items, for some
m >= 0. At first m = 0. As m grows, L stays a maximiser until m reaches the least (v_i - v_j) / (c_i - c_j), where the
list after that exchange is a maximiser too. A maximiser has the largest value of all lists of at most its cost. So the
last list over budget, L, has v(L) >= v*, the largest value within the budget. The next list L' lacks one item i of L,
so v(L') + v(i) >= v(L) >= v*, and the better of L' and {i} has at least v*/2. With g(x) = 1 - exp(-x), concave and
g(0) = 0, the reward is at least g(v*/2) >= g(v*)/2. Items that still fit are added at the end.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, require, require_integer
from fedcascade.learning.oracles import NO_ATTRIBUTES, Chosen, Costs, ItemAttributes, Scores, Ties, select_top
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_inline

Values = NDArray[np.float64]
SLACK = 1.0 + 1e-12  # relative, for the rounding of sums of costs
SMALLEST_MISS = 2.0**-53  # lower bound of 1 - w, so that a certain click has a finite value


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Items whose costs sum to at most ``budget``, by greedy exchanges: at least half of the optimal reward.

    ``best`` is exact, by branch and bound. Regret is alpha f(best) - f(chosen), which may be negative.

    >>> items = ItemAttributes(costs=np.array([1.0, 0.6, 0.4, 0.5]))
    >>> oracle, weights = Budget(length=2, budget=1.0), np.array([0.7, 0.5, 0.6, 0.1])
    >>> oracle.choose(weights, np.zeros(4, np.uint32), items).tolist(), oracle.best(weights, items).tolist()
    ([0], [2, 1])
    """

    alpha: ClassVar[float] = 0.5
    length: int = 4
    budget: float = 1.0

    def __post_init__(self) -> None:
        require_integer("list length", self.length)
        POSITIVE.check("budget", self.budget)

    def choose(self, scores: Scores, ties: Ties, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        chosen = select_within_budget(scores, ties, attributes.get_costs(), self.budget, self.length)
        require_affordable(chosen.size > 0, self.budget)
        return chosen

    def best(self, weights: Scores, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        chosen = find_best_within_budget(weights, attributes.get_costs(), self.budget, self.length)
        require_affordable(chosen.size > 0, self.budget)
        return chosen


def require_affordable(is_affordable: bool, budget: float) -> None:
    """Reject a round in which no item fits into the budget."""
    require(is_affordable, f"no item on offer costs at most the budget, {budget:.6g}: raise it")


@jit
def select_within_budget(scores: Scores, ties: Ties, costs: Costs, budget: float, length: int) -> Chosen:
    """Select a list by greedy exchanges, in the order of ``select_top``; empty if no item fits."""
    values = compute_values(scores, costs, budget)
    listed, removed, _ = exchange_until_affordable(values, ties, costs, budget, length)
    if removed >= 0 and values[removed] > _sum_of(values, listed):
        listed[:] = -1
        listed[0] = removed
    return _fill_up(listed, scores, values, ties, costs, budget)


@jit
def compute_values(weights: Scores, costs: Costs, budget: float) -> Values:
    """Compute v = -ln(1 - w) of each item, with w clipped to [0, 1]; -1 for an item that does not fit alone."""
    values = np.empty(weights.size)
    for item in range(weights.size):
        weight = min(max(weights[item], 0.0), 1.0)
        values[item] = -log(max(1.0 - weight, SMALLEST_MISS)) if costs[item] <= budget * SLACK else -1.0
    return values


@jit_inline
def _sum_of(numbers: NDArray[np.float64], listed: Chosen) -> float:
    total = 0.0
    for item in listed:
        if item >= 0:
            total += numbers[item]
    return total


@jit
def exchange_until_affordable(
    values: Values, ties: Ties, costs: Costs, budget: float, length: int
) -> tuple[Chosen, int, float]:
    """Exchange items greedily, starting with the most valuable ones; empty positions hold -1.

    Return the list, the item removed last or -1, and the loss of value per cost saved of that exchange.
    """
    listed = select_top(values, ties, length)
    is_listed = np.zeros(values.size, np.bool_)
    for place in range(listed.size):
        if values[listed[place]] < 0.0:
            listed[place] = -1
        else:
            is_listed[listed[place]] = True
    removed, rate = -1, 0.0
    while _sum_of(costs, listed) > budget * SLACK:
        place, incoming, rate = _find_cheapest_exchange(values, costs, listed, is_listed)
        removed = listed[place]
        is_listed[removed] = False
        listed[place] = incoming
        if incoming >= 0:
            is_listed[incoming] = True
    return listed, removed, rate


@jit
def _find_cheapest_exchange(
    values: Values, costs: Costs, listed: Chosen, is_listed: NDArray[np.bool_]
) -> tuple[int, int, float]:
    """Return the position, its new item or -1, and the loss of the exchange with least loss per cost saved."""
    best_place, best_item, least = -1, -1, np.inf
    for place in range(listed.size):
        item = listed[place]
        if item < 0 or costs[item] == 0.0:
            continue
        if values[item] / costs[item] < least:
            best_place, best_item, least = place, -1, values[item] / costs[item]
        for other in range(values.size):
            if values[other] >= 0.0 and not is_listed[other] and costs[other] < costs[item]:
                loss = (values[item] - values[other]) / (costs[item] - costs[other])
                if loss < least:
                    best_place, best_item, least = place, other, loss
    return best_place, best_item, least


@jit
def _fill_up(listed: Chosen, scores: Scores, values: Values, ties: Ties, costs: Costs, budget: float) -> Chosen:
    """Add items that still fit, best first, and return the list in falling order of scores."""
    total, free = _sum_of(costs, listed), 0
    is_listed = np.zeros(values.size, np.bool_)
    for item in listed:
        if item >= 0:
            is_listed[item] = True
        else:
            free += 1
    order = select_top(scores, ties, scores.size)
    for item in order:
        if free > 0 and values[item] >= 0.0 and not is_listed[item] and total + costs[item] <= budget * SLACK:
            is_listed[item] = True
            total += costs[item]
            free -= 1
    chosen, count = np.empty(listed.size, np.intp), 0
    for item in order:
        if is_listed[item]:
            chosen[count] = item
            count += 1
    return chosen[:count]


@jit
def find_best_within_budget(weights: Scores, costs: Costs, budget: float, length: int) -> Chosen:
    """Find an optimal list by branch and bound; empty if no item fits.

    With r = v - m c, for the m at which greedy exchanges end, a list within the budget B has at most the value m B plus
    the sum of its r. Items are tried in falling order of r, so the next few r bound the rest of a list.
    """
    ties = np.zeros(weights.size, np.uint32)
    chosen = select_within_budget(weights, ties, costs, budget, length)
    values = compute_values(weights, costs, budget)
    _, removed, rate = exchange_until_affordable(values, ties, costs, budget, length)
    if removed < 0:
        return chosen  # the most valuable items fit together
    reduced = np.where(values >= 0.0, values - rate * costs, -np.inf)
    order = select_top(reduced, ties, reduced.size)
    sums = np.zeros(order.size + 1)  # cumulative, of positive values
    for place in range(order.size):
        sums[place + 1] = sums[place] + max(reduced[order[place]], 0.0)
    incumbent, most = _sum_of(values, chosen), min(length, order.size)
    at = np.full(most + 1, -1)  # index in ``order`` at each level
    cost, value, gain = np.zeros(most + 1), np.zeros(most + 1), np.zeros(most + 1)  # sums over the levels above
    level = 0
    while level >= 0:
        at[level] += 1
        place = at[level]
        bound = gain[level] + rate * budget * SLACK + sums[min(place + most - level, order.size)]
        if place >= order.size or bound - sums[min(place, order.size)] <= incumbent:
            level -= 1
            continue
        item = order[place]
        if values[item] < 0.0 or cost[level] + costs[item] > budget * SLACK:
            continue
        cost[level + 1], value[level + 1] = cost[level] + costs[item], value[level] + values[item]
        gain[level + 1], at[level + 1] = gain[level] + reduced[item], place
        if value[level + 1] > incumbent:
            incumbent = value[level + 1]
            chosen = order[at[: level + 1]].copy()
        if level + 1 < most:
            level += 1
    return chosen
