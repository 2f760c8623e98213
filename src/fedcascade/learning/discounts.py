"""Position discounts: items further down a list count less (C3-UCB, Li et al. 2016)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import SHARE
from fedcascade.constants import Part, constant
from fedcascade.numerics import linear
from fedcascade.numerics.grid import GRID, round_to_grid
from fedcascade.numerics.jit import jit_inline
from fedcascade.numerics.linear import Features, Matrix, Vector


@dataclass(frozen=True, kw_only=True)
class PositionDiscounts(Part):
    """Discounts gamma_k = discount^(k - 1) of the features and the reward of an item at position k.

    Both gamma_k and gamma_k x are rounded toward zero to the grid of features, so that sums stay exact.

    >>> PositionDiscounts(discount=0.5).compute_gammas(4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """

    discount: float = constant(
        1.0, meaning="weight of a position relative to the one above", symbol="gamma", range=SHARE
    )

    def compute_gammas(self, length: int) -> NDArray[np.float64]:
        """Compute gamma_k of every position by repeated multiplication, which gives the same bits everywhere."""
        powers = np.multiply.accumulate([1.0] + [float(self.discount)] * (length - 1))
        return round_to_grid(powers).astype(np.float64)


@jit_inline
def add_listed(
    gram: Matrix, moment: Vector, listed: Features, examined: int, click: int, reward: float, gammas: Vector | None
) -> None:
    """Add a list to gram and moment, with the reward of its first click; discounts are applied to ``listed`` in place.

    Numba compiles only one of the two branches.
    """
    weight = reward
    if gammas is not None:
        for position in range(examined):
            for k in range(moment.size):
                listed[position, k] = np.trunc(gammas[position] * listed[position, k] / GRID) * GRID
        if click >= 0:
            weight = np.floor(reward * gammas[click] / GRID) * GRID
    linear.add_examined(gram, listed, examined)
    if click >= 0:
        for k in range(moment.size):
            moment[k] += weight * listed[click, k]
