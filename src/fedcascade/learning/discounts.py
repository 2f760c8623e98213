"""Position discounts: what is seen further down a list counts less (C3-UCB, Li et al. 2016)."""

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
    """gamma_k = discount^(k - 1): the features and the reward of an item at position k count gamma_k times.

    Both gamma_k and gamma_k x are rounded toward zero to the grid of features, so that sums stay exact.

    >>> PositionDiscounts(discount=0.5).compute_gammas(4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """

    discount: float = constant(1.0, meaning="what is seen counts so many times as much as one position above",
                               symbol="gamma", range=SHARE)  # fmt: skip

    def compute_gammas(self, length: int) -> NDArray[np.float64]:
        """gamma_k of every position of a list; they are multiplied up, which gives the same bits everywhere."""
        powers = np.multiply.accumulate([1.0] + [float(self.discount)] * (length - 1))
        return round_to_grid(powers).astype(np.float64)


@jit_inline
def add_listed(
    gram: Matrix, moment: Vector, listed: Features, examined: int, click: int, gammas: Vector | None
) -> None:
    """``linear.add_examined``, with discounts unless ``gammas`` is None; they are applied to ``listed`` in place.

    Compiled code has one of the two branches alone.
    """
    if gammas is None:
        linear.add_examined(gram, moment, listed, examined, click)
    else:
        for position in range(examined):
            for k in range(moment.size):
                listed[position, k] = np.trunc(gammas[position] * listed[position, k] / GRID) * GRID
        linear.add_examined(gram, moment, listed, examined, -1)
        if click >= 0:
            for k in range(moment.size):
                moment[k] += gammas[click] * listed[click, k]
