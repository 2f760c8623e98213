"""The report of living populations: one table of wishes, and the totals of every world."""

from pathlib import Path

from fedcascade.experiments import living_bars
from fedcascade.experiments.living_bars import BEFORE, OURS
from fedcascade.experiments.reports import html, summary
from fedcascade.experiments.results import Results

TITLE = "People change, arrive, leave and lie"
HEADER = ("what", BEFORE, OURS, "wish", "verdict")


def write_report(results: Results) -> tuple[Path, list[tuple[str, ...]]]:
    """Write ``report.html`` into the folder; returns its path, and the lines of the table."""
    lines: list[tuple[str, ...]] = list(living_bars.format_findings(living_bars.judge_bars(results)))
    plan = results.plans[0]
    words = (
        "40 users in 10 clusters. Runs are compared seed by seed. Regret is that of honest users; where some lie, per "
        f"honest user. {len(plan.seeds)} runs of {plan.rounds:,} rounds each. {summary.PLUS_MINUS} "
        f"A wish is met if the whole interval is no more than it. {summary.describe_effort(results)}"
    )
    worlds = [
        html.render_section(
            environment.name, summary.render_totals(plan, summary.select_summaries(results, plan, environment.name))
        )
        for environment in plan.environments
    ]
    table = html.render_table(HEADER, lines, numbers=(1, 2, 3))
    parts = [html.render_paragraph(words, "dim"), table, *worlds, summary.render_provenance(results)]
    return summary.write_page(results, TITLE, parts), lines
