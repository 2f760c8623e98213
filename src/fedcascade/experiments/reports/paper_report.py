"""The report of the paper's evaluation: its figures and numbers beside ours."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedcascade.experiments import paper_claims
from fedcascade.experiments.environments import RatingsWorld
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
    """Write figures and ``report.html`` into the folder; returns where the report is, and the claims."""
    found = paper_claims.claims(results)
    parts = [
        html.paragraph(_introduction(results), "dim"),
        _tally(found),
        html.section("Figure 1", _figures(results)),
        html.section("The claims of the text", html.paragraph(_rule(results)), _claims(found)),
        html.section("Communication cost", _exchanges(results, found)),
        html.section("Regret", *_regret(results)),
        summary.making(results),
    ]
    return summary.publish(results, TITLE, parts), found


def _introduction(results: Results) -> str:
    rounds = results.plans[0].rounds
    length = (
        f"Every run has {rounds:,} rounds, as in the paper."
        if paper_claims.is_full(results)
        else f"This is the quick version: {rounds:,} rounds a run instead of {paper_claims.ROUNDS:,}. "
        "Directions are judged, sizes are not."
    )
    return (
        "The systems are those of “Federated Contextual Cascading Bandits with Asynchronous Communication and "
        "Heterogeneous Users” (Yang, Liu, Wang, Xie, Lui, Lian and Chen). "
        f"{length} {ratings_note(results)} {summary.overview(results)}"
    )


def ratings_note(results: Results) -> str:
    """Where the ratings of Figure 1(d) come from."""
    world = next(plan for plan in results.plans if plan.name == RATINGS).environments[0].world
    if isinstance(world, RatingsWorld) and world.file is not None:
        return f"Figure 1(d) uses the ratings file {Path(world.file).name}; the paper's are from Yelp."
    return (
        "Figure 1(d) uses generated ratings, a matrix of low rank with noise and a long tail, because no file was "
        "given (--ratings FILE); the paper's are from Yelp."
    )


def _tally(found: Sequence[Claim]) -> Html:
    counts = Counter(str(claim.verdict) for claim in found)
    return html.tally((counts[verdict], verdict, kind) for verdict, kind in KINDS.items())


def _figures(results: Results) -> Html:
    drawn = []
    for letter, plan, quantity, title in FIGURES:
        environment = next(known for known in results.plans if known.name == plan).environments[0].name
        shown = [name for name in NAMES if quantity == "regret" or name not in {"fedlinucb", "fedind"}]
        drawn.append(summary.draw(results, plan, environment, quantity, title, shown, f"figure-1{letter}", NAMES))
    return html.gallery(drawn)


def _rule(results: Results) -> str:
    sizes = (
        f"A percentage must be no more than {paper_claims.WITHIN * 100:.0f} points short of the paper's, a count "
        f"within {paper_claims.WITHIN:.0%} of it. "
        if paper_claims.is_full(results)
        else "In this quick version only the direction of a gap is judged; counts are shown, but not judged. "
    )
    return (
        "A gap holds if its mean is above zero beyond the noise of the runs (the 95% interval of the mean). "
        f"{sizes}Where the mean is on the right side and the interval only allows for the rest, it holds within noise. "
        "Gaps are taken run by run: in a run, all systems meet the same users, items and luck."
    )


def _claims(found: Sequence[Claim]) -> Html:
    rows = [
        (claim.place, claim.text, paper_says(claim), ours(claim), _runs(claim), difference(claim), verdict(claim))
        for claim in found
        if claim.unit != "exchanges"
    ]
    header = ("where", "claim", "paper", "ours", "runs", "difference", "verdict")
    return html.table(header, rows, numbers=(2, 3, 4, 5))


def _exchanges(results: Results, found: Sequence[Claim]) -> Html:
    rows = [
        (claim.place, claim.text.partition(":")[0], paper_says(claim), ours(claim), difference(claim), verdict(claim))
        for claim in found
        if claim.unit == "exchanges"
    ]
    caption = (
        f"Exchanges with the server. Paper: after {paper_claims.ROUNDS:,} rounds. "
        f"Ours: after {results.plans[0].rounds:,}, mean ± standard deviation."
    )
    return html.table(
        ("where", "system", "paper", "ours", "difference", "verdict"), rows, numbers=(2, 3, 4), caption=caption
    )


def _regret(results: Results) -> list[Html]:
    lines = [line._replace(system=NAMES[line.system]) for line in summary.summary(results)]
    return [
        summary.totals(
            [line for line in lines if line.experiment == plan.name],
            f"{plan.title}: {len(plan.seeds)} runs of {plan.rounds:,} rounds, mean ± standard deviation",
        )
        for plan in results.plans
        if plan.name != AUXILIARY or len(plan.seeds) > len(results.plans[1].seeds)
    ]


def paper_says(claim: Claim) -> str:
    """The paper's figure; 'yes' where it says so without one."""
    if claim.paper is None:
        return "yes"
    return f"{claim.paper:.0%}" if claim.unit == "%" else f"{claim.paper:,.1f}"


def ours(claim: Claim) -> str:
    """Our figure with its standard deviation."""
    return summary.plus_minus(claim.ours, "%" if claim.unit == "%" else "")


def _runs(claim: Claim) -> str:
    return str(claim.ours.runs)


def difference(claim: Claim) -> str:
    """How far ours is from the paper's: points of a percentage, or percent of a count."""
    if claim.paper is None:
        return "–"
    if claim.unit == "%":
        return f"{(claim.ours.mean - claim.paper) * 100:+.1f} points"
    return f"{claim.ours.mean / claim.paper - 1:+.1%}"


def verdict(claim: Claim) -> Html:
    """The verdict in its colour."""
    return html.verdict(claim.verdict, KINDS[claim.verdict])
