"""Bad uploads are refused by theorem, so no honest agent is ever refused.

Let X be the examined items, one row each, and c the clicks, 0 or 1. Then gram = X^T X and moment = X^T c. With
||x|| <= 1 the trace of gram is at most the count. For every e > 0, moment^T (gram + e I)^-1 moment <= ||c||^2 =
clicks; for a moment outside the range of gram the left side grows like 1/e. So one factorisation of gram + e I
says whether gram is positive semi-definite, and whether the moment can belong to it.
"""

import math

from fedcascade.checks import require
from fedcascade.compiled import compiled
from fedcascade.federation.agent import LARGEST_SQUARE
from fedcascade.learning import linear
from fedcascade.learning.statistics import Statistics

# Sums of n products in float64 err by less than n 2^-53 of the trace; e is far above that.
SHIFT = 1e-8
SLACK = 1e-6


@compiled
def examined(gram: linear.Matrix, moment: linear.Vector) -> tuple[float, float, float]:
    """The trace of gram; with e as above, ln det(gram + e I) and moment^T (gram + e I)^-1 moment."""
    trace = 0.0
    for i in range(moment.size):
        trace += gram[i, i]
    theta, _, log_det = linear.regression(gram, moment, SHIFT * max(trace, SLACK))
    leverage = 0.0
    for i in range(moment.size):
        leverage += moment[i] * theta[i]
    return trace, log_det, leverage


def check_upload(statistics: Statistics, dimension: int) -> None:
    """Refuse statistics that no data can have."""
    statistics.check(dimension)
    count, clicks, rounds = statistics.count, statistics.clicks, statistics.rounds
    fits = clicks <= rounds <= count
    require(fits, f"counts must satisfy clicks <= rounds <= count, got {clicks}, {rounds}, {count}")
    require(rounds > 0, "an upload must hold at least one round")
    trace, log_det, leverage = examined(statistics.gram, statistics.moment)
    most = count * LARGEST_SQUARE * (1 + SLACK)
    require(trace <= most, f"the trace of gram must be at most the count ({count}), got {trace:.6g}")
    require(math.isfinite(log_det), "gram must be positive semi-definite")
    require(
        math.isfinite(leverage) and leverage <= clicks * (1 + SLACK) + SLACK,
        f"moment must lie in the range of gram with moment^T gram^+ moment <= clicks ({clicks}), got {leverage:.6g}",
    )
