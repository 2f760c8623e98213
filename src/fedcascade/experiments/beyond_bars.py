"""Beyond the paper: the bars that ``population`` has to meet, and whether it does in our runs.

Ours has its own constants in all settings; the others play each beta that a bar names.
"""

from collections.abc import Sequence
from itertools import product
from typing import Literal, NamedTuple

import polars as pl

from fedcascade.experiments.intervals import Interval, estimate_mean, estimate_ratio
from fedcascade.experiments.plan import Plan, System, matches_pattern, select_systems
from fedcascade.experiments.results import Results

Verdict = Literal["met", "inconclusive", "not met", "not judged"]
Quantity = Literal["regret", "exchanges", "early regret", "clustering error"]

PLAN = "beyond-paper"
OURS, PAPERS, ALONE, KNOWN, TOGETHER = "population", "fedc3ucb-h", "fedind", "known-clusters", "fedlinucb"
ROUNDS = 300_000  # the bars are for runs of this length
EARLY = 5_000  # the first checkpoint that is judged

LIFTED, GAUSSIAN = (("lifted, J = 5", "lifted, J = 10"), ("Gaussian, J = 5", "Gaussian, J = 10"))
SMALL_LIFTED, SMALL_GAUSSIAN = (0.5, 2.0), (1.0, 5.0)
RATINGS = ("*ratings, J = 10",)  # generated ones, or those of a file
HARD_LIFTED = ("lifted, gap 0.3", "lifted, Zipf arrivals", "lifted, one of 20, 20 of 1")
HARD_GAUSSIAN = ("Gaussian, gap 0.3", "Gaussian, Zipf arrivals")
TRADE_OFFS = (("lifted, J = 10", 2.0), ("Gaussian, J = 10", 1.0))


class Bar(NamedTuple):
    """The most that a quantity of ours may be: a multiple of the best of some others, or a share of users."""

    environments: tuple[str, ...]  # names, or patterns of them
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
    """A bar in one setting, our measurement of it, and the verdict."""

    environment: str
    beta: float
    bar: Bar
    rival: str  # the best of those that ours is measured against; empty where there are none
    measured: Interval
    worst: int | None  # the checkpoint with the highest ratio, where all of them are judged
    verdict: Verdict


def make_label(policy: str, beta: float) -> str:
    """Return what the plan calls a policy with this beta and otherwise its own constants; ours has one beta."""
    return OURS if policy == OURS else f"{policy} beta={beta}"


def is_beyond(results: Results) -> bool:
    """Return whether a results folder holds all runs of the built-in plan that the bars need."""
    if [plan.name for plan in results.plans] != [PLAN]:
        return False
    finished = set(results.runs.select("environment", "system").unique().iter_rows())
    settings = {bar: list_settings(bar, results.plans[0]) for bar in BARS}
    return all(len(settings[bar]) == len(bar.environments) * len(bar.betas) for bar in BARS) and all(
        (environment, make_label(policy, beta)) in finished
        for bar in BARS
        for environment, beta in settings[bar]
        for policy in (OURS, *bar.against)
    )


def list_settings(bar: Bar, plan: Plan) -> list[tuple[str, float]]:
    """Return environment and beta of every setting that a bar is for."""
    names = [environment.name for environment in plan.environments]
    chosen = [name for pattern in bar.environments for name in names if matches_pattern(name, pattern)]
    return list(product(chosen, bar.betas))


def is_full(results: Results) -> bool:
    """Return whether runs were as long as the bars ask for."""
    return results.plans[0].rounds == ROUNDS


def judge_bars(results: Results) -> list[Finding]:
    """Judge every bar in every setting, in the order of the plan; early regret only if runs are long enough for it."""
    bars = [bar for bar in BARS if bar.quantity != "early regret" or results.plans[0].rounds >= EARLY]
    findings = [_judge_bar(results, bar, *setting) for bar in bars for setting in list_settings(bar, results.plans[0])]
    order = [environment.name for environment in results.plans[0].environments]
    return sorted(findings, key=lambda finding: (order.index(finding.environment), finding.beta))


def _judge_bar(results: Results, bar: Bar, environment: str, beta: float) -> Finding:
    ours = _select_curves(results, environment, make_label(OURS, beta))
    rivals = {name: _select_curves(results, environment, make_label(name, beta)) for name in bar.against}
    column = bar.quantity.removeprefix("early ").replace(" ", "_")
    best = min(rivals, key=lambda name: sum(_list_totals(rivals[name], column)), default="")
    worst = None
    if bar.quantity == "early regret":
        worst, measured = _find_worst_checkpoint(ours, rivals[best], column)
    elif best:
        measured = estimate_ratio(_list_totals(ours, column), _list_totals(rivals[best], column))
    else:
        measured = estimate_mean(_list_totals(ours, column))
    verdict = judge_measurement(measured, bar.most) if is_full(results) else "not judged"
    return Finding(environment, beta, bar, best, measured, worst, verdict)


def _select_curves(results: Results, environment: str, system: str) -> pl.DataFrame:
    is_wanted = (pl.col("environment") == environment) & (pl.col("system") == system)
    return results.curves.filter(is_wanted).sort("round", "seed")


def _list_totals(curves: pl.DataFrame, column: str) -> list[float]:
    """Return a quantity at the end of each run, by seed."""
    return _list_values(curves, curves["round"].max(), column)


def _list_values(curves: pl.DataFrame, round_: object, column: str) -> list[float]:
    return list(curves.filter(pl.col("round") == round_)[column])


def _find_worst_checkpoint(ours: pl.DataFrame, rival: pl.DataFrame, column: str) -> tuple[int, Interval]:
    """Return the checkpoint with the highest ratio of ours to the rival's, and that ratio."""
    ratios = {
        round_: estimate_ratio(_list_values(ours, round_, column), _list_values(rival, round_, column))
        for round_ in ours["round"].unique(maintain_order=True)
        if round_ >= EARLY
    }
    worst = max(ratios, key=lambda round_: ratios[round_].mean)
    return worst, ratios[worst]


def judge_measurement(measured: Interval, most: float) -> Verdict:
    """Judge a measurement against a bar: met or not met if its 95% interval is on one side, inconclusive if on both."""
    if not measured.low <= most:  # nor is an endless ratio ever met
        return "not met"
    return "met" if measured.high <= most else "inconclusive"


def list_betas(plan: Plan, environment: str) -> list[float]:
    """Return the betas that others than ours play in an environment, sorted."""
    others = [system for system in select_systems(plan.systems, environment) if system.policy != OURS]
    return sorted({float(system.constants["beta"]) for system in others if "beta" in system.constants})


def select_systems_at_beta(plan: Plan, environment: str, beta: float) -> list[System]:
    """Return the systems of an environment with this beta and otherwise their own constants, for a figure."""
    systems = select_systems(plan.systems, environment)
    return [system for system in systems if system.label == make_label(system.policy, beta)]


def select_trade_off_systems(plan: Plan, environment: str, beta: float) -> Sequence[System]:
    """Return the systems of a trade-off: ours, those with this beta, and those without a beta."""
    systems = select_systems(plan.systems, environment)
    return [system for system in systems if system.policy == OURS or float(system.constants.get("beta", beta)) == beta]
