"""The report of any results folder: tables, figures and provenance."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl
from matplotlib.figure import Figure

from fedcascade.experiments.comparisons import HEADER, Interval, compare_policies, estimate_mean
from fedcascade.experiments.plan import Plan, select_policies
from fedcascade.experiments.reports import figures, html
from fedcascade.experiments.reports.figures import QUANTITIES
from fedcascade.experiments.reports.html import Html
from fedcascade.experiments.results import Results
from fedcascade.systems import write_atomically

PLUS_MINUS = "± is half of the 95% interval of a mean, by Student's t over the runs."


class PolicySummary(NamedTuple):
    """The results of one policy in one environment, over its runs."""

    experiment: str
    environment: str
    label: str
    regret: Interval
    exchanges: Interval
    clustering_error: Interval


def summarise_policies(results: Results) -> list[PolicySummary]:
    """Summarise every policy in every environment, in the order of the plans."""
    groups = results.runs.group_by("experiment", "environment", "label", maintain_order=True)
    return [
        PolicySummary(
            str(experiment),
            str(environment),
            str(label),
            *(estimate_mean(rows[name].to_list()) for name in QUANTITIES),
        )
        for (experiment, environment, label), rows in groups
    ]


def write_report(results: Results) -> Path:
    """Write figures and ``report.html`` into a results folder, and return the path of the report."""
    title = ", ".join(plan.title for plan in results.plans)
    played = set(results.runs.select("experiment", "environment").iter_rows())
    parts = [
        _render_environment(results, plan, environment.name)
        for plan in results.plans
        for environment in plan.environments
        if (plan.name, environment.name) in played
    ]
    introduction = html.render_paragraph(f"{describe_effort(results)} {PLUS_MINUS}", "dim")
    shares = _render_comparisons(results)
    return write_page(results, title, [introduction, *shares, *parts, render_provenance(results)])


def _render_comparisons(results: Results) -> list[Html]:
    """Render the table of comparisons, if a plan has any."""
    lines = [comparison.format() for comparison in compare_policies(results)]
    caption = "Ratios of two means; runs are compared seed by seed."
    table = html.render_table(HEADER, lines, numbers=(3, 4), caption=caption)
    return [html.render_section("Comparisons", table)] if lines else []


def write_page(results: Results, title: str, parts: Sequence[Html]) -> Path:
    """Write a page as ``report.html`` of the results folder, and return its path."""
    path = results.folder / "report.html"
    write_atomically(path, html.render_page(title, *parts).encode())
    return path


def describe_effort(results: Results) -> str:
    """Describe the number of runs and rounds and their time."""
    rounds, seconds = results.manifest["rounds"], results.manifest["core_seconds"]
    is_whole = results.planned is None
    words = "runs" if is_whole else f"of {results.planned:,} planned runs"
    return (
        f"{results.manifest['runs']:,} {words}, {rounds:,} rounds in {seconds / 60:.1f} minutes of one core "
        f"({rounds / seconds:,.0f} rounds/s), by fedcascade {results.manifest['fedcascade']}."
    )


def _render_environment(results: Results, plan: Plan, environment: str) -> Html:
    policies = [policy.label for policy in select_policies(plan.policies, environment)]
    drawings = [
        draw_curves(results, plan.name, environment, quantity, f"{environment}: {words}", policies)
        for quantity, words in QUANTITIES.items()
    ]
    totals = render_totals(plan, select_summaries(results, plan, environment))
    return html.render_section(f"{plan.title}: {environment}", totals, html.render_gallery(drawings))


def select_summaries(results: Results, plan: Plan, environment: str) -> list[PolicySummary]:
    """Return the summaries of the policies in one environment of a plan."""
    place = (plan.name, environment)
    return [each for each in summarise_policies(results) if (each.experiment, each.environment) == place]


def render_totals(plan: Plan, summaries: Sequence[PolicySummary], heading: str = "") -> Html:
    """Render a table of regret, exchanges and clustering error; its caption names the runs."""
    counts = sorted({summary.regret.runs for summary in summaries}) or [0]
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    caption = f"{heading}{runs} runs of {plan.describe_rounds()}, mean ± half of its 95% interval"
    rows = [(summary.label, *format_totals(summary)) for summary in summaries]
    header = ("policy", "expected regret", "exchanges", "clustering error at the end")
    return html.render_table(header, rows, numbers=(1, 2, 3), caption=caption)


def format_totals(summary: PolicySummary) -> tuple[str, str, str]:
    """Format regret, exchanges and clustering error."""
    return format_mean(summary.regret), format_mean(summary.exchanges), format_mean(summary.clustering_error, "%")


def draw_curves(
    results: Results,
    experiment: str,
    environment: str,
    quantity: str,
    title: str,
    policies: Sequence[str],
    file: str = "",
    names: Mapping[str, str] = {},
) -> Html:
    """Draw and save one figure; ``names`` maps labels to displayed names."""
    is_wanted = (pl.col("experiment") == experiment) & (pl.col("environment") == environment)
    curves = results.curves.filter(is_wanted).with_columns(pl.col("label").replace(names))
    shown = [names.get(policy, policy) for policy in policies]
    figure = figures.plot_curves(curves, quantity, title, shown)
    caption = f"{title}. {QUANTITIES[quantity].capitalize()}, mean of the runs; the band spans all runs."
    return save_figure(results, figure, file or f"{experiment}-{environment}-{quantity}", caption)


def save_figure(results: Results, figure: Figure, words: str, caption: str) -> Html:
    """Save a figure next to the report, under a name made of ``words``, and render it with a caption."""
    svg = figures.save_figure(figure, results.folder / "figures", make_file_name(words))
    return html.render_figure(svg, caption)


def make_file_name(words: str) -> str:
    """Turn words into the name of a file.

    >>> make_file_name("lifted, J = 5")
    'lifted--j---5'
    """
    return "".join(letter if letter.isalnum() else "-" for letter in words.lower())


def render_provenance(results: Results) -> Html:
    """Render constants, seeds, versions, machine and time."""
    manifest = results.manifest
    machine, files = manifest["machine"], manifest["files"]
    facts = [
        ("fedcascade", manifest["fedcascade"]),
        ("libraries", ", ".join(f"{name} {version}" for name, version in manifest["libraries"].items())),
        ("Python", machine["python"]),
        ("machine", f"{machine['processor']}, {machine['cores']} cores, {machine['system']}"),
        ("time", f"{manifest['seconds']:.0f} s for the last command, {manifest['core_seconds']:.0f} s of one core"),
        ("data", Html(", ".join(f"<code>{name}</code> sha256 {digest[:16]}…" for name, digest in files.items()))),
    ]
    if results.planned is not None:
        facts = facts[:-2]  # an unfinished folder has no tables
    plans = [_render_plan(plan) for plan in results.plans]
    return html.render_section("Provenance", html.render_table(("", ""), facts), *plans)


def _render_plan(plan: Plan) -> Html:
    environments = [
        f"{environment.name}: {environment.spec.kind}, {_format_settings(environment.spec.options)}"
        for environment in plan.environments
    ]
    length = plan.describe_rounds() if plan.per_user else f"T = {plan.rounds:,}"
    head = (
        f"{plan.name}: {length}, K = {plan.list_length}, "
        f"seeds {', '.join(map(str, plan.seeds))}; {'; '.join(environments)}"
    )
    rows = [(policy.label, ", ".join(policy.on), _render_settings(policy.constants)) for policy in plan.policies]
    return html.render_table(("policy", "environments", "constants"), rows, caption=head)


def _render_settings(values: object) -> Html:
    return Html(f"<code>{html.escape_text(_format_settings(values))}</code>")


def _format_settings(values: object) -> str:
    plain = msgspec.to_builtins(values)
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in plain.items() if value is not None)


def format_mean(value: Interval, unit: str = "") -> str:
    """Format a mean ± half of its 95% interval; a single run has no interval.

    >>> format_mean(estimate_mean([1000.0, 1100.0, 1200.0]))
    '1,100 ± 248'
    >>> format_mean(estimate_mean([0.25]), "%")
    '25.0%'
    """
    if not value.runs:
        return "–"
    scale, digits = (100, 1) if unit == "%" else (1, 0 if abs(value.mean) >= 1000 else 1)
    tail = f" ± {value.half_width * scale:,.{digits}f}" if value.runs > 1 else ""
    return f"{value.mean * scale:,.{digits}f}{tail}{unit}"
