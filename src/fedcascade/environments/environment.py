"""The interface of environments: arrivals, items on offer, clicks and random draws."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.oracles import ItemAttributes


class Environment(Protocol):
    """Users and items. Results depend on the round alone, not on earlier calls; rounds count from 1.

    ``testing.check_environment`` checks an implementation.
    """

    @property
    def users(self) -> int:
        """Number of users."""

    @property
    def dimension(self) -> int:
        """Number of features of an item."""

    @property
    def most_items(self) -> int:
        """Largest number of items in a round."""

    @property
    def clusters(self) -> NDArray[np.int64]:
        """True cluster of each user."""

    def arrival(self, round_: int) -> int:
        """Return the user of the round."""

    def items(self, round_: int) -> NDArray[np.float32]:
        """Return the features of the items, one row each, of norm at most 1 and on the grid (``round_to_grid``)."""

    def attributes(self, round_: int, items: int) -> ItemAttributes:
        """Return the categories and costs of the items, for oracles that need them; None if there are none."""

    def weights(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability that ``user`` clicks each item after examining it."""

    def attracted(self, round_: int, items: NDArray[np.intp], weights: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Draw w_t(i): whether each of ``items`` would be clicked, given the probabilities ``weights``."""

    def ties(self, round_: int, items: int) -> NDArray[np.uint32]:
        """Return a random word per item, which orders equal scores."""

    def draw(self, round_: int) -> float:
        """Return the round's uniform number, for random triggers."""
