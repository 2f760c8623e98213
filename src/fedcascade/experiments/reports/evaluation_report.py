"""The report of ``fedcascade evaluate``: a page with a table and a figure of estimates and intervals."""

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedcascade.evaluation.evaluate import HEADER, LOGGED, Evaluation
from fedcascade.experiments.reports import html
from fedcascade.experiments.reports.figures import COLOURS, STYLE, save_figure

TITLE = "Estimated rewards of other policies"


def plot_estimates(found: Evaluation) -> Figure:
    """Plot every estimate with its interval, and the reward of the log."""
    rows = list(reversed(found.estimates))
    policies = list(dict.fromkeys(row.policy for row in found.estimates))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 0.8 + 0.28 * len(rows)), layout="constrained")
        axes: Any = figure.add_subplot()
        for height, row in enumerate(rows):
            colour = "#888888" if row.policy == LOGGED else COLOURS[(policies.index(row.policy) - 1) % len(COLOURS)]
            if not math.isnan(row.low):
                axes.plot([row.low, row.high], [height, height], color=colour)
            axes.plot([row.value], [height], "o", color=colour, markersize=4)
        logged = found.estimates[0].value
        axes.axvline(logged, color="#888888", linestyle=":", linewidth=1)
        axes.set_yticks(range(len(rows)), [f"{row.policy}, {row.estimator}" for row in rows])
        axes.set(title="reward per list and its 95% interval", xlabel="reward per list")
    return figure


def write_report(folder: Path, log: str, found: Evaluation) -> Path:
    """Write the page and its figure into a folder, and return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    svg = save_figure(plot_estimates(found), folder, "evaluation")
    rows = [estimate.format() for estimate in found.estimates]
    parts = [
        html.render_paragraph(f"Estimated from {log}. The dotted line is the reward of the logged lists."),
        html.render_figure(svg, "Reward per list of each policy by each estimator, with 95% intervals over users"),
        html.render_section("Estimates", html.render_table(HEADER, rows, numbers=range(2, 6))),
    ]
    if found.exposures:
        exposures = [(name, *exposure.format()) for name, exposure in found.exposures.items()]
        parts.append(
            html.render_section(
                "Exposure", html.render_table(("policy", "share of items shown", "Gini"), exposures, numbers=(1, 2))
            )
        )
    if found.refusals:
        refused = html.render_table(("", ""), list(found.refusals.items()))
        parts.append(html.render_section("Estimators that do not apply", refused))
    return html.write_page(folder / "evaluation.html", TITLE, parts)
