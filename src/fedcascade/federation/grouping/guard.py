"""What an answer may hold of others: nothing where they are few, and a bounded weight of each."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.holdings import HeldArrays
from fedcascade.numerics.jit import jit, jit_brief, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

Indices = NDArray[np.int64]


class Guard(NamedTuple):
    """What an answer may hold of others: only if they are so many, and of each so many medians of data at most."""

    min_others: int
    max_weight: float


NO_GUARD = Guard(0, math.inf)


@jit_inline
def _measure_bits(count: int) -> int:
    """Return how many bits a whole number above 0 has, read from the exponent of its float64."""
    return int(np.float64(count).view(np.int64) >> 52) - 1022


@jit_inline
def _is_among(groups: Indices, label: int) -> bool:
    is_among = False
    for group in groups:
        is_among |= group == label
    return is_among


@jit_brief
def measure_members(agent: int, groups: Indices, labels: Indices, counts: Indices) -> tuple[int, int, int]:
    """Measure the agents of some groups that have data.

    Return how many there are beside ``agent``, the bits of the median of all their counts, at least 1, and the largest
    count beside that of ``agent``.
    """
    sizes, members, others, heaviest = np.zeros(64, np.int64), 0, 0, 0
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
) -> Indices:
    """Subtract what others of some groups have beyond ``limit`` observations from the sums of these groups.

    Return by how much counts, clicks and rounds fall.
    """
    fallen = np.zeros(3, np.int64)
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
    return fallen
