"""Bad uploads are refused by theorem, so no honest agent is ever refused.

Let X be the examined items, one row each, and c the clicks, 0 or 1. Then gram = X^T X and moment = X^T c. With
||x|| <= 1 the trace of gram is at most the count. For every e > 0, moment^T (gram + e I)^-1 moment <= ||c||^2 =
clicks; for a moment outside the range of gram the left side grows like 1/e. So one factorisation of gram + e I
says whether gram is positive semi-definite, and whether the moment can belong to it.
"""

import numpy as np

from fedcascade.checks import require
from fedcascade.federation.agent import LARGEST_SQUARE
from fedcascade.learning import linear
from fedcascade.learning.statistics import Statistics

# Sums of n products in float64 err by less than n 2^-53 of the trace; e is far above that.
SHIFT = 1e-8
SLACK = 1e-6


@np.errstate(over="ignore", invalid="ignore")  # what overflows is refused
def check_upload(statistics: Statistics, dimension: int) -> None:
    """Refuse statistics that no data can have."""
    statistics.check(dimension)
    count, clicks, rounds = statistics.count, statistics.clicks, statistics.rounds
    fits = clicks <= rounds <= count
    require(fits, f"counts must satisfy clicks <= rounds <= count, got {clicks}, {rounds}, {count}")
    require(rounds > 0, "an upload must hold at least one round")
    trace = float(np.einsum("ii", statistics.gram))
    most = count * LARGEST_SQUARE * (1 + SLACK)
    require(trace <= most, f"the trace of gram must be at most the count ({count}), got {trace:.6g}")
    shifted = statistics.gram.copy()
    shifted.flat[:: dimension + 1] += SHIFT * max(trace, SLACK)
    upper = linear.cholesky(shifted)
    require(bool(np.isfinite(linear.log_determinant(upper))), "gram must be positive semi-definite")
    leverage = float(statistics.moment @ linear.solve(linear.inverse_root(upper), statistics.moment))
    belongs = np.isfinite(leverage) and leverage <= clicks * (1 + SLACK) + SLACK
    require(
        bool(belongs),
        f"moment must lie in the range of gram with moment^T gram^+ moment <= clicks ({clicks}), got {leverage:.6g}",
    )
