"""The cascade: a user scans a list from the top and clicks the first attractive item, or none."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Examination:
    """What a user did with a list: how many positions were looked at from the top, and which of them were clicked.

    ``clicks`` are positions, counted from 0, in rising order, all below ``examined``.
    """

    examined: int
    clicks: tuple[int, ...] = ()

    @property
    def rounds(self) -> int:
        """How many cascades this is: after a click the user goes on with the rest of the list, as if it were another.

        So there are never more clicks than rounds, which servers check.
        """
        return max(1, len(self.clicks))


def follow_cascade(length: int, click: int | None) -> Examination:
    """What a user of the cascade model did: looked up to the first click, or at all positions.

    >>> follow_cascade(4, 1)
    Examination(examined=2, clicks=(1,))
    """
    return Examination(count_examined(length, click), () if click is None else (click,))


def examine(length: int, clicks: Iterable[int], looked_until: int | None = None) -> Examination:
    """What a list of that length teaches: all positions up to the last click, or up to ``looked_until``, were examined.

    A list without either was looked at to its end.

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
    """f(a, w) = 1 - prod(1 - w): the chance that anything in the list is clicked.

    >>> compute_expected_reward([0.5, 0.5])
    0.75
    """
    return 1.0 - float(math.prod(1.0 - weight for weight in np.asarray(weights, np.float64).tolist()))
