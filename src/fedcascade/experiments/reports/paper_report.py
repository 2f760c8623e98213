"""The report of the paper's evaluation: its figures and numbers beside ours."""

from collections.abc import Sequence
from pathlib import Path

from fedcascade.experiments import paper_claims
from fedcascade.experiments.environments import RatingsSpec
from fedcascade.experiments.paper_claims import AUXILIARY, FIVE, NAMES, RATINGS, TEN, Claim
from fedcascade.experiments.reports import html, summary
from fedcascade.experiments.reports.html import Html
from fedcascade.experiments.results import Results

TITLE = "Federated contextual cascading bandits: the paper's evaluation, run again"
KINDS = {"holds": "good", "holds within noise": "fair", "does not hold here": "bad", "not judged": "dim"}
FIGURES = (  # letter, plan, quantity, title
    ("a", FIVE, "regret", "(a) Synthetic, J = 5"),
    ("b", TEN, "regret", "(b) Synthetic, J = 10"),
    ("c", TEN, "clustering_error", "(c) Synthetic, J = 10: users in a wrong cluster"),
    ("d", RATINGS, "regret", "(d) Ratings, J = 10"),
)


def write_report(results: Results) -> tuple[Path, list[Claim]]:
    """Write figures and ``report.html`` into the folder; returns the path of the report, and the claims."""
    claims = paper_claims.judge_claims(results)
    parts = [
        _introduce(results),
        html.render_tally([claim.verdict for claim in claims], KINDS),
        html.render_section("Figure 1", _draw_figures(results)),
        html.render_section("The claims of the text", _explain_verdicts(results), _render_claims(claims)),
        html.render_section("Communication cost", _render_exchanges(results, claims)),
        html.render_section("Regret", *_render_regret(results)),
        summary.render_provenance(results),
    ]
    return summary.write_page(results, TITLE, parts), claims


def _introduce(results: Results) -> Html:
    rounds = results.plans[0].rounds
    length = f"Every run has {rounds:,} rounds, as in the paper."
    if not paper_claims.is_full(results):
        quick = f"This is the quick version: {rounds:,} rounds a run instead of {paper_claims.ROUNDS:,}."
        length = f"{quick} Directions are judged, sizes are not."
    return html.render_paragraph(
        "The systems are those of “Federated Contextual Cascading Bandits with Asynchronous Communication and "
        "Heterogeneous Users” (Yang, Liu, Wang, Xie, Lui, Lian and Chen). "
        f"{length} {describe_ratings(results)} {summary.describe_effort(results)}",
        "dim",
    )


def describe_ratings(results: Results) -> str:
    """Return a sentence about where the ratings of Figure 1(d) come from."""
    spec = next(plan for plan in results.plans if plan.name == RATINGS).environments[0].spec
    if isinstance(spec, RatingsSpec) and spec.file is not None:
        return f"Figure 1(d) uses the ratings file {Path(spec.file).name}; the paper's are from Yelp."
    return (
        "Figure 1(d) uses generated ratings, a matrix of low rank with noise and a long tail, because no file was "
        "given (--ratings FILE); the paper's are from Yelp."
    )


def _draw_figures(results: Results) -> Html:
    drawings = []
    for letter, name, quantity, title in FIGURES:
        plan = next(plan for plan in results.plans if plan.name == name)
        environment = plan.environments[0].name
        systems = [system for system in NAMES if quantity == "regret" or system not in {"fedlinucb", "fedind"}]
        file = f"figure-1{letter}"
        drawings.append(summary.draw_curves(results, name, environment, quantity, title, systems, file, NAMES))
    return html.render_gallery(drawings)


def _explain_verdicts(results: Results) -> Html:
    sizes = (
        f"A percentage must be no more than {paper_claims.WITHIN * 100:.0f} points short of the paper's, a count "
        f"within {paper_claims.WITHIN:.0%} of it. "
        if paper_claims.is_full(results)
        else "In this quick version only the direction of a gap is judged; counts are shown, but not judged. "
    )
    return html.render_paragraph(
        "A gap holds if its mean is above zero beyond the noise of the runs (the 95% interval of the mean). "
        f"{sizes}Where the mean is on the right side and the interval only allows for the rest, it holds within noise. "
        "Gaps are taken run by run: in a run, all systems meet the same users, items and luck."
    )


def _render_claims(claims: Sequence[Claim]) -> Html:
    rows = []
    for claim in claims:
        if claim.unit != "exchanges":
            paper, ours, difference = format_values(claim)
            verdict = html.render_verdict(claim.verdict, KINDS)
            rows.append((claim.place, claim.text, paper, ours, str(claim.ours.runs), difference, verdict))
    header = ("where", "claim", "paper", "ours", "runs", "difference", "verdict")
    return html.render_table(header, rows, numbers=(2, 3, 4, 5))


def _render_exchanges(results: Results, claims: Sequence[Claim]) -> Html:
    rows = [
        (claim.place, claim.text.partition(":")[0], *format_values(claim), html.render_verdict(claim.verdict, KINDS))
        for claim in claims
        if claim.unit == "exchanges"
    ]
    caption = (
        f"Exchanges with the server. Paper: after {paper_claims.ROUNDS:,} rounds. "
        f"Ours: after {results.plans[0].rounds:,}, mean ± standard deviation."
    )
    header = ("where", "system", "paper", "ours", "difference", "verdict")
    return html.render_table(header, rows, numbers=(2, 3, 4), caption=caption)


def _render_regret(results: Results) -> list[Html]:
    systems = [system._replace(system=NAMES[system.system]) for system in summary.summarise_systems(results)]
    return [
        summary.render_totals(plan, [system for system in systems if system.experiment == plan.name], f"{plan.title}: ")
        for plan in results.plans
        if plan.name != AUXILIARY or len(plan.seeds) > len(results.plans[1].seeds)
    ]


def format_values(claim: Claim) -> tuple[str, str, str]:
    """Format the paper's number, ours with its standard deviation, and how far ours is from the paper's.

    The paper's is 'yes' where it makes the claim without a number. The difference is in points of a percentage, or in
    percent of a count.
    """
    unit = "%" if claim.unit == "%" else ""
    ours = summary.format_mean(claim.ours, unit)
    if claim.paper is None:
        return "yes", ours, "–"
    if unit:
        return f"{claim.paper:.0%}", ours, f"{(claim.ours.mean - claim.paper) * 100:+.1f} points"
    return f"{claim.paper:,.1f}", ours, f"{claim.ours.mean / claim.paper - 1:+.1%}"
