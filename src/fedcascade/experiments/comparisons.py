"""Means over independent runs and comparisons of policies, with their 95% intervals.

Every ± in a table, a report or a JSON file is the half-width of an interval of this module.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan, sqrt
from statistics import mean, stdev
from typing import NamedTuple

import polars as pl

from fedcascade.experiments.plan import NamedEnvironment, Plan, select_policies
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
    """Return the mean of values with its 95% interval by Student's t, which is infinite for a single value.

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
    """A quantity of a policy in an environment, as a share of a baseline's in the same runs."""

    quantity: str
    where: str
    against: str
    share: Interval

    def format(self) -> tuple[str, ...]:
        """Return the cells of a line of a table; a single run has no interval."""
        low, high = f"{self.share.low:.2f}", f"{self.share.high:.2f}"
        interval = f"{low} to {high}" if isfinite(self.share.half_width) else "-"
        return self.quantity, self.where, self.against, f"{self.share.mean:.2f}", interval


def compare_policies(results: Results) -> list[Comparison]:
    """Compare every policy with the baselines that its plan names."""
    return [
        Comparison(f"{policy.label}: {quantity}", environment.name, against, share)
        for plan in results.plans
        for environment in plan.environments
        for against in plan.compare.against
        for policy in select_policies(plan.policies, environment.name)
        if policy.label not in plan.compare.against
        for quantity, share in _list_shares(results, plan, environment, (policy.label, against))
    ]


def _list_shares(
    results: Results, plan: Plan, environment: NamedEnvironment, labels: tuple[str, str]
) -> Iterator[tuple[str, Interval]]:
    """Yield quantities of the first policy as shares of the second's; nothing if either has no runs."""
    here = (pl.col("experiment") == plan.name) & (pl.col("environment") == environment.name)
    curves, runs = (
        [table.filter(here & (pl.col("label") == label)).sort("seed") for label in labels]
        for table in (results.curves, results.runs)
    )
    if all(len(table) for table in runs):
        yield from _list_regret_shares(plan, environment, curves)
        for column, words in TOTALS.items():
            totals = [own[column].to_list() if column in own.columns else [] for own in runs]
            if all(any(counts) for counts in totals):
                yield words, estimate_ratio(*totals)


def _list_regret_shares(
    plan: Plan, environment: NamedEnvironment, curves: Sequence[pl.DataFrame]
) -> Iterator[tuple[str, Interval]]:
    """Yield the shares of regret at the rounds that a plan names, and the largest share over its checkpoints."""
    compare = plan.compare
    users = environment.spec.declared.users if plan.per_user else 1
    unit = "own rounds" if plan.per_user else "rounds"
    regrets = [dict(curve.group_by("round", maintain_order=True).agg("regret").iter_rows()) for curve in curves]
    checkpoints = sorted(regrets[0])
    last = checkpoints[-1]
    spans = [(0, after * users, f"regret after {after:,} {unit}") for after in compare.after] or [(0, last, "regret")]
    if compare.since:
        spans.append((compare.since * users, last, f"regret from round {compare.since:,} on"))
    for start, end, words in spans:
        gained = [_list_regret(regret, start, end) for regret in regrets]
        if all(gained):
            yield words, estimate_ratio(*gained)
    late = [end for end in checkpoints if end >= compare.worst_from * users]
    if compare.worst_from and late:
        shares = [estimate_ratio(*(regret[end] for regret in regrets)) for end in late]
        words = f"largest share of regret from {compare.worst_from:,} {unit} on"
        yield words, max(shares, key=lambda share: share.mean)


def _list_regret(regret: Mapping[int, list[float]], start: int, end: int) -> list[float]:
    """Return the regret of each run between two checkpoints, by seed; nothing where there is no such checkpoint."""
    ends, starts = regret.get(end, []), regret.get(start, [])
    return [end - start for end, start in zip(ends, starts or [0.0] * len(ends), strict=True)]
