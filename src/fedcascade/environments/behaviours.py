"""Click models of simulated users: the cascade, and models with several clicks.

In each model an item attracts a user with its weight as probability. The models differ in the examined positions.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import PROBABILITY, require_known
from fedcascade.learning.cascade import compute_expected_reward
from fedcascade.numerics.elementary import exp
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Features, Vector, compute_means
from fedcascade.numerics.streams import LOOK, STAY, Integer, uniform

DCM, DBN, PBM = 0, 1, 2  # numbers of the models in compiled code
BEHAVIOURS = {"dcm": DCM, "dbn": DBN, "pbm": PBM}


class Logistic(NamedTuple):
    """A link with click probability sigmoid(steepness <theta, x> + bias)."""

    steepness: float
    bias: float


@jit_inline
def apply_link(link: Logistic | None, mean: float) -> float:
    """Return the click probability of an item with <theta, x> = ``mean``; without a link, clip it to [0, 1]."""
    if link is None:
        return min(max(mean, 0.0), 1.0)
    return 1.0 / (1.0 + exp(-(link.steepness * mean + link.bias)))


@jit
def compute_weights(link: Logistic | None, theta: Vector, columns: Features) -> Vector:
    """Return the click probability of each item."""
    weights = compute_means(theta, columns)
    for item in range(weights.size):
        weights[item] = apply_link(link, weights[item])
    return weights


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """A click model and its parameter.

    - ``dcm``: examines from the top; continues after a click with probability ``level``.
    - ``dbn``: examines from the top; stops after a click with the weight of the item as probability.
    - ``pbm``: examines position k, counted from 0, with probability ``level`` to the power k, regardless of clicks.
    """

    model: str
    level: float = 0.5

    def __post_init__(self) -> None:
        require_known("click model", self.model, BEHAVIOURS)
        PROBABILITY.check("level", self.level)

    def compile(self, length: int) -> "CompiledBehaviour":
        """Return the model for lists of up to ``length`` items, for compiled code."""
        fading = [float(self.level) ** k if self.model == "pbm" else 1.0 for k in range(length)]
        return CompiledBehaviour(BEHAVIOURS[self.model], float(self.level), np.array(fading))

    def click(self, seed: Integer, round_: int, attracted: NDArray[np.bool_], weights: Vector) -> tuple[int, ...]:
        """Return the clicked positions of a list, from top to bottom."""
        clicked = np.zeros(attracted.size, np.bool_)
        mark_clicks(self.compile(attracted.size), seed, round_, attracted, weights, clicked)
        return tuple(np.flatnonzero(clicked).tolist())

    def compute_reward(self, weights: Vector) -> float:
        """Return the probability of at least one click in a list."""
        return compute_expected_reward(weights * self.compile(len(weights)).examined)


class CompiledBehaviour(NamedTuple):
    """The constants of a ``Behaviour``."""

    model: int
    level: float
    examined: Vector  # probability that a user that has not stopped examines each position


@jit_inline
def is_examined(behaviour: CompiledBehaviour, seed: Integer, round_: int, position: int) -> bool:
    """Draw whether a user that has not stopped examines a position."""
    return bool(behaviour.model != PBM or uniform(seed, LOOK, round_, position) < behaviour.examined[position])


@jit_inline
def is_continued(behaviour: CompiledBehaviour, seed: Integer, round_: int, position: int, weight: float) -> bool:
    """Draw whether a user continues after a click on an item with that weight."""
    if behaviour.model == PBM:
        return True
    draw = uniform(seed, STAY, round_, position)
    return bool(draw < behaviour.level if behaviour.model == DCM else draw >= weight)


@jit
def mark_clicks(
    behaviour: CompiledBehaviour,
    seed: Integer,
    round_: int,
    attracted: NDArray[np.bool_],
    weights: Vector,
    clicked: NDArray[np.bool_],
) -> None:
    """Set ``clicked`` for each position; ``attracted`` marks the items that would be clicked if examined."""
    stays = True
    for position in range(attracted.size):
        clicked[position] = stays and attracted[position] and is_examined(behaviour, seed, round_, position)
        if clicked[position]:
            stays = is_continued(behaviour, seed, round_, position, weights[position])


@jit_inline
def fade_weight(behaviour: CompiledBehaviour | None, position: int, weight: float) -> float:
    """Return the click probability of an item in a position without clicks above it; None is the cascade."""
    if behaviour is None:
        return weight
    return float(weight * behaviour.examined[position])
