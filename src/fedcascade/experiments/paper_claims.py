"""The paper's evaluation: its figures as plans, its numbers, and what our runs say of each of its claims.

The numbers in this module are the paper's own; everything else in the report is computed from runs. A verdict looks at
the whole 95% interval, never at the mean alone. A gap that is truly zero is confirmed in one case of forty.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from fedcascade.checks import require_integer
from fedcascade.experiments.comparisons import Interval, estimate_mean
from fedcascade.experiments.plan import Plan, resize_plan
from fedcascade.experiments.plan_reader import load_builtin_plan, set_ratings_file
from fedcascade.experiments.results import Results

Unit = Literal["%", "exchanges", "rounds"]
Verdict = Literal[
    "confirmed", "smaller than the paper's", "inconclusive", "contradicted", "not judged", "not comparable"
]

FEWEST_RUNS = 3  # with fewer, an interval is so wide that nothing can be judged
POINTS, SHARE = 0.02, 0.25  # a gap may fall short of the paper's by 2 points or a quarter of it, whichever is more
WITHIN = 0.05  # a count may differ from the paper's by 5%

FIVE, TEN, RATINGS = PLANS = ("figure-1a", "figure-1bc", "figure-1d")
OURS = "fedc3ucb-h"
NAMES = {OURS: "FedC3UCB-H", "force-comm": "ForceComm", "no-auxiliary": "NoAuxiliary", "fedlinucb": "FedLinUCB",
         "fedind": "FedInd"}  # fmt: skip
ROUNDS, RUNS, QUICK_RUNS = 1_000_000, 10, 2

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
    (TEN, "regret", "no-auxiliary", 0.10),
    (TEN, "regret", "force-comm", 0.12),
    (TEN, "exchanges", "force-comm", 0.05),
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
ABOVE = ((RATINGS, "no-auxiliary"), (RATINGS, "fedlinucb"))  # FedC3UCB-H has more exchanges, the text says
# Figure 1(c) in words: the first system comes down to so small a clustering error before the second.
SOONER = (
    ("NoAuxiliary: all users placed later, in rounds", OURS, "no-auxiliary", 0.0),
    ("ForceComm: half of them placed sooner, in rounds", "force-comm", OURS, 0.5),
)


class Claim(NamedTuple):
    """A statement of the paper, our measurement of it, the verdict, and what else there is to say."""

    plan: str
    place: str
    text: str
    unit: Unit
    paper: float | None
    ours: Interval
    verdict: Verdict
    note: str


def compute_needed_gap(paper: float | None) -> float:
    """Return how wide a gap has to be for the paper's claim; above zero is enough where it gives no number.

    >>> compute_needed_gap(0.82), round(compute_needed_gap(0.05), 12), compute_needed_gap(None)
    (0.615, 0.03, 0.0)
    """
    return 0.0 if paper is None else paper - max(POINTS, SHARE * paper)


def judge_gap(gap: Interval, paper: float | None) -> Verdict:
    """Judge how far one system is below another: whether there is a gap at all, and whether it is wide enough."""
    if gap.high < 0.0:
        return "contradicted"
    if gap.low <= 0.0:
        return "inconclusive"
    return "confirmed" if gap.high >= compute_needed_gap(paper) else "smaller than the paper's"


def judge_count(count: Interval, paper: float) -> Verdict:
    """Judge a count: confirmed if its whole interval is within 5% of the paper's, contradicted if all of it is not."""
    least, most = paper * (1.0 - WITHIN), paper * (1.0 + WITHIN)
    if count.high < least or count.low > most:
        return "contradicted"
    return "confirmed" if least <= count.low and count.high <= most else "inconclusive"


def load_paper_plans(*, quick: bool = False, runs: int | None = None, ratings: Path | None = None) -> list[Plan]:
    """Load the plans of the paper's figures; quick ones have fewer runs, and ratings only if a file is given."""
    runs = (QUICK_RUNS if quick else RUNS) if runs is None else runs
    require_integer("runs", runs)
    names = [name for name in PLANS if name != RATINGS or ratings is not None or not quick]
    plans = [set_ratings_file(load_builtin_plan(name), ratings) for name in names]
    return [resize_plan(plan, seeds=range(runs)) for plan in plans]


def is_paper(results: Results) -> bool:
    """Return whether a results folder holds the paper's evaluation, with ratings or without."""
    return tuple(plan.name for plan in results.plans) in (PLANS, (FIVE, TEN))


def judge_claims(results: Results) -> list[Claim]:
    """Judge every claim of the paper that there are runs for: percentages, then clustering, then exchanges."""
    plans = {plan.name: plan for plan in results.plans}
    claims = [
        *(_judge_reduction(results, plans[row[0]], *row[1:]) for row in BELOW if row[0] in plans),
        *(_judge_more_exchanges(results, plans[name], rival) for name, rival in ABOVE if name in plans),
        *(_judge_placement(results, plans[TEN], *row) for row in SOONER),
    ]
    counts = [
        _judge_exchanges(results, plan, system, paper)
        for plan in results.plans
        for system, paper in EXCHANGES[plan.name].items()
    ]
    return claims + counts


def _judge_reduction(results: Results, plan: Plan, quantity: str, rival: str, paper: float | None) -> Claim:
    """Judge how far FedC3UCB-H is below another system; runs are paired, since both met the same users and items."""
    ours, theirs = (list_totals(results, plan.name, system, quantity) for system in (OURS, rival))
    gaps = [1 - own / their for own, their in zip(ours, theirs, strict=True)]
    return _judge_gaps(plan, describe_reduction(quantity, rival), "%", paper, gaps)


