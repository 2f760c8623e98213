"""What a simulation asks of the world: who arrives, what is on the shelf, what gets clicked, and luck."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.oracles import ItemAttributes


class Environment(Protocol):
    """A world of users and items in which every answer depends on the round alone, never on earlier calls.

    Rounds count from 1. ``testing.check_environment`` says whether yours keeps these promises.
    """

    @property
    def users(self) -> int:
        """How many users there are."""

    @property
    def dimension(self) -> int:
        """How many features an item has."""

    @property
    def most_items(self) -> int:
        """The most items that a round may offer."""

    @property
    def clusters(self) -> NDArray[np.int64]:
        """The true cluster of each user."""

    def arrival(self, round_: int) -> int:
        """The user who arrives."""

    def items(self, round_: int) -> NDArray[np.float32]:
        """The features on offer, one row per item, each of norm at most 1, on the grid (``round_to_grid``)."""

    def attributes(self, round_: int, items: int) -> ItemAttributes:
        """The categories and costs of the round's items, for oracles that ask for them; none where it has none."""

    def weights(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """The probability that ``user`` clicks each item when it is examined."""

    def attracted(self, round_: int, items: NDArray[np.intp], weights: NDArray[np.float64]) -> NDArray[np.bool_]:
        """w_t(i): whether each of ``items``, whose click probabilities are ``weights``, would be clicked."""

    def ties(self, round_: int, items: int) -> NDArray[np.uint32]:
        """A random word per item, by which equal scores are ordered."""

    def draw(self, round_: int) -> float:
        """The round's uniform number for triggers that speak by chance."""
