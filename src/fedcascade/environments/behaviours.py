"""How simulated users click: the chance that an item attracts, the cascade, and models with several clicks.

An item attracts a user by its weight, whatever the model. The models differ in what is looked at.
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

DCM, DBN, PBM = 0, 1, 2  # as compiled code numbers the models
BEHAVIOURS = {"dcm": DCM, "dbn": DBN, "pbm": PBM}


class Logistic(NamedTuple):
    """Clicks with probability sigmoid(steepness <theta, x> + bias); None in its place is <theta, x>, clipped."""

    steepness: float
    bias: float


@jit_inline
def apply_link(link: Logistic | None, mean: float) -> float:
    """Return the probability of a click on an item with <theta, x> = ``mean``."""
    if link is None:
        return min(max(mean, 0.0), 1.0)
    return 1.0 / (1.0 + exp(-(link.steepness * mean + link.bias)))


@jit
def compute_weights(link: Logistic | None, theta: Vector, columns: Features) -> Vector:
    """Return the probability of a click on every item."""
    weights = compute_means(theta, columns)
    for item in range(weights.size):
        weights[item] = apply_link(link, weights[item])
    return weights


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

    def compile(self, length: int) -> "CompiledBehaviour":
        """The model for lists of up to ``length`` items, as compiled code reads it."""
        fading = [float(self.level) ** k if self.model == "pbm" else 1.0 for k in range(length)]
        return CompiledBehaviour(BEHAVIOURS[self.model], float(self.level), np.array(fading))

    def click(self, seed: Integer, round_: int, attracted: NDArray[np.bool_], weights: Vector) -> tuple[int, ...]:
        """The positions of a list that the user clicks, from top to bottom."""
        clicked = np.zeros(attracted.size, np.bool_)
        mark_clicks(self.compile(attracted.size), seed, round_, attracted, weights, clicked)
        return tuple(np.flatnonzero(clicked).tolist())

    def compute_reward(self, weights: Vector) -> float:
        """The chance that anything in the list is clicked; that of the cascade where users look from the top."""
        return compute_expected_reward(weights * self.compile(len(weights)).looked)


class CompiledBehaviour(NamedTuple):
    """The constants of a ``Behaviour``."""

    model: int
    level: float
    looked: Vector  # the chance that each position is looked at by a user who has not left


@jit_inline
def looks_at(behaviour: CompiledBehaviour, seed: Integer, round_: int, position: int) -> bool:
    """Whether a user who has not left looks at a position."""
    return bool(behaviour.model != PBM or uniform(seed, LOOK, round_, position) < behaviour.looked[position])


@jit_inline
def goes_on(behaviour: CompiledBehaviour, seed: Integer, round_: int, position: int, weight: float) -> bool:
    """Whether a user who has clicked an item of that weight looks further down."""
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
    """Say of each position of a list whether it is clicked; ``attracted`` says of which items it would be if seen."""
    stays = True
    for position in range(attracted.size):
        clicked[position] = stays and attracted[position] and looks_at(behaviour, seed, round_, position)
        if clicked[position]:
            stays = goes_on(behaviour, seed, round_, position, weights[position])


@jit_inline
def fade_weight(behaviour: CompiledBehaviour | None, position: int, weight: float) -> float:
    """The chance that an item of that weight is clicked in a position if nothing above it was; None is the cascade."""
    if behaviour is None:
        return weight
    return float(weight * behaviour.looked[position])
