"""A walk through the partitions that data allow: collapsed Gibbs sampling, compiled.

What is known of an agent is a *row*: gram, moment, counts. What is known of a group is the sum of its rows.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedcascade.compiled import compiled
from fedcascade.learning import linear

NOBODY = -1  # the place of an agent between two groups
COUNTS = 3  # a row ends with count, clicks and rounds
Rows = NDArray[np.float64]
Places = NDArray[np.int64]


@compiled
def evidence_of(gram: Rows, moment: NDArray[np.float64], variance: float, prior: float) -> float:
    """E(S, b), the log marginal likelihood of clicks, up to what cancels."""
    d = moment.size
    matrix = gram.copy()
    for k in range(d):
        matrix[k, k] += prior
    upper = linear.cholesky(matrix)
    fit = 0.0
    for value in linear.whitened(upper, moment):
        fit += value * value
    return 0.5 * (fit / variance - linear.log_determinant(upper) + d * math.log(prior))


@compiled
def _known(row: NDArray[np.float64], variance: float, prior: float) -> float:
    d = int(math.sqrt(row.size - COUNTS))  # a row is d^2 + d + COUNTS long
    return evidence_of(row[: d * d].reshape((d, d)), row[d * d : d * d + d], variance, prior)


@compiled
def _sum_up(rows: Rows, places: Places, place: int, total: NDArray[np.float64]) -> int:
    """The sum of a group, always in the order of agents, so that it has the same bits however it came about."""
    total[:] = 0.0
    size = 0
    for agent in range(places.size):
        if places[agent] == place:
            size += 1
            for k in range(total.size):
                total[k] += rows[agent, k]
    return size


@compiled
def _chances(gains: NDArray[np.float64]) -> None:
    """Log-odds become probabilities; minus infinity becomes 0."""
    largest, total = gains.max(), 0.0
    for place in range(gains.size):
        gains[place] = math.exp(gains[place] - largest)
        total += gains[place]
    for place in range(gains.size):
        gains[place] /= total


@compiled
def _drawn(chances: NDArray[np.float64], draw: float) -> int:
    reached, last = 0.0, 0
    for place in range(chances.size):
        if chances[place] > 0.0:
            reached += chances[place]
            last = place
            if draw < reached:
                return place
    return last  # rounding kept the sum of all below the draw


@compiled
def walk(
    rows: Rows,
    alone: NDArray[np.float64],
    places: Places,
    groups: int,
    visits: Places,
    draws: NDArray[np.float64],
    hurdle: float,
    variance: float,
    prior: float,
) -> NDArray[np.float64]:
    """Visit agents; each leaves its group and goes where the data and its draw say. Changes ``places``.

    Args:
        rows: what is known of each agent.
        alone: E of each row.
        places: the group of each agent, in 0..groups - 1.
        groups: how many there are.
        visits: the agents to visit, in order; the first one is the asker.
        draws: a uniform number for each visit.
        hurdle: the log-odds of a group of its own.
        variance: the noise of a click.
        prior: l.

    Returns:
        What the groups of the asker know without it, on average over its visits.
    """
    room = min(groups + visits.size, rows.shape[0]) + 1
    sums, known = np.zeros((room, rows.shape[1])), np.zeros(room)
    size, gains = np.zeros(room, np.int64), np.empty(room)
    for place in range(groups):
        size[place] = _sum_up(rows, places, place, sums[place])
        known[place] = _known(sums[place], variance, prior)
    asked, expected = 0, np.zeros(rows.shape[1])
    for visit in range(visits.size):
        agent = visits[visit]
        left = places[agent]
        places[agent] = NOBODY
        size[left] = _sum_up(rows, places, left, sums[left])
        known[left] = _known(sums[left], variance, prior)
        free = NOBODY
        for place in range(room):
            gains[place] = -math.inf
            if size[place] > 0:
                gains[place] = _known(sums[place] + rows[agent], variance, prior) - known[place] - alone[agent]
            elif free == NOBODY:
                free = place
        gains[free] = hurdle
        _chances(gains)
        if agent == visits[0]:
            asked += 1
            for place in range(room):
                if gains[place] > 0.0:
                    expected += gains[place] * sums[place]
        joined = _drawn(gains, draws[visit])
        places[agent] = joined
        size[joined] = _sum_up(rows, places, joined, sums[joined])
        known[joined] = _known(sums[joined], variance, prior)
    return expected / asked
