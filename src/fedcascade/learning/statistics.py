"""Sufficient statistics that agents store, upload and download. They add and subtract."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.learning.cascade import Examination, follow_cascade
from fedcascade.numerics.jit import jit_inline
from fedcascade.numerics.linear import Features, Matrix, Vector, add_examined, is_finite_symmetric

PRIOR_CLICKS, PRIOR_COUNT = 2.0, 4.0  # pseudo-counts of ``estimate_noise``: the variance starts at 1/4
MIN_NOISE = 1e-3  # lower bound of the variance of a reward
LARGEST_TOTAL = 500_000_000  # observations in one sum: float64 is exact for multiples of 2^-24 below 2^29


@jit_inline
def estimate_noise(count: float, reward: float) -> float:
    """Estimate the variance of a reward from the number of examined items and the sum of their rewards.

    For a mean of m it is at most m (1 - m), and equal to that for clicks worth 1.
    """
    rate = (reward + PRIOR_CLICKS) / (count + PRIOR_COUNT)
    return max(MIN_NOISE, rate * (1.0 - rate))


@jit_inline
def add_listed(gram: Matrix, moment: Vector, listed: Features, examined: int, click: int, reward: float) -> None:
    """Add a list to gram and moment, with the reward of its first click."""
    add_examined(gram, listed, examined)
    if click >= 0:
        for k in range(moment.size):
            moment[k] += reward * listed[click, k]


@dataclass(eq=False)  # with Final fields: frozen=True would make the constructor three times as slow
class Statistics:
    """Gram matrix, moment and counts of examined items; a value, never changed in place.

    ``count`` is the paper's T (items examined). A server checks uploads by ``clicks`` and ``rounds``. ``shortfall`` is
    the number of clicks minus the sum of their rewards: 0 if each click is worth 1.

    >>> shown = np.eye(2, dtype=np.float32)
    >>> seen = Statistics.zero(2).observe(shown, click=1)
    >>> seen.count, seen.clicks, seen.moment.tolist()
    (2, 1, [0.0, 1.0])
    >>> (seen + seen - seen).gram.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    gram: Final[NDArray[np.float64]]
    moment: Final[NDArray[np.float64]]
    count: Final[int]
    clicks: Final[int]
    rounds: Final[int]
    shortfall: Final[float] = 0.0

    @classmethod
    def zero(cls, dimension: int) -> "Statistics":
        return cls(np.zeros((dimension, dimension)), np.zeros(dimension), 0, 0, 0)

    @property
    def dimension(self) -> int:
        return self.moment.size

    @property
    def reward(self) -> float:
        """The sum of the rewards."""
        return self.clicks - self.shortfall

    def check(self, dimension: int) -> None:
        """Reject statistics of another dimension, and those that no data can have."""
        if self.gram.shape != (dimension, dimension) or self.moment.shape != (dimension,):
            shapes = f"gram {self.gram.shape}, moment {self.moment.shape}"
            raise ValueError(f"statistics must have the shapes of dimension {dimension}, got {shapes}")
        is_finite = bool(is_finite_symmetric(self.gram, self.moment)) and math.isfinite(self.shortfall)
        require(is_finite, "gram and moment must be finite, and gram symmetric")
        if not (0 <= self.clicks <= self.count and self.rounds >= 0):
            counts = f"{self.clicks}, {self.count}, {self.rounds}"
            raise ValueError(f"counts must satisfy 0 <= clicks <= count and rounds >= 0, got {counts}")

    def __add__(self, other: "Statistics") -> "Statistics":
        self._require_same_dimension(other)
        counts = self.count + other.count, self.clicks + other.clicks, self.rounds + other.rounds
        return Statistics(self.gram + other.gram, self.moment + other.moment, *counts, self.shortfall + other.shortfall)

    def __sub__(self, other: "Statistics") -> "Statistics":
        self._require_same_dimension(other)
        counts = self.count - other.count, self.clicks - other.clicks, self.rounds - other.rounds
        return Statistics(self.gram - other.gram, self.moment - other.moment, *counts, self.shortfall - other.shortfall)

    def _require_same_dimension(self, other: "Statistics") -> None:
        if self.moment.size != other.moment.size:
            raise ValueError(f"dimensions must agree, got {self.dimension} and {other.dimension}")

    def scale(self, weight: float) -> "Statistics":
        """Return these statistics times a weight; counts are rounded down."""
        count, clicks, rounds = (int(weight * count) for count in (self.count, self.clicks, self.rounds))
        sums = weight * self.gram, weight * self.moment
        return Statistics(*sums, count, clicks, rounds, weight * self.shortfall)

    def observe(self, listed: NDArray[np.float32], click: int | Examination | None) -> "Statistics":
        """Return these statistics with one more list (Algorithm 2, lines 5 and 6).

        ``listed`` has the features of each position in a row. ``click`` is a position from 0, None, or an
        ``Examination``.
        """
        if listed.ndim != 2 or listed.shape[1] != self.dimension:
            raise ValueError(f"listed must have shape (positions, {self.dimension}), got {listed.shape}")
        seen = click if isinstance(click, Examination) else follow_cascade(len(listed), click)
        gram, moment, features = self.gram.copy(), self.moment.copy(), np.ascontiguousarray(listed, np.float32)
        (click, reward), *others = seen.outcomes
        add_listed(gram, moment, features, seen.examined, click, reward)
        for position, reward in others:
            moment += np.float64(reward) * features[position]
        counts = self.count + seen.examined, self.clicks + len(seen.clicks), self.rounds + seen.rounds
        return Statistics(gram, moment, *counts, self.shortfall + len(seen.clicks) - seen.reward)

    @classmethod
    def correct(cls, listed: NDArray[np.float32], seen: Examination, rewards: Sequence[float]) -> "Statistics":
        """Return the difference that other rewards of the clicks of a list make."""
        zero, changes = cls.zero(listed.shape[1]), np.subtract(rewards, seen.values)
        moment = changes @ listed[list(seen.clicks)].astype(np.float64)
        return Statistics(zero.gram, moment, 0, 0, 0, -float(changes.sum()))
