"""The trigger ``Rayleigh``, and policies that have it in the place of ``Determinant``, for ``triggers.toml``.

It is a part like that of a plug-in: the exact engine has no compiled form of it, and runs of it use the reference.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedcascade import POLICIES
from fedcascade.checks import Range
from fedcascade.constants import constant
from fedcascade.federation.messages import Cause
from fedcascade.federation.triggers import Auxiliary, Doubling, Occasion, Trigger

ABOVE_ONE = Range("a finite number > 1", lambda value: 1 < value < math.inf)


@dataclass(frozen=True, kw_only=True)
class Rayleigh(Trigger):
    """A trigger that fires when some direction has grown: max_x x^T (Sigma + Sigma_loc) x / x^T Sigma x > ratio.

    Until it fires, no item's width has shrunk by more than a factor sqrt(ratio). Its cause is that of ``Determinant``:
    the agent has learned enough.
    """

    ratio: float = constant(
        2.0, meaning="upload when the data in some direction have grown by more than this ratio", range=ABOVE_ONE
    )

    def cause(self, occasion: Occasion) -> Cause | None:
        """Return the cause if (ratio - 1) Sigma - Sigma_loc has no Cholesky factor."""
        gram, lambda_ = occasion.download.statistics.gram, occasion.download.lambda_
        sigma = gram + lambda_ * np.eye(len(gram))
        try:
            np.linalg.cholesky((self.ratio - 1.0) * sigma - occasion.buffer.gram)
        except np.linalg.LinAlgError:
            return Cause.DETERMINANT
        return None


PAPER = replace(POLICIES["fedc3ucb-h"], name="paper-rayleigh", trigger=Rayleigh() | Auxiliary())
POPULATION = replace(POLICIES["population"], name="population-rayleigh", trigger=Rayleigh() | Doubling())
