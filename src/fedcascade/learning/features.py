"""Features that an agent takes: rows of length at most 1, on the grid."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require
from fedcascade.numerics.grid import round_to_grid


def normalise(features: ArrayLike) -> NDArray[np.float32]:
    """Scale each row to length 1 and round it to the grid; a row of zeros stays as it is.

    An item gets the same row whatever others are beside it, today and later.

    >>> normalise([[3.0, 4.0], [0.0, 0.0]]).tolist()
    [[0.599853515625, 0.7998046875], [0.0, 0.0]]
    """
    rows = np.asarray(features, np.float64)
    require(rows.ndim == 2, f"features must have one row per item, got shape {rows.shape}")
    require(bool(np.isfinite(rows).all()), "features must be finite numbers")
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)  # so that no square is too large or too small
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    return round_to_grid(scaled / np.where(lengths > 0, lengths, 1.0))
