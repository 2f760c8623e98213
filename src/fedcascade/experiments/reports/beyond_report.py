"""The report of what lies beyond the paper: bars and verdicts, the trade-off, and the curves of every setting."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedcascade.experiments import beyond_bars
from fedcascade.experiments.beyond_bars import EARLY, OURS, TRADE_OFFS, Finding
from fedcascade.experiments.environments import RatingsWorld
from fedcascade.experiments.plan import Plan, System
from fedcascade.experiments.reports import figures, html, summary
from fedcascade.experiments.reports.html import Html
from fedcascade.experiments.reports.trade_off import Point, trade_off
from fedcascade.experiments.results import Results
from fedcascade.federation.policies import get_policy

TITLE = "Beyond the paper: what sharing is worth"
KINDS = {"met": "good", "met within noise": "fair", "not met": "bad", "not judged": "dim"}


def write_report(results: Results) -> tuple[Path, list[Finding]]:
    """Write figures and ``report.html`` into the folder; returns where the report is, and the findings."""
    found = beyond_bars.findings(results)
    counts = Counter(str(one.verdict) for one in found)
    parts = [
        html.paragraph(_introduction(results), "dim"),
        html.tally((counts[verdict], verdict, kind) for verdict, kind in KINDS.items()),
        html.section("The bars", html.paragraph(_rule(results)), _bars(found)),
        html.section("Regret against exchanges", html.paragraph(_trade()), _trade_offs(results)),
        *(_of_environment(results, place.name) for place in results.plans[0].environments),
        summary.making(results),
    ]
    return summary.publish(results, TITLE, parts), found


def _introduction(results: Results) -> str:
    plan = results.plans[0]
    return (
        f"In {OURS}, for deployment with a small beta, what others know counts by the probability that they are alike. "
        "It is measured against the paper's system, "
        "agents that never talk, and a server that is told the true clusters. "
        f"{len(plan.seeds)} runs of {plan.rounds:,} rounds each, seeds {', '.join(map(str, plan.seeds))}. "
        f"{ratings_note(plan)} {summary.overview(results)}"
    )


def ratings_note(plan: Plan) -> str:
    """Where the ratings come from."""
    given = [place.world.file for place in plan.environments if isinstance(place.world, RatingsWorld)]
    if given and given[0] is not None:
        return f"The ratings are those of the file {Path(given[0]).name}."
    return "The ratings are generated ones, because no file was given (--ratings FILE)."


def _rule(results: Results) -> str:
    length = (
        ""
        if beyond_bars.is_full(results)
        else f" The bars are for runs of {beyond_bars.ROUNDS:,} rounds; these are not, so nothing is judged."
    )
    return (
        "A ratio is that of the means over all runs, with its 95% interval; runs are paired, since in a run all "
        "systems meet the same users, items and luck. A bar is met if the ratio and its interval are no more than the "
        "bar, and met within noise if the ratio is but the interval goes beyond. Where all checkpoints from round "
        f"{EARLY:,} on are judged, the worst one is shown. Where some users are alike, sharing can help, so that being "
        f"better than alone is a bar of its own.{length}"
    )


def _bars(found: Sequence[Finding]) -> Html:
    places = [setting(one) for one in found]
    rows = [
        (
            "" if number and places[number - 1] == place else place,
            what(one),
            bar(one),
            measured(one),
            html.verdict(one.verdict, KINDS[one.verdict]),
        )
        for number, (place, one) in enumerate(zip(places, found, strict=True))
    ]
    return html.table(("setting", "what", "bar", "measured", "verdict"), rows, numbers=(2, 3))


def setting(found: Finding) -> str:
    """Environment and beta."""
    return f"{found.environment}; beta {found.beta:g}"


def what(found: Finding) -> str:
    """What is measured, and against whom."""
    if not found.other:
        return "users in a wrong cluster at the end"
    others = found.bar.against
    best = f", the better of {' and '.join(others)}" if len(others) > 1 else ""
    when = f" at every checkpoint from {EARLY:,} on" if found.bar.quantity == "early regret" else ""
    return f"{found.bar.quantity.removeprefix('early ')}{when}, against {found.other}{best}"


def bar(found: Finding) -> str:
    """The most that is allowed."""
    return f"≤ {found.bar.most:.2f}" if found.other else f"{found.bar.most:.0%}"


def measured(found: Finding) -> str:
    """The ratio and half of its 95% interval, or a share of users."""
    if not found.other:
        return f"{found.measured.mean:.1%}"
    interval = f" ± {found.measured.half:.2f}" if found.measured.runs > 1 else ""
    at = "" if found.worst is None else f" at {found.worst:,}"
    return f"{found.measured.mean:.2f}{interval}{at}"


def _trade() -> str:
    return (
        f"Lower and further left is better. The line is {OURS} with more and with less talk (alpha_c); "
        "the hollow point is a yardstick, which is told what the others have to find out."
    )


def _trade_offs(results: Results) -> Html:
    return html.gallery([_trade_off(results, environment, beta) for environment, beta in TRADE_OFFS], wide=True)


def _trade_off(results: Results, environment: str, beta: float) -> Html:
    lines = {line.system: line for line in summary.summary(results) if line.environment == environment}
    points = [
        _point(system, lines[system.label], beta)
        for system in beyond_bars.compared(results.plans[0], environment, beta)
    ]
    title = f"{environment}; beta {beta:g}"
    svg = figures.save(
        trade_off(points, title), results.folder / "figures", summary.file_name(f"trade-off-{environment}")
    )
    return html.drawing(svg, f"{title}. Expected regret and exchanges at the end, mean of the runs; both logarithmic.")


def _point(system: System, line: summary.Line, beta: float) -> Point:
    ours = system.policy == OURS
    kind = "ours" if ours else "yardstick" if get_policy(system.policy).yardstick else "other"
    tuned = ours and system.label != beyond_bars.label(OURS, beta)
    name = f"alpha_c = {system.constants['alpha_c']:g}" if tuned else system.policy
    return Point(name, kind, line.exchanges.mean, line.regret.mean)


def _of_environment(results: Results, environment: str) -> Html:
    plan = results.plans[0]
    lines = [line for line in summary.summary(results) if line.environment == environment]
    drawn = [
        _curves(results, environment, beta, quantity)
        for quantity in quantities(environment)
        for beta in beyond_bars.betas(plan, environment)
    ]
    runs = f"{len(plan.seeds)} runs of {plan.rounds:,} rounds, mean ± standard deviation"
    return html.section(environment, summary.totals(lines, runs), html.gallery(drawn))


def quantities(environment: str) -> tuple[str, ...]:
    """How users are placed is drawn where that is judged."""
    judged = any(environment in one.environments for one in beyond_bars.BARS if one.quantity == "clustering error")
    return ("regret", "clustering_error") if judged else ("regret",)


def _curves(results: Results, environment: str, beta: float, quantity: str) -> Html:
    plan = results.plans[0]
    systems = beyond_bars.alike(plan, environment, beta)
    return summary.draw(
        results,
        plan.name,
        environment,
        quantity,
        f"{environment}; beta {beta:g}",
        [system.label for system in systems],
        summary.file_name(f"{environment}-beta-{beta:g}-{quantity}"),
        {system.label: system.policy for system in systems},
        logarithmic=quantity == "regret",
    )
