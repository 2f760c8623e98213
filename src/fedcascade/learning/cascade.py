"""The cascade: a user scans a list from the top and clicks the first attractive item, or none."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedcascade.checks import require


def find_first_click(attracted: ArrayLike) -> int | None:
    """Return the position of the first attractive item, counted from 0, or None (the paper's O_t).

    >>> find_first_click([False, True, True]), find_first_click([False, False])
    (1, None)
    """
    hits = np.flatnonzero(np.asarray(attracted))
    return int(hits[0]) if hits.size else None


def count_examined(length: int, click: int | None) -> int:
    """Count the items that the user examined: up to the click, or all.

    >>> count_examined(4, 1), count_examined(4, None)
    (2, 4)
    """
    require(click is None or 0 <= click < length, f"click must be None or in 0..{length - 1}, got {click}")
    return length if click is None else click + 1


@dataclass(frozen=True)
class Examination:
    """Feedback on a list: the number of positions examined from the top, and the clicked positions in rising order."""

    examined: int
    clicks: tuple[int, ...] = ()

    @property
    def rounds(self) -> int:
        """Number of cascades: each click starts another one. So clicks never exceed rounds, which servers check."""
        return max(1, len(self.clicks))


def follow_cascade(length: int, click: int | None) -> Examination:
    """Return the feedback of the cascade model: examined up to the first click, or to the end.

    >>> follow_cascade(4, 1)
    Examination(examined=2, clicks=(1,))
    """
    return Examination(count_examined(length, click), () if click is None else (click,))


def examine(length: int, clicks: Iterable[int], looked_until: int | None = None) -> Examination:
    """Return the feedback on a list with any clicks: examined up to ``looked_until``, the last click, or the end.

    >>> examine(6, [3, 1]), examine(6, [1], looked_until=4), examine(6, [])
    (Examination(examined=4, clicks=(1, 3)), Examination(examined=5, clicks=(1,)), Examination(examined=6, clicks=()))
    """
    clicked = tuple(sorted(set(clicks)))
    for click in clicked:
        require(0 <= click < length, f"a click must be a position in 0..{length - 1}, got {click}")
    if looked_until is None:
        return Examination(clicked[-1] + 1 if clicked else length, clicked)
    least = clicked[-1] if clicked else 0
    bounds = f"a position in {least}..{length - 1}, the last click or below it"
    require(least <= looked_until < length, f"looked_until must be {bounds}, got {looked_until}")
    return Examination(looked_until + 1, clicked)


def compute_expected_reward(weights: ArrayLike) -> float:
    """Return the probability of a click in the list, f(a, w) = 1 - prod(1 - w).

    >>> compute_expected_reward([0.5, 0.5])
    0.75
    """
    return 1.0 - float(math.prod(1.0 - weight for weight in np.asarray(weights, np.float64).tolist()))
