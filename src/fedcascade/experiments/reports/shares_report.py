"""The report of a plan with a table of shares: the table, and the totals of every environment."""

from collections.abc import Iterable
from math import isfinite
from pathlib import Path

from fedcascade.experiments import shares
from fedcascade.experiments.reports import html, summary
from fedcascade.experiments.results import Results
from fedcascade.experiments.shares import Share

HEADER = ("quantity", "where", "share", "interval")


def write_report(results: Results) -> tuple[Path, list[tuple[str, ...]]]:
    """Write ``report.html`` into the folder; returns its path, and the lines of the table."""
    lines = format_shares(shares.measure_shares(results))
    plan = results.plans[0]
    words = (
        "A share is the ratio of two means; runs are compared seed by seed. The interval is at 95%, by Student's t "
        "over the runs. 'best beta' is that of the beta with the least regret at the same checkpoint. "
        f"{summary.describe_effort(results)}"
    )
    totals = [
        html.render_section(
            environment.name, summary.render_totals(plan, summary.select_summaries(results, plan, environment.name))
        )
        for environment in plan.environments
    ]
    table = html.render_table(HEADER, lines, numbers=(2, 3))
    parts = [html.render_paragraph(words, "dim"), table, *totals, summary.render_provenance(results)]
    return summary.write_page(results, plan.title, parts), lines


def format_shares(measured: Iterable[Share]) -> list[tuple[str, ...]]:
    """Format shares as the lines of a table; a single run has no interval."""
    return [(share.quantity, share.where, f"{share.share.mean:.2f}", _format_interval(share)) for share in measured]


def _format_interval(share: Share) -> str:
    interval = share.share
    return f"{interval.low:.2f} to {interval.high:.2f}" if isfinite(interval.half_width) else "-"
