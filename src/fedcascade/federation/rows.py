"""An agent's data as a *row*: the upper triangle of the gram, the moment, and count, clicks and rounds.

Features lie on the grid of 2^-12, so sums of rows are exact: they have the same bits whoever came and went, and the sum
of a group is kept by adding and subtracting single rows.
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.holdings import Holdings
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import GRID
from fedcascade.numerics.jit import jit, jit_inline

COUNTS = 3  # a row ends with count, clicks and rounds
STEPS = 1.0 / GRID**2  # products of two features are multiples of 1 / STEPS
Row = NDArray[np.float64]
Rows = NDArray[np.float64]
Labels = NDArray[np.int64]


def compute_width(dimension: int) -> int:
    """How many numbers a row has."""
    return dimension * (dimension + 1) // 2 + dimension + COUNTS


def gather_rows(holdings: Holdings, agents: Labels, limit: float) -> Rows:
    """The rows of some agents, each with no more than ``limit`` observations: a heavier one counts by a share."""
    rows = np.empty((agents.size, compute_width(holdings.dimension)))
    _fill_rows(rows, holdings.gram, holdings.moment, holdings.count, holdings.clicks, holdings.rounds, agents)
    limit_rows(rows, limit)
    return rows


def sum_rows(holdings: Holdings, agents: Labels, limit: float) -> Row:
    """The sum of the rows that ``gather_rows`` gives, some at a time."""
    total = np.zeros(compute_width(holdings.dimension))
    for start in range(0, agents.size, 1024):
        total += gather_rows(holdings, agents[start : start + 1024], limit).sum(axis=0)
    return total


def pack_row(statistics: Statistics, limit: float) -> Row:
    """Statistics as a row of no more than ``limit`` observations."""
    rows = np.empty((1, compute_width(statistics.dimension)))
    count, clicks, rounds = np.array([[statistics.count], [statistics.clicks], [statistics.rounds]])
    _fill_rows(rows, statistics.gram[None], statistics.moment[None], count, clicks, rounds, np.zeros(1, np.int64))
    limit_rows(rows, limit)
    return rows.ravel()


def unpack_row(row: Row, dimension: int) -> Statistics:
    """A row as statistics; counts that were weighted by probabilities are rounded down."""
    gram = np.empty((dimension, dimension))
    _unpack_gram(row, gram)
    moment, counts = row[-COUNTS - dimension : -COUNTS].copy(), row[-COUNTS:]
    return Statistics(gram, moment, *(int(count) for count in counts))


@jit
def limit_rows(rows: Rows, limit: float) -> None:
    """Scale rows of more than ``limit`` observations down to it, and back onto the grid, so that sums stay exact."""
    for row in rows:
        count = row[row.size - COUNTS]
        if count > limit:
            share = limit / count
            for k in range(row.size):
                row[k] = np.floor(share * row[k] * STEPS + 0.5) / STEPS


@jit
def _fill_rows(
    rows: Rows,
    gram: NDArray[np.float64],
    moment: NDArray[np.float64],
    count: Labels,
    clicks: Labels,
    rounds: Labels,
    agents: Labels,
) -> None:
    d = moment.shape[1]
    for place in range(agents.size):
        agent, row, k = agents[place], rows[place], 0
        for i in range(d):
            for j in range(i, d):
                row[k] = gram[agent, i, j]
                k += 1
        for i in range(d):
            row[k + i] = moment[agent, i]
        row[k + d], row[k + d + 1], row[k + d + 2] = count[agent], clicks[agent], rounds[agent]


@jit_inline
def _unpack_gram(row: Row, gram: NDArray[np.float64]) -> None:
    k = 0
    for i in range(gram.shape[0]):
        for j in range(i, gram.shape[0]):
            gram[i, j] = gram[j, i] = row[k]
            k += 1
