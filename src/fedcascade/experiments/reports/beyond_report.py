"""The report of what lies beyond the paper: bars and verdicts, the trade-off, and the curves of every setting."""

from collections.abc import Sequence
from pathlib import Path

from fedcascade.experiments import beyond_bars
from fedcascade.experiments.beyond_bars import EARLY, OURS, TRADE_OFFS, Finding
from fedcascade.experiments.environments import RatingsSpec
from fedcascade.experiments.plan import Plan, System
from fedcascade.experiments.reports import html, summary
from fedcascade.experiments.reports.html import Html
from fedcascade.experiments.reports.trade_off import Point, plot_trade_off
from fedcascade.experiments.results import Results
from fedcascade.federation.policies import get_policy

TITLE = "Beyond the paper: what sharing is worth"
KINDS = {"met": "good", "inconclusive": "fair", "not met": "bad", "not judged": "dim"}


def write_report(results: Results) -> tuple[Path, list[Finding]]:
    """Write figures and ``report.html`` into the folder; returns the path of the report, and the findings."""
    findings = beyond_bars.judge_bars(results)
    parts = [
        html.render_paragraph(_introduce(results), "dim"),
        html.render_tally([finding.verdict for finding in findings], KINDS),
        html.render_section("The bars", html.render_paragraph(_explain_verdicts(results)), _render_bars(findings)),
        html.render_section("Regret against exchanges", *_render_trade_offs(results)),
        *(_render_environment(results, environment.name) for environment in results.plans[0].environments),
        summary.render_provenance(results),
    ]
    return summary.write_page(results, TITLE, parts), findings


def _introduce(results: Results) -> str:
    plan = results.plans[0]
    return (
        f"{OURS} is measured against the paper's policy, agents that learn alone, and a server that knows the true "
        "clusters. "
        f"{len(plan.seeds)} runs of {plan.rounds:,} rounds each, seeds {', '.join(map(str, plan.seeds))}. "
        f"{describe_ratings(plan)} {summary.describe_effort(results)}"
    )


def describe_ratings(plan: Plan) -> str:
    """Return a sentence about where the ratings come from."""
    specs = [environment.spec for environment in plan.environments]
    file = next((spec.file for spec in specs if isinstance(spec, RatingsSpec)), None)
    if file is not None:
        return f"The ratings are those of the file {Path(file).name}."
    return "The ratings are generated ones, because no file was given (--ratings FILE)."


def _explain_verdicts(results: Results) -> str:
    shorter = f" The bars are for runs of {beyond_bars.ROUNDS:,} rounds; these are not, so nothing is judged."
    length = "" if beyond_bars.is_full(results) else shorter
    return (
        f"{summary.PLUS_MINUS} A ratio is that of the means over all runs; runs are paired, since in a run all "
        "systems meet the same users, items and luck. A bar is met if the whole interval is no more than the bar, "
        "not met if it is all beyond it, and otherwise the verdict is inconclusive. Where all checkpoints from round "
        f"{EARLY:,} on are judged, the worst one is shown. Where some users are alike, sharing can help, so that being "
        f"better than alone is a bar of its own.{length}"
    )


def _render_bars(findings: Sequence[Finding]) -> Html:
    rows = []
    above = ""  # a setting is named in its first row alone
    for finding in findings:
        setting, *cells = format_finding(finding)
        rows.append(("" if setting == above else setting, *cells, html.render_verdict(finding.verdict, KINDS)))
        above = setting
    return html.render_table(("setting", "what", "bar", "measured", "verdict"), rows, numbers=(2, 3))


def format_finding(finding: Finding) -> tuple[str, str, str, str]:
    """Format the setting, what is measured there, the highest value that meets the bar, and the measured one."""
    setting = f"{finding.environment}; beta {finding.beta:g}"
    bar = f"≤ {finding.bar.most:.2f}" if finding.rival else f"{finding.bar.most:.0%}"
    return setting, _describe_measure(finding), bar, format_measured(finding)


def _describe_measure(finding: Finding) -> str:
    """Return what is measured, and against whom."""
    if not finding.rival:
        return "users in a wrong cluster at the end"
    rivals = finding.bar.against
    best = f", the better of {' and '.join(rivals)}" if len(rivals) > 1 else ""
    when = f" at every checkpoint from {EARLY:,} on" if finding.bar.quantity == "early regret" else ""
    return f"{finding.bar.quantity.removeprefix('early ')}{when}, against {finding.rival}{best}"


def format_measured(finding: Finding) -> str:
    """Format the ratio with half of its 95% interval, or a share of users."""
    measured = finding.measured
    if not finding.rival:
        return f"{measured.mean:.1%}"
    interval = f" ± {measured.half_width:.2f}" if measured.runs > 1 else ""
    checkpoint = "" if finding.worst is None else f" at {finding.worst:,}"
    return f"{measured.mean:.2f}{interval}{checkpoint}"


def _render_trade_offs(results: Results) -> tuple[Html, Html]:
    explanation = (
        f"Lower and further left is better. The line is {OURS} with more and fewer exchanges (alpha_c); "
        "the hollow point is a yardstick, which knows the true clusters."
    )
    drawings = [_draw_trade_off(results, environment, beta) for environment, beta in TRADE_OFFS]
    return html.render_paragraph(explanation), html.render_gallery(drawings, wide=True)


def _draw_trade_off(results: Results, environment: str, beta: float) -> Html:
    plan = results.plans[0]
    summaries = {each.system: each for each in summary.select_summaries(results, plan, environment)}
    systems = beyond_bars.select_trade_off_systems(plan, environment, beta)
    points = [_make_point(system, summaries[system.label], beta) for system in systems]
    title = f"{environment}; beta {beta:g}"
    caption = f"{title}. Expected regret and exchanges at the end, mean of the runs; both logarithmic."
    return summary.save_figure(results, plot_trade_off(points, title), f"trade-off-{environment}", caption)


def _make_point(system: System, totals: summary.SystemSummary, beta: float) -> Point:
    is_ours = system.policy == OURS
    kind = "ours" if is_ours else "yardstick" if get_policy(system.policy).yardstick else "other"
    is_tuned = is_ours and system.label != beyond_bars.make_label(OURS, beta)
    name = f"alpha_c = {system.constants['alpha_c']:g}" if is_tuned else system.policy
    return Point(name, kind, totals.exchanges.mean, totals.regret.mean)


def _render_environment(results: Results, environment: str) -> Html:
    plan = results.plans[0]
    drawings = [
        _draw_curves(results, environment, beta, quantity)
        for quantity in choose_quantities(environment)
        for beta in beyond_bars.list_betas(plan, environment)
    ]
    totals = summary.render_totals(plan, summary.select_summaries(results, plan, environment))
    return html.render_section(environment, totals, html.render_gallery(drawings))


def choose_quantities(environment: str) -> tuple[str, ...]:
    """Return what is drawn for an environment: regret, and the clustering error where a bar judges it."""
    bars = [bar for bar in beyond_bars.BARS if bar.quantity == "clustering error"]
    return ("regret", "clustering_error") if any(environment in bar.environments for bar in bars) else ("regret",)


def _draw_curves(results: Results, environment: str, beta: float, quantity: str) -> Html:
    plan = results.plans[0]
    systems = beyond_bars.select_systems_at_beta(plan, environment, beta)
    return summary.draw_curves(
        results,
        plan.name,
        environment,
        quantity,
        f"{environment}; beta {beta:g}",
        [system.label for system in systems],
        f"{environment}-beta-{beta:g}-{quantity}",
        {system.label: system.policy for system in systems},
        logarithmic=quantity == "regret",
    )
