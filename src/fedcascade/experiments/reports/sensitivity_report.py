"""The report of the sensitivity to constants: one table, with the paper's own figures above it."""

from collections.abc import Sequence
from pathlib import Path

from fedcascade.experiments import sensitivity
from fedcascade.experiments.intervals import Interval
from fedcascade.experiments.paper_claims import BELOW, EXCHANGES, NAMES, TEN
from fedcascade.experiments.reports import html, summary
from fedcascade.experiments.reports.summary import format_mean
from fedcascade.experiments.results import Results
from fedcascade.experiments.sensitivity import RIVALS, SPEAKERS, Row

TITLE = "How the figures depend on the constants"
HEADER = ("constants", *(NAMES[system] for system in SPEAKERS), *(f"v. {NAMES[rival]}" for rival in RIVALS))
CAPTION = (
    "J = 10: exchanges of four systems, then how far FedC3UCB-H's regret is below (v.); mean ± half of its 95% interval"
)


def write_report(results: Results) -> tuple[Path, list[tuple[str, ...]]]:
    """Write ``report.html`` into the folder; returns its path, and the lines of the table."""
    lines = [format_papers_figures(), *map(format_row, sensitivity.measure_changes(results))]
    plan = results.plans[0]
    words = (
        "The paper names no constants; these are ours. One at a time is halved and doubled, with everything else as "
        "chosen. Regrets are compared run by run. "
        f"{len(plan.seeds)} runs of {plan.rounds:,} rounds each. {summary.PLUS_MINUS} "
        f"{summary.describe_effort(results)}"
    )
    table = html.render_table(HEADER, lines, numbers=range(1, len(HEADER)), caption=CAPTION)
    parts = [html.render_paragraph(words, "dim"), table]
    return summary.write_page(results, TITLE, [*parts, summary.render_provenance(results)]), lines


def format_papers_figures() -> tuple[str, ...]:
    """Format the paper's own figures at J = 10, as a line of the table."""
    below = {rival: paper for plan, quantity, rival, paper in BELOW if (plan, quantity) == (TEN, "regret")}
    counts = (f"{EXCHANGES[TEN][system]:,.1f}" for system in SPEAKERS)
    return ("the paper", *counts, *(f"{below[rival]:.0%}" for rival in RIVALS))


def format_row(row: Row) -> tuple[str, ...]:
    """Format one change as a line of the table."""
    return (row.change, *_format_all(row.exchanges, ""), *_format_all(row.below, "%"))


def _format_all(values: Sequence[Interval], unit: str) -> list[str]:
    return [format_mean(value, unit) for value in values]
