"""Compiled draws of a round: the user, the number of items and their features.

Draws have addresses (``numerics.streams``), so engines may request rounds in any order.
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import streams
from fedcascade.numerics.grid import PER_UNIT, round_to_grid, round_to_nearest, truncate_steps
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Features
from fedcascade.numerics.streams import Integer, WordBuffer

# Typed, because numba turns float32 * 1.0 into float64.
_ZERO, _TINY = np.float32(0.0), np.float32(1e-30)
# Lengths of the free coordinates before rounding, in steps of the grid. Items without a lift are slightly shorter than
# 1, so that single precision cannot exceed 1.
LENGTH = np.float32((1.0 - 2.0**-20) * PER_UNIT)
LIFTED_LENGTH = np.float32(0.5**0.5 * PER_UNIT)
LIFTING = np.float32(round_to_grid(0.5**0.5))  # the last coordinate of lifted items


@jit
def count_items(seed: Integer, round_: Integer, fewest: int, most: int) -> int:
    """Draw the number of items of a round, between ``fewest`` and ``most``."""
    if fewest == most:
        return most
    return fewest + int(streams.uniform(seed, streams.SHELF, round_, 0) * (most - fewest + 1))


@jit
def draw_arrivals_into(seed: Integer, first: Integer, steps: NDArray[np.float64], out: NDArray[np.int64]) -> None:
    """Fill ``out`` with the users of rounds first, first + 1, ...; ``steps`` as in ``compute_arrival_steps``."""
    for i in range(out.size):
        draw = streams.uniform(seed, streams.ARRIVAL, np.uint64(first) + np.uint64(i), 0)
        out[i] = np.searchsorted(steps, draw, side="right")


@jit
def draw_categories(seed: Integer, round_: Integer, items: int, categories: int) -> NDArray[np.int64]:
    """Draw the category of each item of a round, uniform in 0 to ``categories`` - 1."""
    words = streams.words(seed, streams.CATEGORY, round_, items).astype(np.uint64)
    return ((words * np.uint64(categories)) >> np.uint64(32)).astype(np.int64)


@jit
def draw_costs(seed: Integer, round_: Integer, items: int) -> NDArray[np.float64]:
    """Draw the cost of each item of a round, uniform in (0, 1]."""
    return (streams.words(seed, streams.COST, round_, items).astype(np.float64) + 1.0) * 2.0**-32


@jit
def draw_attracted(
    seed: Integer, round_: Integer, items: NDArray[np.intp], weights: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Draw for each item whether it would be clicked if examined."""
    attracted = np.empty(items.size, np.bool_)
    for i in range(items.size):
        attracted[i] = streams.uniform(seed, streams.CLICK, round_, items[i]) < weights[i]
    return attracted


@jit
def draw_reward(seed: Integer, round_: Integer, item: int, mean: float) -> float:
    """Draw the reward of a click: the j-th smallest of four uniform numbers, which follows Beta(j, 5 - j).

    j is random and near 5 ``mean``, so that the mean is exact; for j = 0 the reward is 0, and for 5 it is 1. The result
    is rounded to a multiple of ``GRID``.
    """
    draws = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    for k in range(1, 5):
        draws[k] = streams.uniform(seed, streams.REWARD, round_, 8 * item + k)
    draws.sort()
    drawn = draws[int(5.0 * mean + streams.uniform(seed, streams.REWARD, round_, 8 * item))]
    return float(round_to_nearest(drawn))


@jit_inline
def scale_columns(rows: Features, first: int, squares: NDArray[np.float32], length: np.float32) -> None:
    """Scale the columns from ``first`` on to ``length`` steps of the grid, and round them toward zero.

    Overwrites ``squares``, their squared lengths.
    """
    for i in range(squares.size):
        squares[i] = length / np.sqrt(max(squares[i], _TINY))
    for k in range(rows.shape[0]):
        row = rows[k, first:]
        for i in range(squares.size):
            row[i] = truncate_steps(row[i] * squares[i])


@jit_inline
def draw_unit_items_into(seed: Integer, round_: Integer, out: Features, lifted: bool, buffer: WordBuffer) -> None:
    """Fill ``out`` (dimension, items) with items uniform on the unit sphere, rounded to the grid.

    Lifted items are uniform on a sphere with one dimension less; their last coordinate is 1/sqrt(2), rounded.
    """
    free = out.shape[0] - 1 if lifted else out.shape[0]
    for first in range(0, out.shape[1], streams.BLOCK):
        count = streams.draw_normal_block(seed, streams.ITEMS, round_, first, out[:free], buffer)
        scale_columns(out[:free], first, buffer.squares[:count], LIFTED_LENGTH if lifted else LENGTH)
    out[free:] = LIFTING


@jit
def draw_catalogue_items_into(seed: Integer, round_: Integer, out: Features, catalogue: Features) -> None:
    """Fill ``out`` (dimension, items) with distinct columns of ``catalogue``, drawn uniformly.

    The first items do not depend on the number of items. Surplus columns of ``out`` are 0.
    """
    drawn = min(out.shape[1], catalogue.shape[1])
    order = streams.sample_indices(seed, streams.ITEMS, round_, catalogue.shape[1], drawn)
    for k in range(out.shape[0]):
        for i in range(drawn):
            out[k, i] = catalogue[k, order[i]]
    out[:, drawn:] = _ZERO


@jit
def count_shown(seed: Integer, first: Integer, lists: NDArray[np.int32], most: int, shown: NDArray[np.int64]) -> None:
    """Add the catalogue items of lists to ``shown``; a row of ``lists`` has the places of items on offer, or -1."""
    for i in range(lists.shape[0]):
        round_ = np.uint64(first) + np.uint64(i)
        order = streams.sample_indices(seed, streams.ITEMS, round_, shown.size, most)
        for item in lists[i]:
            if item >= 0:
                shown[order[item]] += 1


@jit_inline
def draw_items_into(
    seed: Integer, round_: Integer, out: Features, lifted: bool, catalogue: Features, buffer: WordBuffer
) -> None:
    """Fill ``out`` (dimension, items) with a round's items: from ``catalogue``, or random ones if it is empty."""
    if catalogue.shape[1] > 0:
        draw_catalogue_items_into(seed, round_, out, catalogue)
    else:
        draw_unit_items_into(seed, round_, out, lifted, buffer)