def describe_reduction(quantity: str, rival: str) -> str:
    """Return the words of the claim that FedC3UCB-H is below another system."""
    return f"{NAMES[OURS]}: less {'regret' if quantity == 'regret' else 'communication'} than {NAMES[rival]}"


def _judge_more_exchanges(results: Results, plan: Plan, rival: str) -> Claim:
    ours, theirs = (list_totals(results, plan.name, system, "exchanges") for system in (OURS, rival))
    gaps = [own / their - 1 for own, their in zip(ours, theirs, strict=True)]
    return _judge_gaps(plan, f"{NAMES[OURS]}: more communication than {NAMES[rival]}", "%", None, gaps)


def _judge_placement(results: Results, plan: Plan, text: str, first: str, second: str, error: float) -> Claim:
    """Judge by how many rounds the first system comes down to a clustering error before the second."""
    early, late = (find_placement_rounds(results, plan.name, system, error) for system in (first, second))
    leads = [
        None if sooner is None or later is None else float(later - sooner)
        for sooner, later in zip(early, late, strict=True)
    ]
    return _judge_gaps(plan, text, "rounds", None, leads)


def _judge_gaps(plan: Plan, text: str, unit: Unit, paper: float | None, gaps: Sequence[float | None]) -> Claim:
    """Judge the gaps of paired runs. None is a censored run: it has no value, and with it nothing is decided."""
    known = [gap for gap in gaps if gap is not None]
    gap, censored = estimate_mean(known), len(gaps) - len(known)
    direction = f"same direction in {sum(each > 0 for each in known)} of {len(gaps)} runs"
    note = f"{censored} of {len(gaps)} runs censored" if censored else ""
    verdict = "inconclusive" if censored else judge_gap(gap, paper)
    return _make_claim(plan, text, unit, paper, gap, verdict, note, "; ".join(filter(None, (direction, note))))


def _judge_exchanges(results: Results, plan: Plan, system: str, paper: float) -> Claim:
    counts = list_totals(results, plan.name, system, "exchanges")
    count = estimate_mean(counts)
    near = sum(abs(each - paper) <= WITHIN * paper for each in counts)
    note = f"within {WITHIN:.0%} in {near} of {len(counts)} runs"
    verdict = judge_count(count, paper)
    return _make_claim(plan, describe_count(system), "exchanges", paper, count, verdict, "", note)


def describe_count(system: str) -> str:
    """Return the words of a cell of the table of exchanges."""
    return f"{NAMES[system]}: exchanges"


def _make_claim(
    plan: Plan, text: str, unit: Unit, paper: float | None, ours: Interval, verdict: Verdict, note: str, unjudged: str
) -> Claim:
    """Make a claim; where the runs allow no verdict, ``unjudged`` says what they do show."""
    place = describe_place(plan)
    if not _has_papers_data(plan):
        return Claim(plan.name, place, text, unit, paper, ours, "not comparable", "the paper's are from Yelp")
    if len(plan.seeds) < FEWEST_RUNS or plan.rounds < ROUNDS:
        return Claim(plan.name, place, text, unit, paper, ours, "not judged", unjudged)
    return Claim(plan.name, place, text, unit, paper, ours, verdict, note)


def describe_place(plan: Plan) -> str:
    """Return where a plan's claims are made: J = 5, J = 10, generated ratings, or the name of a file of ratings."""
    spec = plan.environments[0].spec
    if spec.kind == "ratings":
        return "generated ratings" if spec.file is None else Path(spec.file).name
    return plan.environments[0].name.removeprefix("synthetic, ")


def _has_papers_data(plan: Plan) -> bool:
    """Return whether a plan's world is the paper's: synthetic, or made from a file that is called Yelp's."""
    spec = plan.environments[0].spec
    return spec.kind != "ratings" or "yelp" in Path(spec.file or "").name.lower()


# What --strict asks for: that sharing within clusters pays, and the table of communication costs.
STRICT = (
    *((plan, describe_reduction("regret", rival)) for plan in (FIVE, TEN) for rival in ("fedlinucb", "fedind")),
    *((plan, describe_count(system)) for plan in (FIVE, TEN) for system in EXCHANGES[plan]),
)


def find_unconfirmed(claims: Iterable[Claim]) -> list[str]:
    """Return those claims of the list ``STRICT`` that are not confirmed, in words."""
    verdicts = {(claim.plan, claim.text): claim for claim in claims}
    return [
        f"{claim.place}, {claim.text} ({claim.verdict})"
        for claim in map(verdicts.__getitem__, STRICT)
        if claim.verdict != "confirmed"
    ]


def list_totals(results: Results, plan: str, system: str, quantity: str) -> list[float]:
    """Return a quantity at the end of each run, by seed."""
    rows = results.runs.filter((pl.col("experiment") == plan) & (pl.col("system") == system)).sort("seed")
    return list(rows[quantity])


def find_placement_rounds(results: Results, plan: str, system: str, error: float) -> list[int | None]:
    """Return each run's first checkpoint with so small a clustering error, by seed; None if there is none."""
    curves = results.curves.filter((pl.col("experiment") == plan) & (pl.col("system") == system))
    first = pl.col("round").filter(pl.col("clustering_error") <= error).min()
    return list(curves.group_by("seed").agg(first.alias("first")).sort("seed")["first"])
