"""The grid of features, on which sums are exact.

Features are multiples of ``GRID`` in [-1, 1]. Products of two are multiples of GRID^2 = 2^-24, which float64 represents
exactly below 2^29. Up to there a gram or a moment has the same bits in any order of addition on any machine, and
subtraction is exact (decision 9).
"""

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.numerics.jit import jit, jit_within

Reward = TypeVar("Reward", float, NDArray[np.float64])
GRID = 2.0**-12
PER_UNIT = np.float32(1.0 / GRID)
_GRID = np.float32(GRID)


@jit
def truncate_steps(steps: np.float32) -> np.float32:
    """Round a number of grid steps, which must fit into 32 bits, toward zero, and return that feature."""
    return np.float32(np.int32(steps)) * _GRID


@jit_within
def round_to_nearest(reward: Reward) -> Reward:
    """Round a reward, or an array of them, to the nearest multiple of ``GRID``; halves go up."""
    rounded: Reward = np.floor(reward / GRID + 0.5) * GRID
    return rounded


def round_to_grid(features: ArrayLike) -> NDArray[np.float32]:
    """Round toward zero to multiples of ``GRID``, so that no vector becomes longer.

    Values that are not finite stay as they are, for a later check.

    >>> round_to_grid([0.5, 1 / 3, -1 / 3, -1e-9]).tolist()
    [0.5, 0.333251953125, -0.333251953125, 0.0]
    """
    steps = np.trunc(np.asarray(features, np.float64) / GRID)
    return (steps * GRID + 0.0).astype(np.float32)  # adding 0 turns -0.0 into 0.0


def normalise(features: ArrayLike) -> NDArray[np.float32]:
    """Scale each row to length 1 and round it to the grid; a row of zeros stays as it is.

    >>> normalise([[3.0, 4.0], [0.0, 0.0]]).tolist()
    [[0.599853515625, 0.7998046875], [0.0, 0.0]]
    """
    rows = np.asarray(features, np.float64)
    require(rows.ndim == 2, f"features must have one row per item, got shape {rows.shape}")
    require(bool(np.isfinite(rows).all()), "features must be finite numbers")
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)  # against overflow and underflow of squares
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    return round_to_grid(scaled / np.where(lengths > 0, lengths, 1.0))
