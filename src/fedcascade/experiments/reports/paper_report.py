"""The report of the paper's evaluation: its figures and numbers beside ours."""

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from fedcascade.experiments import paper_claims
from fedcascade.experiments.paper_claims import FIVE, NAMES, RATINGS, STRICT, TEN, Claim
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.reports import html, summary
from fedcascade.experiments.reports.html import Html
from fedcascade.experiments.results import Results
from fedcascade.intervals import FEWEST_RUNS, format_mean
from fedcascade.platforms import write_atomically

TITLE = "Federated contextual cascading bandits: the paper's evaluation, run again"
CLAIMS = "claims.json"
HEADER = ("where", "claim", "paper", "ours", "difference", "verdict")
KINDS = {
    "confirmed": "good",
    "smaller than the paper's": "fair",
    "inconclusive": "fair",
    "contradicted": "bad",
    "not judged": "dim",
    "not comparable": "dim",
}
FIGURES = (  # letter, plan, quantity, title
    ("a", FIVE, "regret", "(a) Synthetic, J = 5"),
    ("b", TEN, "regret", "(b) Synthetic, J = 10"),
    ("c", TEN, "clustering_error", "(c) Synthetic, J = 10: users in a wrong cluster"),
    ("d", RATINGS, "regret", "(d) {plan}"),
)


def write_report(results: Results) -> tuple[Path, list[Claim]]:
    """Write figures, ``claims.json`` and ``report.html``, and return the path of the report and the claims."""
    claims = paper_claims.judge_claims(results)
    write_atomically(results.folder / CLAIMS, json.dumps(_describe_claims(claims), indent=1).encode())
    parts = [
        _introduce(results),
        html.render_tally([claim.verdict for claim in claims], KINDS),
        html.render_section("Figure 1", _draw_figures(results)),
        html.render_section("The claims of the text and of Table 2", _explain_verdicts(), _render_claims(claims)),
        html.render_section("Regret", *_render_regret(results)),
        summary.render_provenance(results),
    ]
    return html.write_page(results.folder / "report.html", TITLE, parts), claims


def _describe_claims(claims: Sequence[Claim]) -> dict[str, Any]:
    """Return the claims for JSON; a missing mean or interval is null."""
    rows = [
        {"where": claim.place, "claim": claim.text, "unit": claim.unit, "paper": claim.paper,
         "mean": claim.ours.mean if isfinite(claim.ours.mean) else None,
         "half_interval_95": claim.ours.half_width if isfinite(claim.ours.half_width) else None,
         "runs": claim.ours.runs, "verdict": claim.verdict, "note": claim.note,
         "strict": (claim.plan, claim.text) in STRICT}
        for claim in claims
    ]  # fmt: skip
    return {"plus_minus": summary.PLUS_MINUS, "claims": rows}


def _introduce(results: Results) -> Html:
    plan = results.plans[0]
    likewise = ", as in the paper" if plan.rounds == paper_claims.ROUNDS else ""
    return html.render_paragraph(
        "The policies are those of “Federated Contextual Cascading Bandits with Asynchronous Communication and "
        "Heterogeneous Users” (Yang, Liu, Wang, Xie, Lui, Lian and Chen). "
        f"Every run has {plan.rounds:,} rounds{likewise}; there are {len(plan.seeds)} runs of each policy. "
        f"{describe_ratings(results.plans)} {summary.describe_effort(results)} "
        "The paper gives no constants. Ours were chosen to match its table of communication costs; the decision "
        "records of the documentation explain how.",
        "dim",
    )


def describe_ratings(plans: Sequence[Plan]) -> str:
    """Describe the ratings of Figure 1(d)."""
    plan = next((plan for plan in plans if plan.name == RATINGS), None)
    if plan is None:
        return "Figure 1(d), on ratings, is left out of the quick version."
    place = paper_claims.describe_place(plan)
    if place != "generated ratings":
        return f"Figure 1(d) uses the ratings file {place}; the paper's are from Yelp."
    return (
        "Figure 1(d) uses generated ratings, a matrix of low rank with noise and a long tail, because no file was "
        "given (--ratings FILE); the paper's are from Yelp, so the two are not comparable."
    )


def _draw_figures(results: Results) -> Html:
    plans = {plan.name: plan for plan in results.plans}
    drawings = []
    for letter, name, quantity, title in FIGURES:
        if name in plans:
            environment, heading = plans[name].environments[0].name, title.format(plan=plans[name].title)
            policies = [policy for policy in NAMES if quantity == "regret" or policy not in {"fedlinucb", "fedind"}]
            file = f"figure-1{letter}"
            drawings.append(summary.draw_curves(results, name, environment, quantity, heading, policies, file, NAMES))
    return html.render_gallery(drawings)


def _explain_verdicts() -> Html:
    points, share, within = paper_claims.POINTS * 100, paper_claims.SHARE, paper_claims.WITHIN
    return html.render_paragraph(
        f"{summary.PLUS_MINUS} Gaps are computed run by run: in a run, all policies meet the same users, items and "
        "clicks. A gap is confirmed if its whole interval is above zero and reaches the paper's number, less "
        f"{points:.0f} points or {share:.0%} of it, whichever is more; smaller than the paper's if it does not reach "
        "that; inconclusive if it spans zero; contradicted if it is below. A gap of zero is confirmed with probability "
        f"1/40. A count is confirmed if its whole interval is within {within:.0%} of the paper's, contradicted if none "
        "of it is, and otherwise inconclusive. A run in which some user never reached its cluster is censored, and "
        f"makes the claim inconclusive. Fewer than {FEWEST_RUNS} runs, or shorter ones, are not judged."
    )


def _render_claims(claims: Sequence[Claim]) -> Html:
    rows = []
    for claim in claims:
        note = f"<br><small>{html.escape_text(claim.note)}</small>" if claim.note else ""
        verdict = f'<span class="verdict {KINDS[claim.verdict]}">{html.escape_text(claim.verdict)}</span>{note}'
        rows.append((claim.place, claim.text, *format_values(claim), Html(verdict)))
    return html.render_table(HEADER, rows, numbers=(2, 3, 4))


def _render_regret(results: Results) -> list[Html]:
    policies = [policy._replace(label=NAMES[policy.label]) for policy in summary.summarise_policies(results)]
    return [
        summary.render_totals(
            plan, [policy for policy in policies if policy.experiment == plan.name], f"{plan.title}: "
        )
        for plan in results.plans
    ]


def format_values(claim: Claim) -> tuple[str, str, str]:
    """Format the paper's number, ours with half of its 95% interval, and their difference.

    The paper's number is 'yes' if it gives none. The difference is in percentage points, or in percent of a count.
    """
    unit = "%" if claim.unit == "%" else ""
    ours = format_mean(claim.ours, unit)
    if claim.paper is None:
        return "yes", ours, "–"
    paper, difference = (
        (f"{claim.paper:.0%}", f"{(claim.ours.mean - claim.paper) * 100:+.1f} points")
        if unit
        else (f"{claim.paper:,.1f}", f"{claim.ours.mean / claim.paper - 1:+.1%}")
    )
    return paper, ours, "–" if claim.verdict == "not comparable" else difference
