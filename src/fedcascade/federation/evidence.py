"""The log marginal likelihood of an agent's clicks for theta ~ N(0, tau^2 I), on rows of data, compiled."""

import math
from typing import Any, NamedTuple

import numpy as np

from fedcascade.checks import POSITIVE
from fedcascade.constants import constant
from fedcascade.federation.rows import COUNTS, Row, Rows
from fedcascade.numerics import linear
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_no_refcount


class Memory(NamedTuple):
    """Scratch memory for one evaluation: an upper factor and a solution."""

    upper: Rows
    solution: Row


def describe_variance() -> Any:
    """Describe the field of the noise of a click, for parts that do not learn it."""
    meaning = "the noise of a click that the evidence assumes"
    return constant(0.2, meaning=meaning, symbol="sigma^2", range=POSITIVE)


def describe_length() -> Any:
    """Describe the field of the length of theta, for parts that do not learn it."""
    meaning = "how long a theta is expected to be, before any data: tau^2 is length^2 / d"
    return constant(1.0, meaning=meaning, symbol="tau sqrt(d)", range=POSITIVE)


def compute_prior(variance: float, length: float, dimension: int) -> float:
    """Return sigma^2 / tau^2."""
    return float(variance * dimension / length**2)


@jit
def make_memory(row: Row) -> Memory:
    """Allocate scratch memory for rows of that length."""
    d = int(math.sqrt(2.0 * (row.size - COUNTS) + 2.25) - 1.0)  # a row is d (d + 1) / 2 + d + COUNTS long
    return Memory(np.zeros((d, d)), np.zeros(d))


@jit_no_refcount
def measure_sum(total: Row, row: Row, sign: float, variance: float, prior: float, memory: Memory) -> float:
    """Return the evidence of a sum plus ``sign`` times another row; ``prior`` is sigma^2 / tau^2."""
    upper, solution = memory
    d, k, fit = solution.size, 0, 0.0
    for i in range(d):
        for j in range(i, d):
            upper[i, j] = total[k] + sign * row[k]
            k += 1
        upper[i, i] += prior
    linear.factorise(upper)
    for j in range(d):
        value = total[k + j] + sign * row[k + j]
        for i in range(j):
            value -= upper[i, j] * solution[i]
        solution[j] = value / upper[j, j]
        fit += solution[j] * solution[j]
    return float(0.5 * (fit / variance - linear.compute_log_det(upper) + d * log(prior)))
