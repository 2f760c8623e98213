"""Beyond the paper: what ``fedc3ucb-e`` has to show, and whether it does in our runs.

The bars in this module were set before the runs; everything else in the report is computed from runs.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import polars as pl

from fedcascade.experiments.intervals import Spread, ratio, spread
from fedcascade.experiments.plan import Plan, System, systems_in
from fedcascade.experiments.results import Results

Verdict = Literal["met", "met within noise", "not met", "not judged"]
Quantity = Literal["regret", "exchanges", "early regret", "clustering error"]

PLAN = "beyond-paper"
OURS, PAPERS, ALONE, KNOWN, TOGETHER = "fedc3ucb-e", "fedc3ucb-h", "fedind", "known-clusters", "fedlinucb"
ROUNDS = 300_000  # the bars are for runs of this length
EARLY = 5_000  # the first checkpoint that is judged

LIFTED, GAUSSIAN = (("lifted, J = 5", "lifted, J = 10"), ("Gaussian, J = 5", "Gaussian, J = 10"))
SMALL_LIFTED, SMALL_GAUSSIAN = (0.5, 2.0), (1.0, 5.0)
RATINGS = ("ratings, J = 10",)
HARD_LIFTED = ("lifted, gap 0.3", "lifted, Zipf arrivals", "lifted, one of 20, 20 of 1")
HARD_GAUSSIAN = ("Gaussian, gap 0.3", "Gaussian, Zipf arrivals")
TRADE_OFFS = (("lifted, J = 10", 2.0), ("Gaussian, J = 10", 1.0))


class Bar(NamedTuple):
    """The most that a quantity of ours may be: a multiple of the best of some others, or a share of users."""

    environments: tuple[str, ...]
    betas: tuple[float, ...]
    quantity: Quantity
    against: tuple[str, ...]
    most: float


BARS = (
    Bar(LIFTED, SMALL_LIFTED, "regret", (ALONE, PAPERS), 0.65),
    Bar(LIFTED, SMALL_LIFTED, "regret", (KNOWN,), 1.7),
    Bar(LIFTED, SMALL_LIFTED, "exchanges", (PAPERS,), 1.0),
    Bar(LIFTED, SMALL_LIFTED, "early regret", (ALONE,), 1.05),
    Bar(LIFTED, SMALL_LIFTED, "clustering error", (), 0.0),
    Bar(GAUSSIAN, SMALL_GAUSSIAN, "regret", (ALONE, PAPERS), 0.6),
    Bar(GAUSSIAN, SMALL_GAUSSIAN, "regret", (KNOWN,), 1.5),
    Bar(GAUSSIAN, SMALL_GAUSSIAN, "exchanges", (PAPERS,), 1.25),
    Bar(GAUSSIAN, SMALL_GAUSSIAN, "early regret", (ALONE,), 1.05),
    Bar(GAUSSIAN, SMALL_GAUSSIAN, "clustering error", (), 0.0),
    Bar(("lifted, J = 1",), (2.0,), "regret", (TOGETHER,), 1.3),
    Bar(("Gaussian, J = 1",), (1.0,), "regret", (TOGETHER,), 1.3),
    Bar(("Gaussian, J = 40",), (1.0,), "regret", (ALONE,), 1.05),
    # Where some users are alike, sharing can help: so not only no worse than alone, but better.
    Bar(HARD_LIFTED, (2.0,), "regret", (ALONE,), 1.05),
    Bar(HARD_LIFTED, (2.0,), "regret", (ALONE,), 1.0),
    Bar(HARD_GAUSSIAN, (1.0,), "regret", (ALONE,), 1.05),
    Bar(HARD_GAUSSIAN, (1.0,), "regret", (ALONE,), 1.0),
    Bar(RATINGS, (0.5, 2.0), "regret", (ALONE, PAPERS), 0.7),
)


class Finding(NamedTuple):
    """A bar in one setting, and what our runs say to it."""

    environment: str
    beta: float
    bar: Bar
    other: str  # the best of those that ours is measured against; empty where there are none
    measured: Spread
    worst: int | None  # the checkpoint that was measured, where all of them are judged
    verdict: Verdict


def label(policy: str, beta: float) -> str:
    """What the plan calls a policy with a beta, and else with its own constants."""
    return f"{policy} beta={beta}"


def is_beyond(results: Results) -> bool:
    """Whether a results folder holds the runs of the shipped plan, so that every bar can be looked at."""
    played = set(results.runs.select("environment", "system").unique().iter_rows())
    named = [plan.name for plan in results.plans] == [PLAN]
    return named and all(need in played for bar in BARS for need in _needed(bar))


def _needed(bar: Bar) -> Iterator[tuple[str, str]]:
    for environment, beta in settings(bar):
        yield from ((environment, label(policy, beta)) for policy in (OURS, *bar.against))


def settings(bar: Bar) -> list[tuple[str, float]]:
    """Environment and beta of every setting that a bar is for."""
    return [(environment, beta) for environment in bar.environments for beta in bar.betas]


def is_full(results: Results) -> bool:
    """Whether runs were as long as the bars ask for."""
    return results.plans[0].rounds == ROUNDS


def findings(results: Results) -> list[Finding]:
    """Every bar in every setting, in the order of the plan; early regret only where runs are long enough to have it."""
    judgeable = [bar for bar in BARS if bar.quantity != "early regret" or results.plans[0].rounds >= EARLY]
    found = [_finding(results, bar, *setting) for bar in judgeable for setting in settings(bar)]
    order = [place.name for place in results.plans[0].environments]
    return sorted(found, key=lambda one: (order.index(one.environment), one.beta))


def _finding(results: Results, bar: Bar, environment: str, beta: float) -> Finding:
    ours = _curves(results, environment, label(OURS, beta))
    others = {name: _curves(results, environment, label(name, beta)) for name in bar.against}
    column = bar.quantity.removeprefix("early ").replace(" ", "_")
    best = min(others, key=lambda name: sum(_last(others[name], column)), default="")
    worst = None
    if bar.quantity == "early regret":
        worst, measured = _worst(ours, others[best], column)
    elif best:
        measured = ratio(_last(ours, column), _last(others[best], column))
    else:
        measured = spread(_last(ours, column))
    verdict = judged(measured, bar.most) if is_full(results) else "not judged"
    return Finding(environment, beta, bar, best, measured, worst, verdict)


def _curves(results: Results, environment: str, system: str) -> pl.DataFrame:
    there = (pl.col("environment") == environment) & (pl.col("system") == system)
    return results.curves.filter(there).sort("round", "seed")


def _last(curves: pl.DataFrame, column: str) -> list[float]:
    """A quantity at the end of each run, by seed."""
    return _at(curves, curves["round"].max(), column)


def _at(curves: pl.DataFrame, round_: object, column: str) -> list[float]:
    values: list[float] = curves.filter(pl.col("round") == round_)[column].to_list()
    return values


def _worst(ours: pl.DataFrame, others: pl.DataFrame, column: str) -> tuple[int, Spread]:
    """The checkpoint with the highest ratio, and that ratio."""
    rounds = [round_ for round_ in ours["round"].unique(maintain_order=True) if round_ >= EARLY]
    ratios = {round_: ratio(_at(ours, round_, column), _at(others, round_, column)) for round_ in rounds}
    worst = max(ratios, key=lambda round_: ratios[round_].mean)
    return worst, ratios[worst]


def judged(measured: Spread, most: float) -> Verdict:
    """Met if the measured value is no more than the bar; within noise if its 95% interval goes beyond the bar."""
    if measured.mean > most:
        return "not met"
    return "met" if measured.mean + measured.half <= most else "met within noise"


def betas(plan: Plan, environment: str) -> list[float]:
    """The betas that are played in an environment."""
    return sorted({float(system.constants["beta"]) for system in systems_in(plan, environment) if _has_beta(system)})


def alike(plan: Plan, environment: str, beta: float) -> list[System]:
    """The systems of an environment with one beta and else their own constants: what a figure compares."""
    return [system for system in systems_in(plan, environment) if system.label == label(system.policy, beta)]


def compared(plan: Plan, environment: str, beta: float) -> Sequence[System]:
    """The systems of a trade-off: those with one beta, whatever else they have, and those that have none."""
    return [
        system
        for system in systems_in(plan, environment)
        if not _has_beta(system) or float(system.constants["beta"]) == beta
    ]


def _has_beta(system: System) -> bool:
    return "beta" in system.constants
