"""Intervals by resampling users: lists of one user are alike, so they are drawn together or not at all."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics.streams import RESAMPLE, uniforms

Sums = NDArray[np.float64]
FEWEST_USERS = 10  # fewer say nothing about users who were not seen


def divide(numerators: Sums, denominators: Sums) -> Sums:
    """Ratios; NaN where nothing is in the denominator."""
    ratios = np.full(np.shape(numerators), np.nan)
    np.divide(numerators, denominators, out=ratios, where=np.asarray(denominators) > 0)
    return ratios


def compute_intervals(
    numerators: Sums, denominators: Sums, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Sums:
    """Low and high ends (estimators, 2) of the intervals of ratios of sums over users (users, estimators).

    The bootstrap-t: each resampled ratio is measured in its own standard errors, so that the interval of a skewed
    estimate, such as one with few large weights, reaches further to the side where the truth may be. NaN where there
    are too few users, or too few with a denominator.
    """
    users = len(numerators)
    if users < FEWEST_USERS:
        return np.full((numerators.shape[1], 2), np.nan)
    parts = numerators, denominators, numerators**2, numerators * denominators, denominators**2
    ratio, error = _measure(np.ones(users), parts)
    steps = np.empty((resamples, ratio.size))
    for number in range(resamples):
        drawn = (uniforms(seed, RESAMPLE, number, users) * users).astype(np.int64)
        resampled, own_error = _measure(np.bincount(drawn, minlength=users).astype(np.float64), parts)
        steps[number] = divide(resampled - ratio, own_error)
    tail = (1.0 - level) / 2.0
    ends = np.full((ratio.size, 2), np.nan)
    for place in range(ratio.size):
        known = steps[np.isfinite(steps[:, place]), place]
        if known.size > 0.9 * resamples:
            ends[place] = ratio[place] - np.quantile(known, [1.0 - tail, tail]) * error[place]
    return ends


def _measure(times: NDArray[np.float64], parts: tuple[Sums, ...]) -> tuple[Sums, Sums]:
    """Ratios and their standard errors, each user counted so many times."""
    above, below, squares, products, own = (times @ part for part in parts)
    ratio = divide(above, below)
    spread = np.maximum(squares - 2.0 * ratio * products + ratio**2 * own, 0.0)
    users = times.sum()
    return ratio, divide(np.sqrt(spread * users / (users - 1.0)), below)
