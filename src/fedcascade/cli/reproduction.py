"""What ``fedcascade reproduce`` prints: one sentence, two tables and a chart; the report has the details."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

import polars as pl
from rich.table import Table

from fedcascade.cli.terminal import make_table
from fedcascade.experiments import paper_claims as paper
from fedcascade.experiments.paper_claims import FIVE, NAMES, PAPER_POLICY, TEN, Claim, describe_reduction, list_totals
from fedcascade.experiments.reports.paper_report import format_values
from fedcascade.experiments.results import Results

CHART_WIDTH, CHART_HEIGHT = 30, 8
MARKS = {PAPER_POLICY: "#", "force-comm": "+", "no-auxiliary": "-", "fedlinucb": "o", "fedind": "x"}


def describe_results(results: Results, claims: Sequence[Claim]) -> Iterator[Table | str]:
    """Yield the parts of the output, in their order."""
    found = {(claim.plan, claim.text): claim for claim in claims}
    alone, shared = (found[TEN, describe_reduction("regret", rival)] for rival in ("fedind", "fedlinucb"))
    plan = next(plan for plan in results.plans if plan.name == TEN)
    yield (
        f"With 10 clusters, {NAMES[PAPER_POLICY]} has {alone.ours.mean:.0%} less regret than agents that learn alone "
        f"(the paper: {alone.paper:.0%}), and {shared.ours.mean:.0%} less than agents that share with all "
        f"({shared.paper:.0%}). Means of {len(plan.seeds)} runs of {plan.rounds:,} rounds for each policy."
    )
    yield _make_totals_table(results, found)
    yield _make_headline_table(found)
    yield _draw_regret(results)
    beta = plan.policies[0].constants["beta"]
    yield (
        f"All five explore alike, with beta {beta}, which pays in a million rounds. In 'fedcascade run' each "
        "policy has its own beta, and far fewer rounds: there the paper's policy comes last."
    )


def _make_totals_table(results: Results, found: Mapping[tuple[str, str], Claim]) -> Table:
    """Make a table of regret, and of exchanges beside the paper's."""
    rows = []
    for policy, name in NAMES.items():
        regrets, exchanges = (
            [f"{mean(list_totals(results, plan, policy, quantity)):,.0f}" for plan in (FIVE, TEN)]
            for quantity in ("regret", "exchanges")
        )
        claims = [found.get((plan, paper.describe_count(policy))) for plan in (FIVE, TEN)]
        pairs = [
            (f"{ours} / {claim.paper:,.0f}", format_values(claim)[2]) if claim else (f"{ours} / -", "-")
            for ours, claim in zip(exchanges, claims, strict=True)
        ]
        rows.append((name, *regrets, *pairs[0], *pairs[1]))
    columns = ("policy", "regret\nJ = 5", "\nJ = 10", "exchanges J = 5\nours / paper's", "\ndiffers",
               "exchanges J = 10\nours / paper's", "\ndiffers")  # fmt: skip
    return make_table("", columns, rows, columns[1:])


def _make_headline_table(found: Mapping[tuple[str, str], Claim]) -> Table:
    """Make a table of the four percentages of the paper's text, with verdicts if the runs allow any."""
    rivals = [rival for plan, quantity, rival, _ in paper.BELOW if (plan, quantity) == (TEN, "regret")]
    claims = [found[TEN, describe_reduction("regret", rival)] for rival in rivals]
    is_judged = any(claim.verdict != "not judged" for claim in claims)
    rows = [
        (NAMES[rival], *format_values(claim)[:2], *([claim.verdict] if is_judged else []))
        for rival, claim in zip(rivals, claims, strict=True)
    ]
    title = f"{NAMES[PAPER_POLICY]} at J = 10\nhas less regret than"
    columns = (title, "\npaper", "\nours", *(["\nverdict"] if is_judged else []))
    return make_table("", columns, rows, columns[1:3])


def _draw_regret(results: Results) -> str:
    """Draw mean regret over rounds as text: a mark for each policy, and its name where its curve ends."""
    means = results.curves.filter(pl.col("experiment") == TEN).group_by("label", "round").agg(pl.col("regret").mean())
    curves = {policy: means.filter(pl.col("label") == policy).sort("round")["regret"] for policy in reversed(NAMES)}
    top = max(float(curve[-1]) for curve in curves.values()) or 1.0
    canvas = [[" "] * CHART_WIDTH for _ in range(CHART_HEIGHT)]
    names: list[list[str]] = [[] for _ in canvas]
    for policy, curve in curves.items():
        row = 0
        for column in range(CHART_WIDTH):
            value = float(curve[column * (len(curve) - 1) // (CHART_WIDTH - 1)]) if column else 0.0
            row = CHART_HEIGHT - 1 - min(int(value / top * CHART_HEIGHT), CHART_HEIGHT - 1)
            canvas[row][column] = MARKS[policy]
        names[row].insert(0, f"{MARKS[policy]} {NAMES[policy]}")
    width, rounds = max(len(f"{top:,.0f}"), len("regret")), max(plan.rounds for plan in results.plans)
    sides = ["regret", f"{top:,.0f}", *[""] * (CHART_HEIGHT - 2), "0", ""]
    drawn = [f"|{''.join(row)} {', '.join(ends)}" for row, ends in zip(canvas, names, strict=True)]
    drawn = ["", *drawn, f"+{'-' * CHART_WIDTH} {rounds:,} rounds"]
    return "\n".join(f"{side:>{width}} {line}".rstrip() for side, line in zip(sides, drawn, strict=True))
