"""Figures in one style, as SVG, PDF and PNG; equal data gives equal files."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from fedcascade.checks import require, require_known
from fedcascade.intervals import estimate_mean
from fedcascade.platforms import write_atomically

if TYPE_CHECKING:
    from fedcascade.simulation.trace import Trace

# Eight colours that colour-blind readers can tell apart: seven of Okabe and Ito, and a wine red of Tol.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255")
MOST_CURVES = len(COLOURS)
STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9, "svg.fonttype": "path", "pdf.fonttype": 42,
    "text.color": "#1c2430", "figure.facecolor": "#ffffff", "axes.facecolor": "#ffffff",
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666", "axes.labelcolor": "#333333",
    "xtick.color": "#555555", "ytick.color": "#555555", "lines.linewidth": 1.6,
    "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 8,
}  # fmt: skip
FORMATS = ("svg", "pdf", "png")
QUANTITIES = {"regret": "expected regret", "exchanges": "exchanges", "clustering_error": "clustering error"}


class RunCurves(NamedTuple):
    """A quantity of a policy over rounds: one row of ``values`` for each run."""

    rounds: NDArray[np.int64]
    values: NDArray[np.float64]


def plot_curves(curves: Mapping[str, RunCurves], quantity: str, title: str) -> Figure:
    """Plot the mean over runs of up to eight policies against rounds, with its 95% interval as a band."""
    require_known("quantity", quantity, QUANTITIES)
    require(len(curves) <= MOST_CURVES, f"a figure has at most {MOST_CURVES} curves, got {len(curves)}")
    columns = 1 if max(map(len, curves)) > 26 else 2
    height = 2.9 + 0.17 * -(-len(curves) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6, height), layout="constrained")
        axes = figure.add_subplot()
        ends = [_plot_policy(axes, each, quantity, label, place) for place, (label, each) in enumerate(curves.items())]
        axes.set(title=title, xlabel="rounds", ylabel=QUANTITIES[quantity])
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(format_short)
        axes.yaxis.set_major_formatter("{x:.0%}" if quantity == "clustering_error" else format_short)
        handles = [line for _, line in sorted(ends, key=lambda end: -end[0])]  # as the curves end, from the top
        figure.legend(handles=handles, loc="outside lower left", ncols=columns)
    return figure


def _plot_policy(axes: Any, curves: RunCurves, quantity: str, label: str, place: int) -> tuple[float, Any]:
    """Plot one policy; return its last mean and its line."""
    means = [estimate_mean(values) for values in curves.values.T.tolist()]
    rounds, mean = curves.rounds, np.array([each.mean for each in means])
    half = np.array([each.half_width for each in means])
    if quantity != "clustering_error":  # totals start at zero
        rounds, mean, half = np.r_[0, rounds], np.r_[0.0, mean], np.r_[0.0, half]
    colour, dash = COLOURS[place], "-" if place < MOST_CURVES // 2 else "--"
    if np.isfinite(half).all():
        low, high = np.clip((mean - half, mean + half), 0.0, 1.0 if quantity == "clustering_error" else None)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
    (line,) = axes.plot(rounds, mean, dash, color=colour, label=label)
    return float(mean[-1]), line


def plot_traces(traces: Mapping[str, Sequence["Trace"]], quantity: str, title: str) -> Figure:
    """Plot the runs of policies, by label."""
    field = "communications" if quantity == "exchanges" else quantity
    require_known("quantity", quantity, QUANTITIES)
    curves = {
        label: RunCurves(
            np.array([point.round for point in runs[0].curve]),
            np.array([[getattr(point, field) for point in run.curve] for run in runs], np.float64),
        )
        for label, runs in traces.items()
    }
    return plot_curves(curves, quantity, title)


def plot_grid(
    means: NDArray[np.float64], axes_values: Mapping[str, Sequence[object]], quantity: str, title: str, best: Any
) -> Figure:
    """Plot the means over two constants, that of columns first, as a heat map; a frame marks the best cell."""
    (across, columns), (down, rows) = axes_values.items()
    low, high = float(np.nanmin(means)), float(np.nanmax(means))
    with mpl.rc_context(STYLE | {"axes.grid": False, "axes.spines.left": False, "axes.spines.bottom": False}):
        figure = Figure(figsize=(max(4.6, 0.9 + 0.62 * len(columns)), 1.1 + 0.36 * len(rows)), layout="constrained")
        axes = figure.add_subplot(title=title, xlabel=across, ylabel=down)
        axes.pcolormesh(means, cmap="viridis_r", edgecolors="#fdfdfd", linewidth=1.5)
        for cell in np.argwhere(~np.isnan(means)).tolist():  # others have no finished run
            value = float(means[tuple(cell)])
            words = f"{value:.0%}" if quantity == "clustering_error" else format_short(float(f"{value:.3g}"))
            weight = "bold" if cell == list(best) else "normal"
            colour = "#fdfdfd" if value > low + 0.45 * (high - low) else "#111111"
            axes.text(
                cell[1] + 0.5, cell[0] + 0.5, words, color=colour, weight=weight, ha="center", va="center", size=8
            )
        frame: Any = {"fill": False, "edgecolor": COLOURS[0], "linewidth": 2.5, "clip_on": False}
        axes.add_patch(Rectangle((best[1], best[0]), 1, 1, **frame))
        axes.set_xticks(np.arange(len(columns)) + 0.5, list(map(str, columns)))
        axes.set_yticks(np.arange(len(rows)) + 0.5, list(map(str, rows)))
        axes.tick_params(length=0)
    return figure


def format_short(value: float, _position: float = 0) -> str:
    """Format a number with k or M.

    >>> format_short(250_000), format_short(1_000_000), format_short(1_500), format_short(80)
    ('250k', '1M', '1.5k', '80')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write a figure as SVG, PDF and PNG with their fonts; return an SVG for a page, whose text is text."""
    inline = render_svg(figure, name)
    figure.set_layout_engine("none")  # all share one layout
    for kind in FORMATS:
        write_atomically(folder / f"{name}.{kind}", _render(figure, kind, name))
    return inline


def render_svg(figure: Figure, name: str) -> str:
    """Render a figure as an SVG for a page; ``name`` makes its ids unique there."""
    text = _render(figure, "svg", name, {"svg.fonttype": "none"}).decode()
    return text[text.index("<svg") :]


def _render(figure: Figure, kind: str, name: str, style: Mapping[str, str] = {}) -> bytes:
    # The salt makes the ids of an SVG reproducible, and unique on a page.
    dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    stream = io.BytesIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name} | style):
        figure.savefig(stream, format=kind, dpi=160, metadata=dateless)
    return stream.getvalue()
