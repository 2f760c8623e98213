"""What an answer may hold of others: nothing where they are few, and of nobody more than a bounded weight."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics.jit import jit, jit_brief, jit_inline


class Guard(NamedTuple):
    """What an answer may hold of others: only if they are so many, and of each so many medians of data at most."""

    min_others: int
    max_weight: float


NO_GUARD = Guard(0, math.inf)


@jit
def find_limit(
    labels: NDArray[np.int64], group: int, counts: NDArray[np.int64], guess: int, max_weight: float
) -> tuple[int, float]:
    """How many members of a group have data, and ``max_weight`` medians of their counts, each rounded up to 2^n.

    So a few passes that LLVM vectorises find it. They are fewest where the count ``guess`` is near the median.
    """
    bits = max(1, _measure_bits(max(1, guess)))
    members, fewer, few = 0, 0, 0
    shorter, end = 1 << (bits - 1), 1 << bits
    for member in range(labels.size):
        count = counts[member] if labels[member] == group else 0
        members += count > 0
        fewer += (count > 0) & (count < shorter)
        few += (count > 0) & (count < end)
    while bits > 1 and 2 * fewer >= members:
        bits -= 1
        fewer, few = members - _count_above(labels, group, counts, (1 << (bits - 1)) - 1), fewer
    while 2 * few < members:
        bits += 1
        few = members - _count_above(labels, group, counts, (1 << bits) - 1)
    return members, float(max_weight * 2.0**bits)


@jit_inline
def _measure_bits(count: int) -> int:
    """How many bits a whole number above 0 has, read from the exponent of its float64: 2^bits is above the number."""
    return int(np.float64(count).view(np.int64) >> 52) - 1022


@jit_inline
def _count_above(labels: NDArray[np.int64], group: int, counts: NDArray[np.int64], most: int) -> int:
    """How many members of a group have more than so many."""
    above = 0
    for member in range(labels.size):
        above += (labels[member] == group) & (counts[member] > most)
    return above


@jit_brief
def limit_members(
    agent: int,
    groups: NDArray[np.int64],
    labels: NDArray[np.int64],
    counts: NDArray[np.int64],
    min_others: int,
    max_weight: float,
) -> tuple[bool, float, bool]:
    """What a guard says of some groups, each named once: of whom ``agent`` is told, and how much.

    Returns whether the others that have data are as many as it wants, the limit of what one of them may weigh, and
    whether somebody has more.
    """
    group, own, labels = int(groups[0]), int(counts[agent]), _join_groups(groups, labels)
    members, limit = find_limit(labels, group, counts, own, max_weight)
    most = int(min(limit, 2.0**62))  # whole numbers are compared side by side
    heavier = _count_above(labels, group, counts, most)
    return members - (own > 0) >= min_others, limit, heavier > (own > most)


@jit
def _join_groups(groups: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labels in which the members of some groups have that of the first."""
    joined = labels if groups.size == 1 else labels.copy()
    for group in groups[1:]:
        for member in range(labels.size):
            joined[member] = groups[0] if labels[member] == group else joined[member]
    return joined


@jit
def subtract_excess(
    agent: int,
    groups: NDArray[np.int64],
    labels: NDArray[np.int64],
    limit: float,
    gram: NDArray[np.float64],
    moment: NDArray[np.float64],
    counts: NDArray[np.int64],
    clicks: NDArray[np.int64],
    rounds: NDArray[np.int64],
    total_gram: NDArray[np.float64],
    total_moment: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Subtract what the others of some groups have beyond the limit of ``limit_members``.

    ``total_gram`` and ``total_moment`` are those of the groups. Returns gram and moment of what is left, and by how
    much counts, clicks and rounds fall.
    """
    d = moment.shape[1]
    left_gram, left_moment, fallen = total_gram.copy(), total_moment.copy(), np.zeros(3, np.int64)
    joined = _join_groups(groups, labels)
    for member in range(labels.size):
        if joined[member] == groups[0] and counts[member] > limit and member != agent:
            share = 1.0 - limit / counts[member]
            for j in range(d):
                left_moment[j] -= share * moment[member, j]
                for k in range(d):
                    left_gram[j, k] -= share * gram[member, j, k]
            fallen[0] += int(share * counts[member])
            fallen[1] += int(share * clicks[member])
            fallen[2] += int(share * rounds[member])
    return left_gram, left_moment, fallen
