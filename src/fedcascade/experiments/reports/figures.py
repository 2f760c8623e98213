"""Figures in one style, as SVG, PDF and PNG; equal data gives equal files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedcascade.systems import write_atomically

# Okabe and Ito's colours, safe for colour-blind readers; further policies get dashes.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")
STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "pdf.fonttype": 42,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666", "axes.labelcolor": "#333333",
    "xtick.color": "#555555", "ytick.color": "#555555", "lines.linewidth": 1.6,
    "axes.grid": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 8,
}  # fmt: skip
FORMATS = ("svg", "pdf", "png")
QUANTITIES = {"regret": "expected regret", "exchanges": "exchanges", "clustering_error": "clustering error"}


def plot_curves(data: pl.DataFrame, quantity: str, title: str, policies: Sequence[str]) -> Figure:
    """Plot the mean over runs of a column against rounds, with a band from the lowest run to the highest.

    ``data`` are the curves of one environment; the order of ``policies`` gives their colours.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        axes = figure.add_subplot()
        lines = [_plot_policy(axes, data, quantity, policy, number) for number, policy in enumerate(policies)]
        axes.set(title=title, xlabel="rounds", ylabel=QUANTITIES[quantity], xlim=(0, None))
        axes.xaxis.set_major_formatter(FuncFormatter(format_short))
        format_value = format_percent if quantity == "clustering_error" else format_short
        axes.yaxis.set_major_formatter(FuncFormatter(format_value))
        axes.set_ylim(bottom=0)
        ordered = sorted(lines, key=lambda pair: -pair[0])  # the legend lists policies as their curves end
        axes.legend(handles=[line for _, line in ordered], loc="best")
    return figure


def _plot_policy(
    axes: mpl.axes.Axes, data: pl.DataFrame, quantity: str, policy: str, number: int
) -> tuple[float, object]:
    statistics = (
        data.filter(pl.col("label") == policy)
        .group_by("round")
        .agg(mean=pl.col(quantity).mean(), low=pl.col(quantity).min(), high=pl.col(quantity).max())
        .sort("round")
    )
    rounds, mean, low, high = (statistics[name].to_numpy() for name in ("round", "mean", "low", "high"))
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
    axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
    (line,) = axes.plot(rounds, mean, dash, color=colour, label=policy)
    return float(mean[-1]), line


def format_short(value: float, _position: int | None = None) -> str:
    """Format a number with k or M.

    >>> format_short(250_000), format_short(1_000_000), format_short(1_500), format_short(80)
    ('250k', '1M', '1.5k', '80')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def format_percent(value: float, _position: int | None = None) -> str:
    """Format a share as a percentage.

    >>> format_percent(0.25)
    '25%'
    """
    return f"{value:.0%}"


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write a figure as SVG, PDF and PNG, and return the SVG; all share its layout."""
    content_of_kind = {}
    for kind in FORMATS:
        content_of_kind[kind] = _render(figure, kind, name)
        figure.set_layout_engine("none")
    for kind, content in content_of_kind.items():
        write_atomically(folder / f"{name}.{kind}", content)
    return content_of_kind["svg"].decode()


def _render(figure: Figure, kind: str, name: str) -> bytes:
    # The salt makes the ids of an SVG reproducible, and unique on a page.
    dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    stream = io.BytesIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        figure.savefig(stream, format=kind, dpi=160, metadata=dateless)
    return stream.getvalue()
