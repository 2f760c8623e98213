"""The report of any results folder: tables, figures, and how it came about."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from fedcascade.experiments.intervals import Spread, spread
from fedcascade.experiments.plan import Plan, systems_in
from fedcascade.experiments.reports import figures, html
from fedcascade.experiments.reports.figures import QUANTITIES
from fedcascade.experiments.reports.html import Html
from fedcascade.experiments.results import Results, write_whole


class Line(NamedTuple):
    """One system in one environment, over its runs."""

    experiment: str
    environment: str
    system: str
    regret: Spread
    exchanges: Spread
    clustering_error: Spread


def summary(results: Results) -> list[Line]:
    """A line for every system in every environment, in the order of the plans."""
    groups = results.runs.group_by("experiment", "environment", "system", maintain_order=True)
    return [
        Line(
            experiment=str(experiment),
            environment=str(environment),
            system=str(system),
            regret=spread(rows["regret"].to_list()),
            exchanges=spread(rows["exchanges"].to_list()),
            clustering_error=spread(rows["clustering_error"].to_list()),
        )
        for (experiment, environment, system), rows in groups
    ]


def write_report(results: Results) -> Path:
    """Write figures and ``report.html`` into a results folder; returns where the report is."""
    title = ", ".join(plan.title for plan in results.plans)
    places = [(plan, place.name) for plan in results.plans for place in plan.environments]
    parts = [_of_environment(results, plan, name) for plan, name in places]
    return publish(results, title, [html.paragraph(overview(results), "dim"), *parts, making(results)])


def publish(results: Results, title: str, parts: Sequence[Html]) -> Path:
    """Write a page as the folder's report."""
    path = results.folder / "report.html"
    write_whole(path, html.page(title, *parts).encode())
    return path


def overview(results: Results) -> str:
    """How much was played, how long it took, and where."""
    made = results.manifest
    return (
        f"{made['runs']:,} runs, {made['rounds']:,} rounds in {made['core_seconds'] / 60:.1f} minutes of one core "
        f"({made['rounds'] / made['core_seconds']:,.0f} rounds/s), by fedcascade {made['fedcascade']}."
    )


def _of_environment(results: Results, plan: Plan, environment: str) -> Html:
    systems = [system.label for system in systems_in(plan, environment)]
    lines = [line for line in summary(results) if (line.experiment, line.environment) == (plan.name, environment)]
    drawn = [
        draw(results, plan.name, environment, quantity, f"{environment}: {words}", systems)
        for quantity, words in QUANTITIES.items()
    ]
    runs = f"{len(plan.seeds)} runs of {plan.rounds:,} rounds, mean ± standard deviation"
    return html.section(f"{plan.title}: {environment}", totals(lines, runs), html.gallery(drawn))


def totals(lines: Sequence[Line], caption: str) -> Html:
    """Regret, exchanges and clustering error of some systems."""
    rows = [
        (line.system, plus_minus(line.regret), plus_minus(line.exchanges), plus_minus(line.clustering_error, "%"))
        for line in lines
    ]
    header = ("system", "expected regret", "exchanges", "clustering error at the end")
    return html.table(header, rows, numbers=(1, 2, 3), caption=caption)


def draw(
    results: Results,
    experiment: str,
    environment: str,
    quantity: str,
    title: str,
    systems: Sequence[str],
    file: str = "",
    names: Mapping[str, str] = {},
    *,
    logarithmic: bool = False,
) -> Html:
    """Draw and save one figure; ``names`` may give systems others than their labels."""
    there = (pl.col("experiment") == experiment) & (pl.col("environment") == environment)
    named = results.curves.filter(there).with_columns(pl.col("system").replace(names))
    figure = figures.curves(
        named, quantity, title, [names.get(system, system) for system in systems], logarithmic=logarithmic
    )
    svg = figures.save(figure, results.folder / "figures", file or file_name(f"{experiment}-{environment}-{quantity}"))
    return html.drawing(
        svg, f"{title}. {QUANTITIES[quantity].capitalize()}, mean of the runs ± one standard deviation."
    )


def file_name(words: str) -> str:
    """Words as the name of a file.

    >>> file_name("lifted, J = 5")
    'lifted--j---5'
    """
    return "".join(letter if letter.isalnum() else "-" for letter in words.lower())


def making(results: Results) -> Html:
    """Constants, seeds, versions, machine and time."""
    made = results.manifest
    machine = made["machine"]
    facts = [
        ("fedcascade", made["fedcascade"]),
        ("libraries", ", ".join(f"{name} {version}" for name, version in made["libraries"].items())),
        ("Python", machine["python"]),
        ("machine", f"{machine['processor']}, {machine['cores']} cores, {machine['system']}"),
        ("time", f"{made['seconds']:.0f} s for the last command, {made['core_seconds']:.0f} s of one core in all"),
        (
            "data",
            Html(", ".join(f"<code>{name}</code> sha256 {digest[:16]}…" for name, digest in made["files"].items())),
        ),
    ]
    return html.section("How this was made", html.table(("", ""), facts), *(_plan(plan) for plan in results.plans))


def _plan(plan: Plan) -> Html:
    worlds = [f"{place.name}: {_settings(place.world)}" for place in plan.environments]
    head = (
        f"{plan.name}: T = {plan.rounds:,}, K = {plan.list_length}, "
        f"seeds {', '.join(map(str, plan.seeds))}; {'; '.join(worlds)}"
    )
    rows = [
        (system.label, ", ".join(system.on), Html(f"<code>{html.text(_settings(system.constants))}</code>"))
        for system in plan.systems
    ]
    return html.table(("system", "environments", "constants"), rows, caption=head)


def _settings(values: object) -> str:
    plain = msgspec.to_builtins(values)
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in plain.items() if value is not None)


def plus_minus(value: Spread, unit: str = "") -> str:
    """Mean and standard deviation in words.

    >>> plus_minus(spread([1000.0, 1200.0]))
    '1,100 ± 141'
    >>> plus_minus(spread([0.25]), "%")
    '25.0%'
    """
    scale, digits = (100, 1) if unit == "%" else (1, 0 if abs(value.mean) >= 1000 else 1)
    tail = f" ± {value.deviation * scale:,.{digits}f}" if value.runs > 1 else ""
    return f"{value.mean * scale:,.{digits}f}{tail}{unit}"
