"""A walk through the partitions that data allow: collapsed Gibbs sampling, compiled.

What is known of an agent is a *row*: gram, moment, counts. What is known of a group is the sum of its rows.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit

NOBODY = -1  # the place of an agent between two groups
CERTAIN = 7.0  # log-odds of a thousand to one
COUNTS = 3  # a row ends with count, clicks and rounds
Rows = NDArray[np.float64]
Places = NDArray[np.int64]


@jit
def evidence_of(gram: Rows, moment: NDArray[np.float64], variance: float, prior: float) -> float:
    """E(S, b), the log marginal likelihood of clicks, up to what cancels."""
    upper = linear.cholesky(linear.add_diagonal(gram, prior))
    fit = 0.0
    for value in linear.solve_upper_transposed(upper, moment):
        fit += value * value
    return 0.5 * (fit / variance - linear.compute_log_det(upper) + moment.size * math.log(prior))


@jit
def _known(row: NDArray[np.float64], variance: float, prior: float) -> float:
    d = int(math.sqrt(row.size - COUNTS))  # a row is d^2 + d + COUNTS long
    return evidence_of(row[: d * d].reshape((d, d)), row[d * d : d * d + d], variance, prior)


@jit
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


@jit
def _chances(gains: NDArray[np.float64]) -> None:
    """Log-odds become probabilities; minus infinity becomes 0."""
    largest, total = gains.max(), 0.0
    for place in range(gains.size):
        gains[place] = math.exp(gains[place] - largest)
        total += gains[place]
    for place in range(gains.size):
        gains[place] /= total


@jit
def _drawn(chances: NDArray[np.float64], draw: float) -> int:
    reached, last = 0.0, 0
    for place in range(chances.size):
        if chances[place] > 0.0:
            reached += chances[place]
            last = place
            if draw < reached:
                return place
    return last  # rounding kept the sum of all below the draw


class Groups(NamedTuple):
    """What is known of the groups in a partition, by place; a group without members is free."""

    sums: Rows
    known: NDArray[np.float64]  # E of each sum
    size: Places
    members: Places  # a number for who is in a group: others have another one
    numbers: Places  # how many such numbers have been given


class Found(NamedTuple):
    """The evidence that an agent belongs to each group, and for which members it was found."""

    gains: NDArray[np.float64]
    members: Places


@jit
def _look(rows: Rows, places: Places, place: int, groups: Groups, variance: float, prior: float) -> None:
    """Bring what is known of one group up to date."""
    groups.size[place] = _sum_up(rows, places, place, groups.sums[place])
    groups.known[place] = _known(groups.sums[place], variance, prior)
    groups.numbers[0] += 1
    groups.members[place] = groups.numbers[0]


@jit
def _gains(
    row: NDArray[np.float64],
    alone: float,
    groups: Groups,
    variance: float,
    prior: float,
    gains: NDArray[np.float64],
    found: Found,
) -> int:
    """Fill ``gains`` with the evidence that a row belongs to each group; a free place, or NOBODY.

    What was found for the same members before is not computed again: most groups stay as they are in a walk.
    """
    free = NOBODY
    for place in range(gains.size):
        gains[place] = -math.inf
        if groups.size[place] > 0:
            if found.members[place] != groups.members[place]:
                found.gains[place] = _known(groups.sums[place] + row, variance, prior) - groups.known[place] - alone
                found.members[place] = groups.members[place]
            gains[place] = found.gains[place]
        elif free == NOBODY:
            free = place
    return free


@jit
def _apart(size: Places, others: int) -> float:
    """How the others are: the log-odds of having founded a group to having joined one.

    With it, before any data, G groups of n agents have the weight exp(hurdle G) / (n - 1 choose G - 1).
    """
    founded = int(np.count_nonzero(size))
    return math.log(max(founded, 1) / (others - founded + 1))


@jit
def _merge(
    rows: Rows, places: Places, place: int, groups: Groups, hurdle: float, variance: float, prior: float
) -> None:
    """Let a whole group join the one with the most evidence for it, while that is all but certain to be right.

    Agents that move one by one hardly ever empty one of two large groups that are alike.
    """
    gains = np.empty(groups.size.size)
    while True:
        members, groups.size[place] = groups.size[place], 0
        found = Found(np.empty(gains.size), np.zeros(gains.size, np.int64))
        _gains(groups.sums[place], groups.known[place], groups, variance, prior, gains, found)
        groups.size[place] = members
        other = int(gains.argmax())
        if gains[other] < hurdle + CERTAIN:
            return
        for agent in range(places.size):
            if places[agent] == place:
                places[agent] = other
        groups.size[place] = 0
        _look(rows, places, other, groups, variance, prior)
        place = other


@jit
def _sweep(visits: Places) -> int:
    """After how many visits it is the asker's turn again."""
    for visit in range(1, visits.size):
        if visits[visit] == visits[0]:
            return visit
    return int(visits.size)


@jit
def walk(
    rows: Rows,
    alone: NDArray[np.float64],
    places: Places,
    count: int,
    visits: Places,
    draws: NDArray[np.float64],
    hurdle: float,
    variance: float,
    prior: float,
) -> NDArray[np.float64]:
    """Visit agents; each leaves its group and goes where the data and its draw say. Changes ``places``.

    Args:
        rows: what is known of each agent that has spoken.
        alone: E of each row.
        places: the group of each agent, in 0..count - 1.
        count: how many groups there are.
        visits: the agents to visit, in order; the first one is the asker.
        draws: a uniform number for each visit.
        hurdle: added to the log-odds of a group of its own, which are as the others have it.
        variance: the noise of a click.
        prior: l.

    Returns:
        What the groups of the asker know without it, on average over its visits.
    """
    room = min(count + visits.size, rows.shape[0]) + 1
    numbers = np.zeros(1, np.int64)
    groups = Groups(
        np.zeros((room, rows.shape[1])), np.zeros(room), np.zeros(room, np.int64), np.zeros(room, np.int64), numbers
    )
    sweep = _sweep(visits)
    found = Found(np.zeros((sweep, room)), np.zeros((sweep, room), np.int64))
    for place in range(count):
        _look(rows, places, place, groups, variance, prior)
    gains, asked, expected = np.empty(room), 0, np.zeros(rows.shape[1])
    for visit in range(visits.size):
        agent = visits[visit]
        left = places[agent]
        places[agent] = NOBODY
        members = groups.members[left]
        _look(rows, places, left, groups, variance, prior)
        own = Found(found.gains[visit % sweep], found.members[visit % sweep])
        free = _gains(rows[agent], alone[agent], groups, variance, prior, gains, own)
        gains[free] = hurdle + _apart(groups.size, places.size - 1)
        _chances(gains)
        if agent == visits[0]:
            asked += 1
            for place in range(room):
                if gains[place] > 0.0 and groups.size[place] > 0:
                    expected += gains[place] * groups.sums[place]
        places[agent] = _drawn(gains, draws[visit])
        _look(rows, places, places[agent], groups, variance, prior)
        if places[agent] == left:
            groups.members[left] = members  # it is the group that it was
        if agent == visits[0]:
            _merge(rows, places, places[agent], groups, hurdle, variance, prior)
    return expected / asked
