"""Plots regret against exchanges: a system is a point, or a line if it runs with several communication constants."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox

from fedcascade.experiments.reports.figures import COLOURS, STYLE, format_short, set_log_scale

Kind = str  # of a point: "ours", "yardstick" or "other"
FACES = {"ours": COLOURS[0], "yardstick": "white", "other": COLOURS[1]}
EDGES = {"ours": COLOURS[0], "yardstick": "#444444", "other": COLOURS[1]}
PLACES = tuple(  # where a label may stand, in points from its mark, the nearest first
    (across, up, side) for up in (0, 7, -7, 14, -14, 21, -21, 28, -28) for across, side in ((8, "left"), (-8, "right"))
)


class Point(NamedTuple):
    """A system: what it costs in exchanges, and in regret."""

    name: str
    kind: Kind
    exchanges: float
    regret: float


def plot_trade_off(points: Sequence[Point], title: str) -> Figure:
    """Plot points with labels; those of kind 'ours' are joined by a line, from the fewest exchanges to the most."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.add_subplot()
        ours = sorted((point for point in points if point.kind == "ours"), key=lambda point: point.exchanges)
        axes.plot([point.exchanges for point in ours], [point.regret for point in ours], color=COLOURS[0], zorder=1)
        for point in points:
            colours: Any = {"markerfacecolor": FACES[point.kind], "markeredgecolor": EDGES[point.kind]}
            axes.plot(point.exchanges, point.regret, "o", markersize=6, zorder=2, **colours)
        axes.set(title=title, xlabel="exchanges", ylabel="expected regret")
        _set_scales(axes, points)
        _label_points(figure, axes, points)
    return figure


def _set_scales(axes: mpl.axes.Axes, points: Sequence[Point]) -> None:
    """Make both axes logarithmic; systems that never speak stand at the left end, at 0."""
    least = min((point.exchanges for point in points if point.exchanges > 0), default=1.0)
    most = max(point.exchanges for point in points)
    start = 10.0 ** len(str(int(least))) / 10
    axes.set_xscale("symlog", linthresh=start, linscale=0.35)
    ticks = [start * size * 10**power for power in range(8) for size in (1, 2, 5)]
    axes.xaxis.set_major_locator(FixedLocator([0, *(tick for tick in ticks if tick < 2.5 * most)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(-start / 4, 2.5 * most)
    axes.xaxis.set_major_formatter(FuncFormatter(format_short))
    set_log_scale(axes)
    axes.margins(y=0.08)


def _label_points(figure: Figure, axes: mpl.axes.Axes, points: Sequence[Point]) -> None:
    """Put a label beside each point, where it covers no other label and no point."""
    figure.draw_without_rendering()
    centres = axes.transData.transform([(point.exchanges, point.regret) for point in points])
    size = figure.dpi / 72 * 4
    taken = [Bbox.from_bounds(x - size, y - size, 2 * size, 2 * size) for x, y in centres]
    for index, point in enumerate(points):
        blocked = [box for number, box in enumerate(taken) if number != index]
        taken.append(_place_label(figure, axes, point, blocked))


def _place_label(figure: Figure, axes: mpl.axes.Axes, point: Point, blocked: Sequence[Bbox]) -> Bbox:
    for place in PLACES:
        label = _draw_label(axes, point, place)
        box = label.get_window_extent()
        is_inside = axes.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        if place == PLACES[-1] or (is_inside and not any(box.overlaps(obstacle) for obstacle in blocked)):
            break
        label.remove()
    return box


def _draw_label(axes: mpl.axes.Axes, point: Point, place: tuple[int, int, str]) -> Annotation:
    across, up, side = place
    colour = EDGES[point.kind] if point.kind == "ours" else "#333333"
    style: Any = {"textcoords": "offset points", "ha": side, "va": "center", "fontsize": 8, "color": colour}
    return axes.annotate(point.name, (point.exchanges, point.regret), (across, up), **style)
