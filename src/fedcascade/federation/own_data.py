"""An agent's own data, kept apart from what others sent, as arrays that the compiled engine shares.

They say whether the user has changed (``changes``) and how far to believe others' data (``trust``).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.rows import COUNTS, Row, Rows, compute_width
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Features, Matrix, Vector

MOST_BLOCKS = 32  # of 8 rounds, doubled every second block: enough for 260,000 rounds of one user
CUSUM, WEIGHT, NOISE, DEVIATION = 0, 1, 2, 3  # places in OwnData.numbers
Indices = NDArray[np.int64]


class OwnData(NamedTuple):
    """The own data of one agent; of many, where every array has one more axis in front. Rows are those of ``rows.py``.

    ``total`` is all that the agent observed since the last change of its user. ``blocks`` are the same data in the
    order of time, of which ``used`` are filled; block i holds 2^levels[i] times as many rounds as a new one. ``since``
    is what was observed since the CUSUM was last 0. ``others_gram`` and ``others_moment`` are what others added to the
    last download.
    """

    total: Row
    blocks: Rows
    levels: Indices
    used: Indices  # one number
    since: Row
    others_gram: Matrix
    others_moment: Vector
    numbers: Vector  # CUSUM, WEIGHT, NOISE of the last download, DEVIATION of a click


def make_own_data(shape: Sequence[int], dimension: int, *, has_blocks: bool) -> OwnData:
    """The data of agents that have seen nothing, one for each place of ``shape``; () for one agent."""
    lead, width, blocks = tuple(shape), compute_width(dimension), MOST_BLOCKS if has_blocks else 0
    numbers = np.zeros((*lead, 4))
    numbers[..., NOISE], numbers[..., DEVIATION] = 0.25, 0.5
    return OwnData(
        np.zeros((*lead, width)), np.zeros((*lead, blocks, width)), np.zeros((*lead, blocks), np.int64),
        np.zeros((*lead, 1), np.int64), np.zeros((*lead, width)), np.zeros((*lead, dimension, dimension)),
        np.zeros((*lead, dimension)), numbers,
    )  # fmt: skip


@jit_inline
def add_list(row: Row, listed: Features, examined: int, click: int) -> None:
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
        for i in range(d):
            row[counts - d + i] += listed[click, i]
    row[counts] += examined
    row[counts + 1] += click >= 0
    row[counts + 2] += 1.0


@jit
def add_click(row: Row, listed: Features, click: int) -> None:
    """Add a further click of a list that ``add_list`` has added."""
    counts = row.size - COUNTS
    for i in range(listed.shape[1]):
        row[counts - listed.shape[1] + i] += listed[click, i]
    row[counts + 1] += 1.0


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
