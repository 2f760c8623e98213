"""What groups tell of a user who belongs to none of them yet: one Gaussian in the place of their mixture."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics

NARROWEST = 1e-9  # a variance below this is rounding


def match_groups(
    grams: NDArray[np.float64], moments: NDArray[np.float64], sizes: NDArray[np.int64], rest: int, *,
    variance: float, lambda_: float,
) -> Statistics:  # fmt: skip
    """What is known of the theta of anybody, as statistics without counts, from which a ridge makes mean and widths.

    A user is like one of the groups, each by its size, or like nobody by ``rest``: then a ridge without data speaks.
    The mixture has a mean and a covariance, and no direction is told to be wider than a ridge without data has it, so
    that the gram is one that data could have.

    Args:
        grams: the sums of the groups, (groups, d, d).
        moments: those of their moments, (groups, d).
        sizes: how many users each group has.
        rest: how many users are in no group that may be told.
        variance: sigma^2 of a click.
        lambda_: that of the ridge.
    """
    d, weights = moments.shape[1], sizes / (sizes.sum() + rest)
    inverses = np.linalg.inv(grams + lambda_ * np.eye(d))
    thetas = np.einsum("gij,gj->gi", inverses, moments)
    mean = weights @ thetas
    second = np.einsum("g,gij->ij", weights, inverses + np.einsum("gi,gj->gij", thetas, thetas) / variance)
    covariance = second + (1.0 - weights.sum()) * np.eye(d) / lambda_ - np.outer(mean, mean) / variance
    widths, axes = np.linalg.eigh(covariance)
    precision = axes / np.clip(widths, NARROWEST, 1.0 / lambda_) @ axes.T
    precision = (precision + precision.T) / 2
    return Statistics(precision - lambda_ * np.eye(d), precision @ mean, 0, 0, 0)
