"""Limits on other agents' data in an answer: a least number of agents, and a bounded weight of each."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.holdings import HeldArrays
from fedcascade.numerics.jit import jit, jit_brief, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

Indices = NDArray[np.int64]


class Guard(NamedTuple):
    """Limits on other agents' data in an answer."""

    min_others: int  # with fewer other agents, an answer holds the agent's own data alone
    max_weight: float  # most data of one other agent, in medians


NO_GUARD = Guard(0, math.inf)


@jit_inline
def _measure_bits(count: int) -> int:
    """Return the bit length of a positive integer, read from the exponent of its float64."""
    return int(np.float64(count).view(np.int64) >> 52) - 1022


@jit_inline
def _is_among(groups: Indices, label: int) -> bool:
    is_among = False
    for group in groups:
        is_among |= group == label
    return is_among


@jit_brief
def measure_members(agent: int, groups: Indices, labels: Indices, counts: Indices) -> tuple[int, int, int]:
    """Measure the agents with data in some groups.

    Return the number of agents other than ``agent``, the bit length of the median count, and the largest other count.
    """
    sizes = np.zeros(64, np.int64)
    members = others = heaviest = 0
    for member in range(labels.size):
        count = counts[member]
        if count > 0 and _is_among(groups, labels[member]):
            sizes[_measure_bits(count)] += 1
            members += 1
            if member != agent:
                others += 1
                heaviest = max(heaviest, count)
    median, smaller = 1, sizes[1]
    while 2 * smaller < members:
        median += 1
        smaller += sizes[median]
    return others, median, heaviest


@jit
def subtract_excess(
    agent: int, groups: Indices, labels: Indices, limit: float, held: HeldArrays, gram: Matrix, moment: Vector
) -> Vector:
    """Scale other agents of some groups down to ``limit`` observations, in the sums of these groups.

    Return the decrease of counts, clicks, rounds and shortfalls.
    """
    fallen = np.zeros(4)
    for member in range(labels.size):
        count = held.observations[member]
        if count > limit and member != agent and _is_among(groups, labels[member]):
            share = 1.0 - limit / count
            for j in range(moment.size):
                moment[j] -= share * held.moment[member, j]
                for k in range(moment.size):
                    gram[j, k] -= share * held.gram[member, j, k]
            fallen[0] += int(share * count)
            fallen[1] += int(share * held.clicks[member])
            fallen[2] += int(share * held.rounds[member])
            fallen[3] += share * held.shortfall[member]
    return fallen
