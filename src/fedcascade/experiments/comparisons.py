"""Comparisons of policies in the runs of plans, with their 95% intervals."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

import polars as pl

from fedcascade.experiments.plan import NamedEnvironment, Plan, select_policies
from fedcascade.experiments.results import Results
from fedcascade.intervals import Interval, estimate_ratio

HEADER = ("quantity", "where", "against", "share", "95% interval")
TOTALS = {"exchanges": "exchanges", "newcomer_regret": "regret of newcomers in their first rounds"}


class Comparison(NamedTuple):
    """A quantity of a policy in an environment, as a share of a baseline's in the same runs."""

    quantity: str
    where: str
    against: str
    share: Interval

    def format(self) -> tuple[str, ...]:
        """Return the cells of a line of a table; few runs have no interval."""
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
