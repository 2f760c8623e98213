"""How simulated users click: the cascade, and models in which users click several items or skip positions.

An item attracts a user by its weight, whatever the model. The models differ in what is looked at.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import PROBABILITY, require_known
from fedcascade.learning.cascade import Examination, compute_expected_reward
from fedcascade.numerics.streams import LOOK, STAY, Integer, uniform

Weights = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """A click model with its one parameter.

    - ``dcm``: looks from the top; after a click, goes on with chance ``level``.
    - ``dbn``: looks from the top; after a click, goes on unless the item satisfies, with its weight as the chance.
    - ``pbm``: looks at position k, counted from 0, with chance ``level`` to the power k, whatever is clicked.
    """

    model: str
    level: float = 0.5

    def __post_init__(self) -> None:
        require_known("click model", self.model, BEHAVIOURS)
        PROBABILITY.check("level", self.level)

    def click(self, seed: Integer, round_: int, attracted: NDArray[np.bool_], weights: Weights) -> tuple[int, ...]:
        """The positions of a list that the user clicks, from top to bottom."""
        return BEHAVIOURS[self.model](self.level, seed, round_, attracted, weights)

    def compute_reward(self, weights: Weights) -> float:
        """The chance that anything in the list is clicked; that of the cascade where users look from the top."""
        looked = self.level ** np.arange(len(weights)) if self.model == "pbm" else np.ones(len(weights))
        return compute_expected_reward(weights * looked)


def _click_until_satisfied(attracted: NDArray[np.bool_], stays: Callable[[int], bool]) -> tuple[int, ...]:
    """Look from the top, and leave after the first click after which the user does not stay."""
    clicks: list[int] = []
    for position in np.flatnonzero(attracted).tolist():
        clicks.append(position)
        if not stays(position):
            break
    return tuple(clicks)


def _click_dcm(level: float, seed: Integer, round_: int, attracted: NDArray[np.bool_], _: Weights) -> tuple[int, ...]:
    return _click_until_satisfied(attracted, lambda position: uniform(seed, STAY, round_, position) < level)


def _click_dbn(_: float, seed: Integer, round_: int, attracted: NDArray[np.bool_], weights: Weights) -> tuple[int, ...]:
    return _click_until_satisfied(
        attracted, lambda position: uniform(seed, STAY, round_, position) >= weights[position]
    )


def _click_pbm(level: float, seed: Integer, round_: int, attracted: NDArray[np.bool_], _: Weights) -> tuple[int, ...]:
    looked = (k for k in range(attracted.size) if uniform(seed, LOOK, round_, k) < level**k)
    return tuple(k for k in looked if attracted[k])


BEHAVIOURS: Mapping[str, Callable[[float, Integer, int, NDArray[np.bool_], Weights], tuple[int, ...]]] = {
    "dcm": _click_dcm,
    "dbn": _click_dbn,
    "pbm": _click_pbm,
}


def guess_examination(length: int, clicks: tuple[int, ...]) -> Examination:
    """What an agent that is told the clicks alone takes a user to have looked at: down to the last, or everything."""
    return Examination(clicks[-1] + 1 if clicks else length, clicks)
