"""The report of any results folder: tables, figures and provenance."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl
from matplotlib.figure import Figure

from fedcascade.experiments.comparisons import HEADER, compare_policies
from fedcascade.experiments.plan import Plan, PlannedPolicy, Value, select_policies
from fedcascade.experiments.reports import figures, html
from fedcascade.experiments.reports.figures import MOST_CURVES, QUANTITIES, RunCurves
from fedcascade.experiments.reports.html import Html
from fedcascade.experiments.results import Results
from fedcascade.intervals import FEWEST_RUNS, Interval, estimate_mean, format_mean

TOTALS = (*QUANTITIES, "reward", "coverage", "gini")
PLUS_MINUS = "± is half of the 95% interval of a mean, by Student's t over the runs."


class PolicySummary(NamedTuple):
    """The results of one policy in one environment, over its runs."""

    experiment: str
    environment: str
    label: str
    regret: Interval
    exchanges: Interval
    clustering_error: Interval
    reward: Interval
    coverage: Interval | None = None  # in environments with a catalogue
    gini: Interval | None = None


def summarise_policies(results: Results) -> list[PolicySummary]:
    """Summarise every policy in every environment, in the order of the plans."""
    groups = results.runs.group_by("experiment", "environment", "label", maintain_order=True)
    summaries = []
    for (plan, place, label), rows in groups:
        names = [name for name in TOTALS if name in rows.columns and rows[name].null_count() == 0]
        means = {name: estimate_mean(rows[name].to_list()) for name in names}
        summaries.append(PolicySummary(str(plan), str(place), str(label), **means))
    return summaries


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
    sections = [introduction, *shares, *parts, render_provenance(results)]
    return html.write_page(results.folder / "report.html", title, sections)


def _render_comparisons(results: Results) -> list[Html]:
    lines = [comparison.format() for comparison in compare_policies(results)]
    caption = "Ratios of two means; runs are compared seed by seed."
    table = html.render_table(HEADER, lines, numbers=(3, 4), caption=caption)
    return [html.render_section("Comparisons", table)] if lines else []


def describe_effort(results: Results) -> str:
    """Describe the number of runs and rounds and their time."""
    rounds, seconds = results.manifest["rounds"], results.manifest["core_seconds"]
    words = "runs" if results.planned is None else f"of {results.planned:,} planned runs"
    time = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} seconds"
    return (
        f"{results.manifest['runs']:,} {words}, {rounds:,} rounds in {time} of processor time "
        f"({rounds / seconds:,.0f} rounds/s), by fedcascade {results.manifest['fedcascade']}."
    )


def _render_environment(results: Results, plan: Plan, environment: str) -> Html:
    here = (plan.name, environment)
    found = (each for each in summarise_policies(results) if (each.experiment, each.environment) == here)
    summaries = {each.label: each for each in found}
    policies = [each for each in select_policies(plan.policies, environment) if each.label in summaries]
    drawings, drawn = [], []
    for members in _group_policies(policies):
        best, values = min(members, key=lambda each: summaries[each.label].regret.mean), find_grid(members)
        drawn += [each.label for each in members] if values is None else [best.label]
        if values is not None:
            drawings += [_draw_grid(results, summaries, each, best, values, members) for each in QUANTITIES]
    parts = [drawn[first : first + MOST_CURVES] for first in range(0, len(drawn), MOST_CURVES)]
    for quantity, words in QUANTITIES.items():
        for number, part in enumerate(parts, start=1):
            which = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
            title, file = f"{environment}: {words}{which}", f"{plan.name}-{environment}-{quantity}{which}"
            drawings.append(draw_curves(results, plan.name, environment, quantity, title, part, file))
    totals = render_totals(plan, list(summaries.values()))
    return html.render_section(f"{plan.title}: {environment}", totals, html.render_gallery(drawings))


def _group_policies(policies: Iterable[PlannedPolicy]) -> list[list[PlannedPolicy]]:
    """Group the points of each grid of two constants; any other policy is a group of its own."""
    groups: dict[object, list[PlannedPolicy]] = {}
    for each in policies:
        name = each.label.rpartition(f" {each.swept[0]}=")[0] if len(each.swept) == 2 else each.label
        groups.setdefault((name, each.swept), []).append(each)
    return list(groups.values())


def find_grid(policies: Sequence[PlannedPolicy]) -> dict[str, list[Value]] | None:
    """Return the values of the two constants that a group of policies sweeps, more values first; None for others."""
    values = {name: list(dict.fromkeys(each.constants[name] for each in policies)) for name in policies[0].swept}
    is_grid = len(values) == 2 and all(len(each) > 1 for each in values.values())
    return dict(sorted(values.items(), key=lambda item: -len(item[1]))) if is_grid else None


def _draw_grid(results: Results, summaries: Mapping[str, PolicySummary], quantity: str, best: PlannedPolicy,
               values: Mapping[str, list[Value]], policies: Sequence[PlannedPolicy]) -> Html:  # fmt: skip
    """Draw and save a heat map of a quantity over two constants; ``best`` has the least regret."""
    across, down = values
    cells = {each.label: (values[down].index(each.constants[down]), values[across].index(each.constants[across]))
             for each in policies}  # fmt: skip
    means = np.full((len(values[down]), len(values[across])), np.nan)
    for label, cell in cells.items():
        means[cell] = getattr(summaries[label], quantity).mean
    here, name = summaries[best.label], best.label.rpartition(f" {best.swept[0]}=")[0]
    title = f"{here.environment}: {name}, {QUANTITIES[quantity]}"
    figure = figures.plot_grid(means, values, quantity, title, cells[best.label])
    caption = f"{title} by {across} and {down}, mean of the runs; the frame marks the least regret: {best.label}."
    return save_figure(results, figure, f"{here.experiment}-{here.environment}-{name}-grid-{quantity}", caption)


def render_totals(plan: Plan, summaries: Sequence[PolicySummary], heading: str = "") -> Html:
    """Render a table of regret, exchanges and clustering error; its caption names the runs."""
    counts = sorted({summary.regret.runs for summary in summaries}) or [0]
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    caption = f"{heading}{runs} runs of {plan.describe_rounds()}, mean ± half of its 95% interval"
    header = ["policy", "expected regret", "exchanges", "clustering error at the end", "clicked lists"]
    header += ["share of items shown", "Gini of exposure"] if any(each.gini for each in summaries) else []
    rows = []
    for each in summaries:
        shown = [f"{mean.mean:.2f}" for mean in (each.coverage, each.gini) if mean is not None]
        cells = [each.label, *format_totals(each), format_mean(each.reward), *shown]
        rows.append([*cells, *[""] * (len(header) - len(cells))])
    return html.render_table(header, rows, numbers=range(1, len(header)), caption=caption)


def format_totals(summary: PolicySummary) -> tuple[str, str, str]:
    """Format regret, exchanges and clustering error."""
    return format_mean(summary.regret), format_mean(summary.exchanges), format_mean(summary.clustering_error, "%")


def draw_curves(
    results: Results, experiment: str, environment: str, quantity: str, title: str, policies: Sequence[str],
    file: str, names: Mapping[str, str] = {},
) -> Html:  # fmt: skip
    """Draw and save one figure; ``names`` maps labels to displayed names."""
    is_wanted = (pl.col("experiment") == experiment) & (pl.col("environment") == environment)
    curves = results.curves.filter(is_wanted)
    shown = {names.get(policy, policy): _collect_runs(curves, policy, quantity) for policy in policies}
    figure = figures.plot_curves(shown, quantity, title)
    has_band = all(len(each.values) >= FEWEST_RUNS for each in shown.values())
    band = "the band is its 95% interval" if has_band else f"a band takes {FEWEST_RUNS} runs"
    caption = f"{title}. {QUANTITIES[quantity].capitalize()}, mean of the runs; {band}."
    return save_figure(results, figure, file, caption)


def _collect_runs(curves: pl.DataFrame, label: str, quantity: str) -> RunCurves:
    """Return a quantity of a policy at each checkpoint of each run."""
    runs = curves.filter(pl.col("label") == label).pivot("seed", index="round", values=quantity).sort("round")
    return RunCurves(runs["round"].to_numpy(), runs.drop("round").to_numpy().T)


def save_figure(results: Results, figure: Figure, words: str, caption: str) -> Html:
    """Save a figure next to the report, under a name made of the letters and digits of ``words``, and render it."""
    name = "".join(letter if letter.isalnum() else "-" for letter in words.lower())
    return html.render_figure(figures.save_figure(figure, results.folder / "figures", name), caption)


def render_provenance(results: Results) -> Html:
    """Render constants, seeds, versions, machine and time."""
    manifest = results.manifest
    machine, files = manifest["machine"], manifest["files"]
    facts = [
        ("fedcascade", manifest["fedcascade"]),
        ("libraries", ", ".join(f"{name} {version}" for name, version in manifest["libraries"].items())),
        ("Python", machine["python"]),
        ("machine", f"{machine['processor']}, {machine['cores']} cores, {machine['system']}"),
        ("time", f"{manifest['seconds']:.0f} s, {manifest['core_seconds']:.0f} s of processor time in all runs"),
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
    rows = [
        (each.label, ", ".join(each.on), Html(f"<code>{html.escape_text(_format_settings(each.constants))}</code>"))
        for each in plan.policies
    ]
    return html.render_table(("policy", "environments", "constants"), rows, caption=head)


def _format_settings(values: object) -> str:
    plain = msgspec.to_builtins(values)
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in plain.items() if value is not None)
