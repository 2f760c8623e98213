"""The paper's evaluation: its figures as plans, its numbers, and verdicts on its claims.

The numbers in this module are the paper's; the rest of the report is computed from runs. A verdict uses the whole 95%
interval, not the mean alone. A gap of zero is confirmed with probability 1/40.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl
from msgspec.structs import replace

from fedcascade.checks import require_integer
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.plan_reader import load_builtin_plan, set_ratings_file
from fedcascade.experiments.results import Results
from fedcascade.intervals import FEWEST_RUNS, Interval, estimate_mean

Unit = Literal["%", "exchanges", "rounds"]
Verdict = Literal[
    "confirmed", "smaller than the paper's", "inconclusive", "contradicted", "not judged", "not comparable"
]

POINTS, SHARE = 0.02, 0.25  # a gap may fall short of the paper's by 2 points or 25%, whichever is larger
WITHIN = 0.05  # a count may differ from the paper's by 5%

FIVE, TEN, RATINGS = PLANS = ("figure-1a", "figure-1bc", "figure-1d")
PAPER_POLICY = "fedc3ucb-h"
NAMES = {
    PAPER_POLICY: "FedC3UCB-H",
    "force-comm": "ForceComm",
    "no-auxiliary": "NoAuxiliary",
    "fedlinucb": "FedLinUCB",
    "fedind": "FedInd",
}
ROUNDS, RUNS, QUICK_RUNS = 1_000_000, 10, 3

# Table 2 of the paper: exchanges after 1,000,000 rounds.
EXCHANGES: Mapping[str, Mapping[str, float]] = {
    FIVE: {PAPER_POLICY: 818.3, "force-comm": 909.3, "no-auxiliary": 666.7, "fedlinucb": 479.7},
    TEN: {PAPER_POLICY: 1070.7, "force-comm": 1125.3, "no-auxiliary": 899.3, "fedlinucb": 482.3},
    RATINGS: {PAPER_POLICY: 951.3, "force-comm": 1034.0, "no-auxiliary": 789.3, "fedlinucb": 486.0},
}
# The percentages of the text: the gap of FedC3UCB-H below another policy; None where the text gives no number.
BELOW: tuple[tuple[str, str, str, float | None], ...] = (
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
# The text: FedC3UCB-H has more exchanges.
ABOVE = ((RATINGS, "exchanges", "no-auxiliary", None, True), (RATINGS, "exchanges", "fedlinucb", None, True))
# Figure 1(c): the first policy reaches this clustering error before the second.
SOONER = (
    ("NoAuxiliary: all users placed later, in rounds", PAPER_POLICY, "no-auxiliary", 0.0),
    ("ForceComm: half of them placed sooner, in rounds", "force-comm", PAPER_POLICY, 0.5),
)


class Claim(NamedTuple):
    """A statement of the paper, our measurement, the verdict, and a note."""

    plan: str
    place: str
    text: str
    unit: Unit
    paper: float | None
    ours: Interval
    verdict: Verdict
    note: str


def judge_gap(gap: Interval, paper: float | None) -> Verdict:
    """Judge the gap between two policies: its sign, then its size, where the paper gives a number."""
    if gap.high < 0.0:
        return "contradicted"
    if gap.low <= 0.0:
        return "inconclusive"
    needed = 0.0 if paper is None else paper - max(POINTS, SHARE * paper)
    return "confirmed" if gap.high >= needed else "smaller than the paper's"


def judge_count(count: Interval, paper: float) -> Verdict:
    """Judge a count by how much of its interval is within 5% of the paper's: all, some or none."""
    least, most = paper * (1.0 - WITHIN), paper * (1.0 + WITHIN)
    if count.high < least or count.low > most:
        return "contradicted"
    return "confirmed" if least <= count.low and count.high <= most else "inconclusive"


def load_paper_plans(*, quick: bool = False, runs: int | None = None, ratings: Path | None = None) -> list[Plan]:
    """Load the plans of the paper's figures; with ``quick``, fewer runs, and ratings only from a file."""
    runs = (QUICK_RUNS if quick else RUNS) if runs is None else runs
    require_integer("runs", runs)
    names = [name for name in PLANS if name != RATINGS or ratings is not None or not quick]
    plans = [replace(load_builtin_plan(name), seeds=tuple(range(runs))) for name in names]
    return plans if ratings is None else [set_ratings_file(plan, ratings) for plan in plans]


def is_paper(results: Results) -> bool:
    """Return whether a results folder holds the paper's evaluation, with ratings or without."""
    return tuple(plan.name for plan in results.plans) in (PLANS, (FIVE, TEN))


def judge_claims(results: Results) -> list[Claim]:
    """Judge the claims of the paper that the runs cover: percentages, clustering, exchanges."""
    plans = {plan.name: plan for plan in results.plans}
    claims = [
        *(_judge_totals(results, plans[row[0]], *row[1:]) for row in BELOW + ABOVE if row[0] in plans),
        *(_judge_placement(results, plans[TEN], *row) for row in SOONER),
    ]
    counts = [
        _judge_exchanges(results, plan, policy, paper)
        for plan in results.plans
        for policy, paper in EXCHANGES[plan.name].items()
    ]
    return claims + counts


