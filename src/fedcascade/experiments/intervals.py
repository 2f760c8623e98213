"""Means over runs with their spread, and what can be said with so few of them."""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import mean, stdev
from typing import NamedTuple

# The 97.5% quantiles of Student's t for 1, 2, ... degrees of freedom.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Spread(NamedTuple):
    """Values of independent runs: their mean, standard deviation, and half of the 95% interval of the mean."""

    mean: float
    deviation: float
    half: float
    runs: int


def spread(values: Sequence[float]) -> Spread:
    """The spread of values; one value has no deviation and an endless interval.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, half=2.48..., runs=3)
    """
    count = len(values)
    if count < 2:
        return Spread(mean(values), 0.0, inf, count)
    deviation = stdev(values)
    quantile = _STUDENT[min(count - 1, len(_STUDENT)) - 1]
    return Spread(mean(values), deviation, quantile * deviation / sqrt(count), count)


def ratio(ones: Sequence[float], others: Sequence[float]) -> Spread:
    """The ratio of two means over paired runs, with the interval of its linear approximation.

    >>> ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    Spread(mean=0.5, deviation=0.0, half=0.0, runs=3)
    """
    if not any(others):
        return Spread(inf, 0.0, inf, len(ones))
    below = mean(others)
    centre = mean(ones) / below
    return spread([centre + (one - centre * other) / below for one, other in zip(ones, others, strict=True)])
