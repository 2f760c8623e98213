"""The cascade: a user scans a list from the top and clicks the first attractive item, or none."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedcascade.checks import require
from fedcascade.numerics.grid import round_to_nearest
from fedcascade.numerics.jit import jit_within
from fedcascade.numerics.linear import Vector


def find_first_click(attracted: ArrayLike) -> int | None:
    """Return the position of the first attractive item, counted from 0, or None (the paper's O_t).

    >>> find_first_click([False, True, True]), find_first_click([False, False])
    (1, None)
    """
    hits = np.asarray(attracted).tolist()
    return hits.index(True) if True in hits else None


@dataclass(frozen=True)
class Examination:
    """Feedback on a list: the number of positions examined from the top, and the clicked positions in rising order.

    ``rewards`` are the values of the clicks, multiples of ``GRID`` in [0, 1]; if there are none, each click is worth 1.
    """

    examined: int
    clicks: tuple[int, ...] = ()
    rewards: tuple[float, ...] = ()

    @property
    def rounds(self) -> int:
        """Number of cascades: each click starts another one. So clicks never exceed rounds, which servers check."""
        return max(1, len(self.clicks))

    @property
    def values(self) -> tuple[float, ...]:
        """The reward of each click."""
        return self.rewards or (1.0,) * len(self.clicks)

    @property
    def outcomes(self) -> list[tuple[int, float]]:
        """Each click with its reward; without a click, position -1 and no reward, as for compiled functions."""
        return list(zip(self.clicks, self.values, strict=True)) or [(-1, 0.0)]

    @property
    def reward(self) -> float:
        """The sum of the rewards."""
        return sum(self.values)


def round_reward(reward: float) -> float:
    """Round a reward in [0, 1] to the nearest multiple of ``GRID``, so that sums stay exact; reject other numbers.

    >>> round_reward(0.3), round_reward(1)
    (0.300048828125, 1.0)
    """
    is_number = isinstance(reward, int | float | np.integer | np.floating) and not isinstance(reward, bool)
    require(is_number and 0 <= reward <= 1, f"a reward must be a number in [0, 1], got {reward!r}")
    return float(round_to_nearest(float(reward)))


def split_reward(reward: float | Sequence[float] | None, clicks: int) -> tuple[float, ...]:
    """Return the reward of each of some clicks: several values, or one that all clicks share in equal parts.

    Without a reward, each click is worth 1, which an ``Examination`` describes by no rewards.

    >>> split_reward(0.5, 2), split_reward([0.5, 1], 2), split_reward(None, 2), split_reward(1, 1)
    ((0.25, 0.25), (0.5, 1.0), (), ())
    """
    if reward is None:
        return ()
    require(clicks > 0, "a reward needs a click: without one, leave it out")
    is_one = isinstance(reward, str) or np.ndim(reward) == 0
    if is_one:
        round_reward(reward)  # type: ignore[arg-type]
        given = [reward / clicks] * clicks  # type: ignore[operator]
    else:
        given = list(reward)  # type: ignore[arg-type]
        require(
            len(given) == clicks, f"rewards must be one for all clicks, or one for each of {clicks}, got {len(given)}"
        )
    rounded = tuple(map(round_reward, given))
    return () if all(value == 1 for value in rounded) else rounded


def follow_cascade(length: int, click: int | None) -> Examination:
    """Return the feedback of the cascade model: examined up to the first click, or to the end.

    >>> follow_cascade(4, 1)
    Examination(examined=2, clicks=(1,), rewards=())
    """
    require(click is None or 0 <= click < length, f"click must be None or in 0..{length - 1}, got {click}")
    return Examination(length) if click is None else Examination(click + 1, (click,))


def examine(
    length: int,
    clicks: Iterable[int],
    looked_until: int | None = None,
    reward: float | Sequence[float] | None = None,
) -> Examination:
    """Return the feedback on a list with any clicks: examined up to ``looked_until``, the last click, or the end.

    ``reward`` is that of ``split_reward``; several are in the order of ``clicks``.

    >>> [(seen.examined, seen.clicks) for seen in (examine(6, [3, 1]), examine(6, [1], looked_until=4), examine(6, []))]
    [(4, (1, 3)), (5, (1,)), (6, ())]
    """
    given = tuple(dict.fromkeys(clicks))
    values = dict(zip(given, split_reward(reward, len(given)), strict=False))
    clicked = tuple(sorted(given))
    for click in clicked:
        require(0 <= click < length, f"a click must be a position in 0..{length - 1}, got {click}")
    rewards = tuple(values[click] for click in clicked) if values else ()
    if looked_until is None:
        return Examination(clicked[-1] + 1 if clicked else length, clicked, rewards)
    least = clicked[-1] if clicked else 0
    bounds = f"a position in {least}..{length - 1}, the last click or below it"
    require(least <= looked_until < length, f"looked_until must be {bounds}, got {looked_until}")
    return Examination(looked_until + 1, clicked, rewards)


@jit_within
def compute_expected_value(weights: Vector, values: Vector) -> float:
    """Return the expected reward of the first click in the list, whose items have these values if they are clicked.

    >>> compute_expected_value(np.array([0.5, 0.5]), np.array([0.5, 1.0]))
    0.5
    """
    expected, reached = 0.0, 1.0
    for weight, value in zip(weights, values):  # noqa: B905 (numba knows no strict)
        expected += reached * weight * value
        reached *= 1.0 - weight
    return float(expected)


def compute_expected_reward(weights: ArrayLike) -> float:
    """Return the probability of a click in the list, f(a, w) = 1 - prod(1 - w).

    >>> compute_expected_reward([0.5, 0.5])
    0.75
    """
    return 1.0 - float(math.prod((1.0 - np.asarray(weights, np.float64)).tolist()))
