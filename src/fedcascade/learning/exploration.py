"""Randomised oracles with known propensities, for off-policy evaluation: they have a method ``propensities``.

A list is chosen position by position. ``fill_chances`` computes the probability of every item at a position, given the
items above it; their product is the probability of the list. The tie-break words are the only randomness, so all
engines choose the same list.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, SHARE, require, require_integer
from fedcascade.learning.oracles import NO_ATTRIBUTES, Chosen, ItemAttributes, Oracle, Scores, Ties, TopK, select_top
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Vector
from fedcascade.numerics.streams import EXPLORATION, uniform

GREEDY, PLACKETT_LUCE, EPSILON = 0, 1, 2
_WORDS = 2.0**32


class _ChanceOracle(ABC):
    """A randomised oracle of one kind and level, with known propensities; regret is against the best list."""

    kind: ClassVar[int]
    alpha: ClassVar[float] = 1.0
    length: int

    @property
    @abstractmethod
    def level(self) -> float:
        """Temperature or epsilon."""

    def choose(self, scores: Scores, ties: Ties, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:  # noqa: ARG002
        return explore(self.kind, self.level, scores, ties, self.length)

    def best(self, weights: Scores, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        return TopK(length=self.length).best(weights, attributes)

    def propensities(self, scores: Scores, chosen: Chosen) -> NDArray[np.float64]:
        """Return the probability of each item of a list, given those above it."""
        return compute_propensities(self.kind, self.level, scores, chosen)


@dataclass(frozen=True, kw_only=True)
class PlackettLuce(_ChanceOracle):
    """Items drawn one after another, with probabilities proportional to exp(score / temperature).

    >>> oracle = PlackettLuce(length=2, temperature=0.5)
    >>> oracle.propensities(np.log([4.0, 2.0, 1.0]) / 2, np.array([0, 2])).round(6).tolist()
    [0.571429, 0.333333]
    """

    kind: ClassVar[int] = PLACKETT_LUCE
    length: int = 4
    temperature: float = 0.1

    def __post_init__(self) -> None:
        require_integer("list length", self.length)
        POSITIVE.check("temperature", self.temperature)

    @property
    def level(self) -> float:
        return float(self.temperature)


@dataclass(frozen=True, kw_only=True)
class EpsilonMixed(_ChanceOracle):
    """The best items, or with probability ``epsilon`` a uniformly random list."""

    kind: ClassVar[int] = EPSILON
    length: int = 4
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        require_integer("list length", self.length)
        SHARE.check("epsilon", self.epsilon)

    @property
    def level(self) -> float:
        return float(self.epsilon)


KINDS: Mapping[type, int] = {TopK: GREEDY, PlackettLuce: PLACKETT_LUCE, EpsilonMixed: EPSILON}


def lower_exploration(oracle: Oracle) -> tuple[int, float]:
    """Return the kind and level of an oracle with known propensities; reject others."""
    name = type(oracle).__name__
    require(type(oracle) in KINDS, f"{name} has no known propensities: use top-k, plackett-luce or epsilon")
    return KINDS[type(oracle)], float(getattr(oracle, "level", 0.0))


@jit
def explore(kind: int, level: float, scores: Scores, ties: Ties, length: int) -> Chosen:
    """Choose a list; the words of ``ties`` are its randomness."""
    if kind == PLACKETT_LUCE:  # by the Gumbel-max trick
        noisy = np.empty(scores.size)
        for item in range(scores.size):
            noisy[item] = scores[item] / level - log(-log((ties[item] + 0.5) / _WORDS))
        return select_top(noisy, ties, length)
    if kind == EPSILON:
        key = np.uint64(ties[0]) << np.uint64(32) | np.uint64(ties[ties.size - 1])
        if uniform(key, EXPLORATION, np.int64(scores.size), np.int64(0)) < level:
            return select_top(np.zeros(scores.size), ties, length)
    return select_top(scores, ties, length)


@jit
def fill_chances(
    kind: int, level: float, scores: Scores, taken: NDArray[np.bool_], masses: Vector, chances: Vector
) -> None:
    """Fill ``chances`` with the probability of each item to come next, 0 for those ``taken``.

    ``masses`` are the probabilities that the greedy and the uniform part of a mixture chose the items above. The
    caller starts with 1 - epsilon and epsilon, and calls ``update_masses`` after each item.
    """
    best, left = -np.inf, 0
    for item in range(scores.size):
        if not taken[item]:
            best, left = max(best, scores[item]), left + 1
    total = 0.0
    for item in range(scores.size):
        chances[item] = 0.0
        if not taken[item]:
            if kind == PLACKETT_LUCE:
                chances[item] = exp((scores[item] - best) / level)
            elif scores[item] == best:
                chances[item] = 1.0
            total += chances[item]
    mass = masses[0] + masses[1]
    for item in range(scores.size):
        chances[item] /= total
        if kind == EPSILON and not taken[item]:
            chances[item] = (masses[0] * chances[item] + masses[1] / left) / mass if mass > 0.0 else 1.0 / left


@jit
def update_masses(kind: int, scores: Scores, taken: NDArray[np.bool_], masses: Vector, item: int) -> None:
    """Mark an item as taken, and update the masses of a mixture."""
    if kind == EPSILON:
        best, left, equal = -np.inf, 0, 0
        for other in range(scores.size):
            if not taken[other]:
                best, left = max(best, scores[other]), left + 1
        for other in range(scores.size):
            equal += (not taken[other]) and scores[other] == best
        masses[0] = masses[0] / equal if scores[item] == best else 0.0
        masses[1] /= left
    taken[item] = True


@jit
def compute_propensities(kind: int, level: float, scores: Scores, chosen: Chosen) -> Vector:
    """Compute the probability of each item of a list, given those above it."""
    taken, chances = np.zeros(scores.size, np.bool_), np.empty(scores.size)
    masses = np.array([1.0 - level, level])
    given = np.empty(chosen.size)
    for position in range(chosen.size):
        fill_chances(kind, level, scores, taken, masses, chances)
        given[position] = chances[chosen[position]]
        update_masses(kind, scores, taken, masses, chosen[position])
    return given