def _judge_totals(
    results: Results, plan: Plan, quantity: str, rival: str, paper: float | None, is_more: bool = False
) -> Claim:
    """Judge the gap of FedC3UCB-H below another policy, or above it, in runs paired by seed."""
    ours, theirs = (list_totals(results, plan.name, policy, quantity) for policy in (PAPER_POLICY, rival))
    gaps = [own / their - 1 if is_more else 1 - own / their for own, their in zip(ours, theirs, strict=True)]
    more = f"{NAMES[PAPER_POLICY]}: more communication than {NAMES[rival]}"
    return _judge_gaps(plan, more if is_more else describe_reduction(quantity, rival), "%", paper, gaps)


def describe_reduction(quantity: str, rival: str) -> str:
    """Describe the claim that FedC3UCB-H is below another policy."""
    return f"{NAMES[PAPER_POLICY]}: less {'regret' if quantity == 'regret' else 'communication'} than {NAMES[rival]}"


def _judge_placement(results: Results, plan: Plan, text: str, first: str, second: str, error: float) -> Claim:
    """Judge how many rounds earlier the first policy reaches a clustering error."""
    early, late = (find_placement_rounds(results, plan.name, policy, error) for policy in (first, second))
    leads = [
        None if sooner is None or later is None else float(later - sooner)
        for sooner, later in zip(early, late, strict=True)
    ]
    return _judge_gaps(plan, text, "rounds", None, leads)


def _judge_gaps(plan: Plan, text: str, unit: Unit, paper: float | None, gaps: Sequence[float | None]) -> Claim:
    """Judge the gaps of paired runs; a censored run (None) makes the verdict inconclusive."""
    known = [gap for gap in gaps if gap is not None]
    gap, censored = estimate_mean(known), len(gaps) - len(known)
    direction = f"same direction in {sum(each > 0 for each in known)} of {len(gaps)} runs"
    note = f"{censored} of {len(gaps)} runs censored" if censored else ""
    verdict = "inconclusive" if censored else judge_gap(gap, paper)
    return _make_claim(plan, text, unit, paper, gap, verdict, note, "; ".join(filter(None, (direction, note))))


def _judge_exchanges(results: Results, plan: Plan, policy: str, paper: float) -> Claim:
    counts = list_totals(results, plan.name, policy, "exchanges")
    count = estimate_mean(counts)
    near = sum(abs(each - paper) <= WITHIN * paper for each in counts)
    note = f"within {WITHIN:.0%} in {near} of {len(counts)} runs"
    verdict = judge_count(count, paper)
    return _make_claim(plan, describe_count(policy), "exchanges", paper, count, verdict, "", note)


def describe_count(policy: str) -> str:
    """Describe a cell of the table of exchanges."""
    return f"{NAMES[policy]}: exchanges"


def _make_claim(
    plan: Plan, text: str, unit: Unit, paper: float | None, ours: Interval, verdict: Verdict, note: str, unjudged: str
) -> Claim:
    """Make a claim; ``unjudged`` is its note if the runs allow no verdict."""
    place = describe_place(plan)
    if not _has_papers_data(plan):
        return Claim(plan.name, place, text, unit, paper, ours, "not comparable", "the paper's are from Yelp")
    if len(plan.seeds) < FEWEST_RUNS or plan.rounds < ROUNDS:
        return Claim(plan.name, place, text, unit, paper, ours, "not judged", unjudged)
    return Claim(plan.name, place, text, unit, paper, ours, verdict, note)


def describe_place(plan: Plan) -> str:
    """Describe the environment of a plan: J = 5, J = 10, generated ratings, or the name of a ratings file."""
    spec = plan.environments[0].spec
    if spec.kind == "ratings":
        return "generated ratings" if spec.file is None else Path(spec.file).name
    return plan.environments[0].name.removeprefix("synthetic, ")


def _has_papers_data(plan: Plan) -> bool:
    """Return whether a plan uses the paper's data: synthetic, or a file with Yelp in its name."""
    spec = plan.environments[0].spec
    return spec.kind != "ratings" or "yelp" in Path(spec.file or "").name.lower()


# The claims that --strict requires: less regret from sharing within clusters, and the communication costs.
STRICT = (
    *((plan, describe_reduction("regret", rival)) for plan in (FIVE, TEN) for rival in ("fedlinucb", "fedind")),
    *((plan, describe_count(policy)) for plan in (FIVE, TEN) for policy in EXCHANGES[plan]),
)


def find_unconfirmed(claims: Iterable[Claim]) -> list[str]:
    """Describe the claims of ``STRICT`` that are not confirmed."""
    verdicts = {(claim.plan, claim.text): claim for claim in claims}
    return [
        f"{claim.place}, {claim.text} ({claim.verdict})"
        for claim in map(verdicts.__getitem__, STRICT)
        if claim.verdict != "confirmed"
    ]


def list_totals(results: Results, plan: str, policy: str, quantity: str) -> list[float]:
    """Return a quantity at the end of each run, by seed."""
    rows = results.runs.filter((pl.col("experiment") == plan) & (pl.col("label") == policy)).sort("seed")
    return list(rows[quantity])


def find_placement_rounds(results: Results, plan: str, policy: str, error: float) -> list[int | None]:
    """Return each run's first checkpoint at or below a clustering error, by seed; None if there is none."""
    curves = results.curves.filter((pl.col("experiment") == plan) & (pl.col("label") == policy))
    first = pl.col("round").filter(pl.col("clustering_error") <= error).min()
    return list(curves.group_by("seed").agg(first.alias("first")).sort("seed")["first"])
