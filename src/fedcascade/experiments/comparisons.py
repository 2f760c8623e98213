"""Means over independent runs, and systems compared with each other, with the 95% interval that so few runs allow.

Wherever a table, a report or a JSON file says ±, it is the half-interval of this module.
"""

from collections.abc import Iterator, Sequence
from math import inf, isfinite, nan, sqrt
from statistics import mean, stdev
from typing import NamedTuple

import polars as pl

from fedcascade.experiments.plan import NamedEnvironment, Plan, select_systems
from fedcascade.experiments.results import Results

HEADER = ("quantity", "where", "against", "share", "95% interval")
TOTALS = {"exchanges": "exchanges", "newcomer_regret": "regret of newcomers in their first rounds"}
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


class Comparison(NamedTuple):
    """A quantity of a system in an environment, as a share of that of another system in the same runs."""

    quantity: str
    where: str
    against: str
    share: Interval

    def format(self) -> tuple[str, ...]:
        """Return the cells of a line of a table; a single run has no interval."""
        low, high = f"{self.share.low:.2f}", f"{self.share.high:.2f}"
        interval = f"{low} to {high}" if isfinite(self.share.half_width) else "-"
        return self.quantity, self.where, self.against, f"{self.share.mean:.2f}", interval


def compare_systems(results: Results) -> list[Comparison]:
    """Return what the plans of a results folder ask for: every system beside those that others are compared with."""
    return [
        comparison
        for plan in results.plans
        for environment in plan.environments
        for against in plan.compare.against
        for system in select_systems(plan.systems, environment.name)
        if system.label not in plan.compare.against
        for comparison in _compare(results, plan, environment, system.label, against)
    ]


def _compare(
    results: Results, plan: Plan, environment: NamedEnvironment, system: str, against: str
) -> Iterator[Comparison]:
    """Yield the comparisons of two systems in an environment, run by run; none where one of them did not play."""
    here = (pl.col("experiment") == plan.name) & (pl.col("environment") == environment.name)
    curves, runs = (
        [table.filter(here & (pl.col("system") == name)).sort("seed") for name in (system, against)]
        for table in (results.curves, results.runs)
    )
    if not len(runs[0]) or not len(runs[1]):
        return
    users = environment.spec.declared.users if plan.per_user else 1
    last, unit = int(curves[0]["round"].max()), "own rounds" if plan.per_user else "rounds"  # type: ignore[arg-type]
    spans = [(0, after * users, f" after {after:,} {unit}") for after in plan.compare.after] or [(0, last, "")]
    if plan.compare.since:
        spans.append((plan.compare.since * users, last, f" from round {plan.compare.since:,} on"))
    for start, end, words in spans:
        gained = [_list_regret(curve, start, end) for curve in curves]
        if all(gained):
            yield Comparison(f"{system}: regret{words}", environment.name, against, estimate_ratio(*gained))
    for column, words in TOTALS.items():
        totals = [own[column].to_list() if column in own.columns else [] for own in runs]
        if all(any(counts) for counts in totals):
            yield Comparison(f"{system}: {words}", environment.name, against, estimate_ratio(*totals))


def _list_regret(curves: pl.DataFrame, start: int, end: int) -> list[float]:
    """Return the regret of each run between two checkpoints, by seed; nothing where there is no such checkpoint."""
    ends, starts = (curves.filter(pl.col("round") == round_)["regret"].to_list() for round_ in (end, start))
    return [end - start for end, start in zip(ends, starts or [0.0] * len(ends), strict=True)]
