"""Means over independent runs with their 95% intervals.

Every ± in a table, a report or a JSON file is the half-width of an interval of this module.
"""

from collections.abc import Sequence
from math import inf, isfinite, nan, sqrt
from statistics import mean, stdev
from typing import NamedTuple

FEWEST_RUNS = 3  # with two, Student's t is 12.7: the interval says nothing
# The 97.5% quantiles of Student's t for 2, 3, ... degrees of freedom.
_STUDENT = (
    *(4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
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
    """Return the mean of values with its 95% interval by Student's t, infinite for fewer than ``FEWEST_RUNS`` values.

    >>> estimate_mean([1.0, 2.0, 3.0])
    Interval(mean=2.0, half_width=2.48..., runs=3)
    """
    runs = len(values)
    if runs < FEWEST_RUNS:
        return Interval(mean(values) if values else nan, inf, runs)
    quantile = _STUDENT[min(runs - FEWEST_RUNS, len(_STUDENT) - 1)]
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


def format_mean(value: Interval, unit: str = "") -> str:
    """Format a mean ± half of its 95% interval, if that is finite.

    >>> format_mean(estimate_mean([1000.0, 1100.0, 1200.0]))
    '1,100 ± 248'
    >>> format_mean(estimate_mean([0.25]), "%")
    '25.0%'
    """
    if not value.runs:
        return "–"
    scale, digits = (100, 1) if unit == "%" else (1, 0 if abs(value.mean) >= 1000 else 1)
    tail = f" ± {value.half_width * scale:,.{digits}f}" if isfinite(value.half_width) else ""
    return f"{value.mean * scale:,.{digits}f}{tail}{unit}"
