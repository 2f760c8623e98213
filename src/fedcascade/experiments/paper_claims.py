"""The paper's evaluation: its figures as plans, its numbers, and whether each of its claims holds in our runs.

The numbers in this module are the paper's own; everything else in the report is computed from runs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from fedcascade.checks import require_integer
from fedcascade.experiments.builtin_plans import load_builtin_plan, set_ratings_file
from fedcascade.experiments.intervals import Interval, estimate_mean
from fedcascade.experiments.plan import Plan, resize_plan
from fedcascade.experiments.results import Results

Verdict = Literal["holds", "holds within noise", "does not hold here", "not judged"]

FIVE, TEN, RATINGS, AUXILIARY = PLANS = ("figure-1a", "figure-1bc", "figure-1d", "auxiliary")
PLACES = {FIVE: "J = 5", TEN: "J = 10", RATINGS: "ratings", AUXILIARY: "J = 10"}
OURS = "fedc3ucb-h"
NAMES = {OURS: "FedC3UCB-H", "force-comm": "ForceComm", "no-auxiliary": "NoAuxiliary", "fedlinucb": "FedLinUCB",
         "fedind": "FedInd"}  # fmt: skip
ROUNDS, RUNS = 1_000_000, 3
QUICK_ROUNDS, QUICK_RUNS = 300_000, 2
RUNS_OF_CLOSE_SYSTEMS = 10

# Table 2 of the paper: exchanges after 1,000,000 rounds.
EXCHANGES: Mapping[str, Mapping[str, float]] = {
    FIVE: {OURS: 818.3, "force-comm": 909.3, "no-auxiliary": 666.7, "fedlinucb": 479.7},
    TEN: {OURS: 1070.7, "force-comm": 1125.3, "no-auxiliary": 899.3, "fedlinucb": 482.3},
    RATINGS: {OURS: 951.3, "force-comm": 1034.0, "no-auxiliary": 789.3, "fedlinucb": 486.0},
}
# The percentages of the text: how far FedC3UCB-H is below another system. None: 'below', without a number.
BELOW: Sequence[tuple[str, str, str, float | None]] = (
    (TEN, "regret", "fedlinucb", 0.82),
    (TEN, "regret", "fedind", 0.64),
    (AUXILIARY, "regret", "no-auxiliary", 0.10),
    (AUXILIARY, "regret", "force-comm", 0.12),
    (AUXILIARY, "exchanges", "force-comm", 0.05),
    (FIVE, "regret", "fedlinucb", None),
    (FIVE, "regret", "fedind", None),
    (FIVE, "regret", "no-auxiliary", None),
    (FIVE, "regret", "force-comm", None),
    (RATINGS, "regret", "fedlinucb", 0.67),
    (RATINGS, "regret", "fedind", 0.43),
    (RATINGS, "regret", "no-auxiliary", 0.05),
    (RATINGS, "regret", "force-comm", 0.06),
    (RATINGS, "exchanges", "force-comm", 0.08),
)
WITHIN = 0.05  # a count may differ by 5%, a percentage fall short by 5 points, and the claim still holds


class Claim(NamedTuple):
    """A statement of the paper, our measurement of it, and the verdict."""

    place: str
    text: str
    unit: Literal["%", "exchanges", "rounds"]
    paper: float | None
    ours: Interval
    verdict: Verdict


def load_paper_plans(*, quick: bool = False, runs: int | None = None, ratings: Path | None = None) -> list[Plan]:
    """Load the plans of the paper's figures, in full length or quicker."""
    runs = (QUICK_RUNS if quick else RUNS) if runs is None else runs
    require_integer("runs", runs)
    close = runs if quick else max(runs, RUNS_OF_CLOSE_SYSTEMS)
    rounds = QUICK_ROUNDS if quick else None
    plans = {name: set_ratings_file(load_builtin_plan(name), ratings) for name in PLANS}
    seeds = {name: range(close if name == AUXILIARY else runs) for name in PLANS}
    return [resize_plan(plan, rounds=rounds, seeds=seeds[name]) for name, plan in plans.items()]


def is_paper(results: Results) -> bool:
    """Return whether a results folder holds the paper's evaluation."""
    return tuple(plan.name for plan in results.plans) == PLANS


def is_full(results: Results) -> bool:
    """Return whether runs were as long as the paper's, so that sizes can be compared and not only directions."""
    return all(plan.rounds == ROUNDS for plan in results.plans)


