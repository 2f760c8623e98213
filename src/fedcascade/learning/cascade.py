"""The cascade: a user scans a list from the top and clicks the first attractive item, or none."""

import math

import numpy as np
from numpy.typing import ArrayLike

from fedcascade.checks import require


def find_first_click(attracted: ArrayLike) -> int | None:
    """The position of the first attractive item of a list, counted from 0; None if there is none (O_t).

    >>> find_first_click([False, True, True]), find_first_click([False, False])
    (1, None)
    """
    hits = np.flatnonzero(np.asarray(attracted))
    return int(hits[0]) if hits.size else None


def count_examined(length: int, click: int | None) -> int:
    """How many items the user looked at: up to the click, or all of them.

    >>> count_examined(4, 1), count_examined(4, None)
    (2, 4)
    """
    require(click is None or 0 <= click < length, f"click must be None or in 0..{length - 1}, got {click}")
    return length if click is None else click + 1


def compute_expected_reward(weights: ArrayLike) -> float:
    """f(a, w) = 1 - prod(1 - w): the chance that anything in the list is clicked.

    >>> compute_expected_reward([0.5, 0.5])
    0.75
    """
    return 1.0 - float(math.prod(1.0 - weight for weight in np.asarray(weights, np.float64).tolist()))
