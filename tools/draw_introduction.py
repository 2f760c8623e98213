"""Draw the pictures of docs/tutorial-first-steps.md.

Usage: python tools/draw_introduction.py

One picture per idea, each from a computation with this package. The same code gives the same files. They have a ground
of their own, so that they can be read on light and on dark pages.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from fedcascade import POLICIES, Synthetic, Trace, simulate
from fedcascade.experiments.reports.figures import COLOURS, STYLE, format_short

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
ORANGE, BLUE, GREEN = COLOURS[:3]
CLUSTERS = 3
Floats = NDArray[np.float64]


def set_log_scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with round numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(format_short))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_cascade(axes: Axes) -> None:
    """Draw a list of four items: the user examines three and clicks the third."""
    passed = ("looked at, not clicked", "0")
    kinds = [passed, passed, ("clicked", "1"), ("never seen", "nothing")]
    for place, (kind, lesson) in enumerate(kinds):
        colour = {"1": GREEN, "0": ORANGE}.get(lesson, "#BBBBBB")
        axes.barh(place, 1.0, height=0.7, color=colour, alpha=0.75)
        axes.text(0.03, place, f"item {place + 1}: {kind}", va="center", fontsize=9)
        axes.text(1.04, place, f"the agent learns: {lesson}", va="center", fontsize=9)
    axes.set(xlim=(0, 1.75), yticks=[], xticks=[], title="a user reads from the top")
    axes.invert_yaxis()
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)


def draw_ucb(axes: Axes) -> None:
    """Draw three items: the most uncertain one is ranked first, despite a lower estimate."""
    names, means, widths = ["400 looks", "40 looks", "4 looks"], [0.55, 0.5, 0.4], [0.03, 0.1, 0.3]
    for place, (name, mean, width) in enumerate(zip(names, means, widths, strict=True)):
        axes.bar(place, mean, width=0.55, color=BLUE, alpha=0.75)
        axes.bar(place, width, width=0.55, bottom=mean, color=ORANGE, alpha=0.75)
        axes.text(place, mean + width + 0.02, f"{mean + width:.2f}", ha="center", fontsize=9)
        axes.text(place, 0.03, name, ha="center", fontsize=8, color="white")
    axes.bar(0, 0, color=BLUE, alpha=0.75, label="estimate")
    axes.bar(0, 0, color=ORANGE, alpha=0.75, label="beta times width")
    axes.set(ylim=(0, 1), xticks=[], ylabel="score", title="upper confidence bounds")
    axes.legend(loc="upper left", ncols=2)


def draw_beta(axes: Axes) -> None:
    """Draw the regret of single agents by beta, which balances exploration."""
    betas = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
    runs = [[simulate_small("fedind", seed, beta=beta).regret for beta in betas] for seed in range(6)]
    draw_band(axes, range(len(betas)), np.array(runs), BLUE)
    axes.set(xticks=range(len(betas)), xticklabels=[f"{beta:g}" for beta in betas], xlabel="beta", ylabel="regret")
    set_log_scale(axes)
    axes.set_title("fedind, 4,000 rounds")


def draw_alpha_c(axes: Axes) -> None:
    """Draw the exchanges and regret of agents with known clusters, by alpha_c."""
    alphas = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    runs = [[simulate_small("known-clusters", seed, alpha_c=alpha, beta=1.0) for alpha in alphas] for seed in range(6)]
    draw_band(axes, range(len(alphas)), np.array([[run.communications() for run in row] for row in runs]), ORANGE)
    right = axes.twinx()
    draw_band(right, range(len(alphas)), np.array([[run.regret for run in row] for row in runs]), BLUE)
    axes.set(xticks=range(len(alphas)), xticklabels=[f"{alpha:g}" for alpha in alphas], xlabel="alpha_c")
    axes.set_ylabel("exchanges", color=ORANGE)
    right.set_ylabel("regret", color=BLUE)
    axes.set(ylim=(0, None), title="known-clusters, 4,000 rounds")
    right.set_ylim(0, None)
    right.grid(visible=False)


def simulate_small(policy: str, seed: int, **constants: float) -> Trace:
    """Play 4,000 rounds of a small environment."""
    world = Synthetic(users=12, clusters=CLUSTERS, dimension=6, items=20, seed=seed)
    return simulate(world, POLICIES[policy].with_constants(**constants), rounds=4_000)


def draw_band(axes: Axes, places: range, runs: Floats, colour: str) -> None:
    """Draw the mean over runs, one row each, and a band from the lowest to the highest."""
    axes.fill_between(places, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.18, linewidth=0)
    axes.plot(places, runs.mean(axis=0), "o-", color=colour, markersize=4)


PICTURES: dict[str, Callable[[Axes], None]] = {
    "introduction-cascade": draw_cascade,
    "introduction-ucb": draw_ucb,
    "introduction-beta": draw_beta,
    "introduction-alpha-c": draw_alpha_c,
}


def render_picture(name: str) -> str:
    """Draw a picture as SVG on a white ground."""
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(4.8, 2.8), layout="constrained", facecolor="white")
        PICTURES[name](figure.add_subplot())
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", stream.getvalue(), flags=re.MULTILINE)


def main() -> None:
    """Draw all pictures."""
    for name in PICTURES:
        (FIGURES / f"{name}.svg").write_text(render_picture(name), encoding="utf-8")
        print(FIGURES / f"{name}.svg")


if __name__ == "__main__":
    main()
