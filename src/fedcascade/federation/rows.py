"""An agent's data as a *row*: the upper triangle of the gram, the moment, and count, clicks, rounds and shortfall."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.linear import pack_sums, unpack_sums

COUNTS = 4  # a row ends with count, clicks, rounds and shortfall
Row = NDArray[np.float64]
Rows = NDArray[np.float64]


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
