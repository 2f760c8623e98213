"""What an answer may hold of others: nothing where they are few, and of nobody more than a bounded weight."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics.jit import jit, jit_inline


class Guard(NamedTuple):
    """What an answer may hold of others: only if they are so many, and of each so many medians of data at most."""

    min_others: int
    max_weight: float


NO_GUARD = Guard(0, math.inf)


class HeldArrays(NamedTuple):
    """What the server holds of each agent, as arrays over agents."""

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    observations: NDArray[np.int64]
    clicks: NDArray[np.int64]
    rounds: NDArray[np.int64]


@jit
def compute_shares(counts: NDArray[np.int64], max_weight: float) -> NDArray[np.float64]:
    """The share of each agent's data that is within ``max_weight`` medians of all counts.

    The median is rounded up to a power of two, so that one pass over the counts finds it.
    """
    sizes = np.zeros(64, np.int64)
    for count in counts:
        sizes[_measure_bits(count)] += 1
    limit = _find_limit(sizes, counts.size, max_weight)
    shares = np.ones(counts.size)
    for agent in range(counts.size):
        if counts[agent] > limit:
            shares[agent] = limit / counts[agent]
    return shares


@jit_inline
def _measure_bits(count: int) -> int:
    """How many bits a whole number above 0 has, read from the exponent of its float64: 2^bits is above the number."""
    return int(np.float64(count).view(np.int64) >> 52) - 1022


@jit_inline
def _find_limit(sizes: NDArray[np.int64], agents: int, max_weight: float) -> float:
    """``max_weight`` medians, of which ``sizes`` holds how many of the agents' counts have how many bits."""
    rank, bits = 0, -1
    while 2 * rank < agents:
        bits += 1
        rank += sizes[bits]
    return max_weight * 2.0**bits


@jit
def cap_members(
    agent: int,
    groups: NDArray[np.int64],
    labels: NDArray[np.int64],
    held: HeldArrays,
    guard: Guard,
    total_gram: NDArray[np.float64],
    total_moment: NDArray[np.float64],
) -> tuple[bool, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Subtract what the others of some groups have beyond the limit of ``compute_shares``, in one pass over all agents.

    ``total_gram`` and ``total_moment`` are those of the groups. Returns whether the others are as many as the guard
    wants, gram and moment of what is left, and by how much the counts fall.
    """
    d = held.moment.shape[1]
    gram, moment, counts = total_gram.copy(), total_moment.copy(), np.zeros(3, np.int64)
    sizes, members, others = np.zeros(64, np.int64), 0, 0
    is_in = np.zeros(labels.size, np.bool_)
    for member in range(labels.size):
        if held.observations[member] > 0 and _is_among(labels[member], groups):
            is_in[member] = True
            sizes[_measure_bits(held.observations[member])] += 1
            members += 1
            others += member != agent
    if others < guard.min_others:
        return False, gram, moment, counts
    limit = _find_limit(sizes, members, guard.max_weight)
    for member in range(labels.size):
        if is_in[member] and held.observations[member] > limit and member != agent:
            share = 1.0 - limit / held.observations[member]
            for j in range(d):
                moment[j] -= share * held.moment[member, j]
                for k in range(d):
                    gram[j, k] -= share * held.gram[member, j, k]
            counts[0] += int(share * held.observations[member])
            counts[1] += int(share * held.clicks[member])
            counts[2] += int(share * held.rounds[member])
    return True, gram, moment, counts


@jit_inline
def _is_among(label: int, groups: NDArray[np.int64]) -> bool:
    found = False
    for k in range(groups.size):
        found |= groups[k] == label
    return found
