"""Means over independent runs, with the 95% interval that so few runs allow.

Wherever a table, a report or a JSON file says ±, it is the half-interval of this module.
"""

from collections.abc import Sequence
from math import inf, nan, sqrt
from statistics import mean, stdev
from typing import NamedTuple

# The 97.5% quantiles of Student's t for 1, 2, ... degrees of freedom.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Interval(NamedTuple):
    """The mean of independent runs, and half the width of its 95% interval."""

    mean: float
    half_width: float
    runs: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width


def estimate_mean(values: Sequence[float]) -> Interval:
    """Return the mean of values with its 95% interval by Student's t; that of a single value is endless.

    >>> estimate_mean([1.0, 2.0, 3.0])
    Interval(mean=2.0, half_width=2.48..., runs=3)
    """
    runs = len(values)
    if runs < 2:
        return Interval(mean(values) if values else nan, inf, runs)
    quantile = _STUDENT[min(runs - 1, len(_STUDENT)) - 1]
    return Interval(mean(values), quantile * stdev(values) / sqrt(runs), runs)


def estimate_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """Return the ratio of two means over paired runs, with the interval of its linear approximation.

    >>> estimate_ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    Interval(mean=0.5, half_width=0.0, runs=3)
    """
    if not any(denominators):
        return Interval(inf, inf, len(numerators))
    centre = mean(numerators) / mean(denominators)
    pairs = zip(numerators, denominators, strict=True)
    return estimate_mean([centre + (above - centre * below) / mean(denominators) for above, below in pairs])
