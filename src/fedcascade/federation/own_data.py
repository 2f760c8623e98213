"""An agent's own data, kept apart from others' data, as arrays that the compiled engine shares.

``changes`` detects drift in them, and ``trust`` weighs others' data by them. A *row* is the upper triangle of a gram,
the moment, and count, clicks, rounds and shortfall.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit_inline
from fedcascade.numerics.linear import Features, Matrix, Vector, pack_sums, unpack_sums

MOST_BLOCKS = 32  # of 8 rounds, doubled every second block: enough for 260,000 rounds of one user
COUNTS = 4  # a row ends with count, clicks, rounds and shortfall
FIRST_NOISE, FIRST_DEVIATION = 0.25, 0.5  # variance and standard deviation of a click with probability 1/2
Indices = NDArray[np.int64]
Row = NDArray[np.float64]
Rows = NDArray[np.float64]


class OwnData(NamedTuple):
    """The own data of one agent, or of many agents along a leading axis.

    ``total`` sums all observations since the last change of the user. ``blocks`` hold the same data in the order of
    time; block i covers 2^levels[i] times as many rounds as a new one. ``since`` sums the observations since the CUSUM
    was last 0. ``others_gram`` and ``others_moment`` are others' part of the last download.
    """

    total: Row
    blocks: Rows
    levels: Indices
    used: Indices  # one number: the blocks that are filled
    since: Row
    others_gram: Matrix
    others_moment: Vector
    cusum: Vector  # one number, like the following
    weight: Vector  # of others' data
    noise: Vector  # variance of a click in the last download
    deviation: Vector  # standard deviation of a click


def compute_width(dimension: int) -> int:
    """Return the length of a row."""
    return dimension * (dimension + 1) // 2 + dimension + COUNTS


def pack_row(statistics: Statistics) -> Row:
    """Return statistics as a row."""
    row = np.empty(compute_width(statistics.dimension))
    pack_sums(statistics.gram, statistics.moment, row)
    row[-COUNTS:] = statistics.count, statistics.clicks, statistics.rounds, statistics.shortfall
    return row


def unpack_row(row: Row, dimension: int) -> Statistics:
    """Return a row as statistics."""
    gram, moment = np.empty((dimension, dimension)), np.empty(dimension)
    unpack_sums(row, gram, moment)
    count, clicks, rounds, shortfall = row[-COUNTS:].tolist()
    return Statistics(gram, moment, int(count), int(clicks), int(rounds), shortfall)


@jit_inline
def add_click(row: Row, listed: Features, click: int, reward: float) -> None:
    """Add a click of a list that ``add_list`` has added."""
    counts = row.size - COUNTS
    for i in range(listed.shape[1]):
        row[counts - listed.shape[1] + i] += reward * listed[click, i]
    row[counts + 1] += 1.0
    row[counts + 3] += 1.0 - reward


@jit_inline
def add_list(row: Row, listed: Features, examined: int, click: int, reward: float) -> None:
    """Add the first ``examined`` rows of a list to a row of data; ``click`` is a position, or -1."""
    d = listed.shape[1]
    counts = row.size - COUNTS
    for position in range(examined):
        k = 0
        for i in range(d):
            value = np.float64(listed[position, i])
            for j in range(i, d):
                row[k] += value * listed[position, j]
                k += 1
    if click >= 0:
        add_click(row, listed, click, reward)
    row[counts] += examined
    row[counts + 2] += 1.0


@jit_inline
def add_row(total: Row, row: Row) -> None:
    """Add a row to another."""
    for k in range(total.size):
        total[k] += row[k]


@jit_inline
def copy_row(target: Row, row: Row) -> None:
    """Write a row over another."""
    for k in range(target.size):
        target[k] = row[k]
