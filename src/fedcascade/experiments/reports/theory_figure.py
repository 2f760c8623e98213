"""The figure of ``fedcascade theory --world``: what a run measured beside the bounds for as many rounds."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedcascade.experiments.diagnosis.measurement import Point
from fedcascade.experiments.reports.figures import COLOURS, STYLE, format_short, set_log_scale

Curve = tuple[str, str, str, Callable[[Point], float]]  # label, colour, dashes, and how to read it from a point
MEASURED, PAPER, DERIVED, LOWER = COLOURS[0], COLOURS[1], COLOURS[2], "#888888"


def plot_bounds(points: Sequence[Point], protocol: str) -> Figure:
    """Plot regret, exchanges for the determinant, and others where there are any, each with its bounds, over rounds."""
    beside = "exchanges by chance" if protocol == "auxiliary" else "exchanges by force"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.2, 3.9), layout="constrained")
        has_others = any(point.exchanges_beside for point in points)
        panels: Any = figure.subplots(1, 3 if has_others else 2)
        _plot_panel(panels[0], "regret", points, [
            ("bound of learning alone (paper)", PAPER, "--", lambda point: point.paper.regret_learning),
            ("trivial: 1 per round", LOWER, "-.", lambda point: float(point.round)),
            ("measured", MEASURED, "-", lambda point: point.regret),
            ("order of the lower bound", LOWER, ":", lambda point: point.regret_below),
        ])  # fmt: skip
        _plot_panel(panels[1], "exchanges for the determinant", points, [
            ("derived: J/alpha_c", DERIVED, "--", lambda point: point.derived.exchanges_determinant),
            ("paper: 1/alpha_c", PAPER, "--", lambda point: point.paper.exchanges_determinant),
            ("measured", MEASURED, "-", lambda point: float(point.exchanges_determinant)),
        ])  # fmt: skip
        bounds: list[Curve] = [("paper", PAPER, "--", lambda point: point.paper.exchanges_beside)]
        if protocol == "force-comm":
            bounds.append(("derived", DERIVED, "--", lambda point: point.derived.exchanges_beside))
        measured: Curve = ("measured", MEASURED, "-", lambda point: float(point.exchanges_beside))
        if has_others:
            _plot_panel(panels[2], beside, points, [*bounds, measured])
    return figure


def _plot_panel(axes: mpl.axes.Axes, title: str, points: Sequence[Point], lines: Sequence[Curve]) -> None:
    """Plot several curves on a logarithmic axis; what is not finite or not positive is left out."""
    for label, colour, dash, read in lines:
        shown = [(point.round, read(point)) for point in points]
        shown = [(t, value) for t, value in shown if math.isfinite(value) and value > 0]
        axes.plot([t for t, _ in shown], [value for _, value in shown], dash, color=colour, label=label)
    axes.set(title=title, xlabel="rounds", xlim=(0, None))
    axes.xaxis.set_major_formatter(FuncFormatter(format_short))
    set_log_scale(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.2))