def judge_claims(results: Results) -> list[Claim]:
    """Judge every claim of the paper: percentages, then clustering, then the table of exchanges."""
    full = is_full(results)
    return [
        *(_judge_reduction(results, *row, full) for row in BELOW),
        *(_judge_more_exchanges(results, rival) for rival in ("no-auxiliary", "fedlinucb")),
        *_judge_clustering(results),
        *(
            _judge_exchanges(results, plan, system, paper, full)
            for plan, row in EXCHANGES.items()
            for system, paper in row.items()
        ),
    ]


def _judge_reduction(results: Results, plan: str, quantity: str, rival: str, paper: float | None, full: bool) -> Claim:
    """Judge how far FedC3UCB-H is below another system; runs are paired, since both met the same users and items."""
    ours, theirs = (list_totals(results, plan, system, quantity) for system in (OURS, rival))
    gaps = estimate_mean([1 - own / their for own, their in zip(ours, theirs, strict=True)])
    text = f"{NAMES[OURS]}: less {'regret' if quantity == 'regret' else 'communication'} than {NAMES[rival]}"
    return Claim(PLACES[plan], text, "%", paper, gaps, judge_gap(gaps, paper if full else None))


def _judge_more_exchanges(results: Results, rival: str) -> Claim:
    ours, theirs = (list_totals(results, RATINGS, system, "exchanges") for system in (OURS, rival))
    gaps = estimate_mean([own / their - 1 for own, their in zip(ours, theirs, strict=True)])
    text = f"{NAMES[OURS]}: more communication than {NAMES[rival]}"
    return Claim(PLACES[RATINGS], text, "%", None, gaps, judge_gap(gaps, None))


def _judge_clustering(results: Results) -> list[Claim]:
    """Judge Figure 1(c) in words: NoAuxiliary converges later than FedC3UCB-H, ForceComm is sooner at first."""
    later = _estimate_lead(results, OURS, "no-auxiliary", error=0.0)
    sooner = _estimate_lead(results, "force-comm", OURS, error=0.5)
    leads = {"NoAuxiliary: all users placed later": later, "ForceComm: half of them placed sooner": sooner}
    return [
        Claim(PLACES[AUXILIARY], f"{words}, in rounds", "rounds", None, lead, judge_gap(lead, None))
        for words, lead in leads.items()
    ]


def _estimate_lead(results: Results, first: str, second: str, *, error: float) -> Interval:
    """Return by how many rounds the first system comes down to a clustering error before the second."""
    early, late = (find_placement_rounds(results, system, error) for system in (first, second))
    return estimate_mean([later - sooner for sooner, later in zip(early, late, strict=True)])


def _judge_exchanges(results: Results, plan: str, system: str, paper: float, full: bool) -> Claim:
    ours = estimate_mean(list_totals(results, plan, system, "exchanges"))
    verdict = judge_count(ours, paper) if full else "not judged"
    return Claim(PLACES[plan], f"{NAMES[system]}: exchanges", "exchanges", paper, ours, verdict)


def judge_gap(gaps: Interval, paper: float | None) -> Verdict:
    """Judge whether a gap exists and, where the paper gives a number, is about as wide.

    It holds if the mean is above zero beyond the noise of the runs, and no more than five points short of the
    paper's. It holds within noise if the 95% interval of the mean allows for that.
    """
    needed = 0.0 if paper is None else paper - WITHIN
    if gaps.mean >= needed and gaps.mean - gaps.half_width > 0:
        return "holds"
    return "holds within noise" if gaps.mean > 0 and gaps.mean + gaps.half_width >= needed else "does not hold here"


def judge_count(ours: Interval, paper: float) -> Verdict:
    """Judge whether a count is within 5% of the paper's, or the 95% interval of its mean allows for that."""
    difference = abs(ours.mean - paper)
    if difference <= WITHIN * paper:
        return "holds"
    return "holds within noise" if difference - ours.half_width <= WITHIN * paper else "does not hold here"


def list_totals(results: Results, plan: str, system: str, quantity: str) -> list[float]:
    """Return a quantity at the end of each run, by seed."""
    rows = results.runs.filter((pl.col("experiment") == plan) & (pl.col("system") == system)).sort("seed")
    return list(rows[quantity])


def find_placement_rounds(results: Results, system: str, error: float) -> list[int]:
    """Return each run's first checkpoint with so small a clustering error, or the end of the run, by seed."""
    curves = results.curves.filter((pl.col("experiment") == AUXILIARY) & (pl.col("system") == system))
    first = pl.col("round").filter(pl.col("clustering_error") <= error).min().fill_null(pl.col("round").max())
    return list(curves.group_by("seed").agg(first.alias("first")).sort("seed")["first"])
