"""The grid that features live on, so that sums of what was seen are exact.

Features are multiples of ``GRID`` in [-1, 1]. Products of two are multiples of GRID^2 = 2^-24, and float64 holds every
multiple of it below 2^29 without rounding. Up to there a gram or a moment is exact: adding in any order, on any
machine, gives the same bits, and subtracting takes out exactly what was added (decision 9).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.numerics.jit import jit

GRID = 2.0**-12
PER_UNIT = np.float32(1.0 / GRID)
_GRID = np.float32(GRID)


@jit
def truncate_steps(steps: np.float32) -> np.float32:
    """The feature of so many steps of the grid, rounded toward zero to whole ones; they must fit into 32 bits."""
    return np.float32(np.int32(steps)) * _GRID


def round_to_grid(features: ArrayLike) -> NDArray[np.float32]:
    """Round toward zero to multiples of ``GRID``, so that no vector becomes longer.

    What is on the grid stays as it is; what is not finite stays so, for a check to refuse.

    >>> round_to_grid([0.5, 1 / 3, -1 / 3, -1e-9]).tolist()
    [0.5, 0.333251953125, -0.333251953125, 0.0]
    """
    steps = np.trunc(np.asarray(features, np.float64) / GRID)
    return (steps * GRID + 0.0).astype(np.float32)  # adding 0 makes a plain zero of minus zero
