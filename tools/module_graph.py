"""Print the imports of modules, package by package, and draw the larger packages as SVG: `make graph`.

The drawing is layered: an arrow points from what imports to what is imported, always downwards. Arrows that follow
from others are left out. Nothing but the standard library is needed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from source_tree import Module, build_graph, read_modules

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
PACKAGE = "fedcascade"
# Packages with a picture, and its file.
PICTURES = {
    "fedcascade": "modules.svg",
    "fedcascade.federation": "modules-federation.svg",
    "fedcascade.simulation": "modules-simulation.svg",
    "fedcascade.simulation.exact": "modules-simulation-exact.svg",
    "fedcascade.service": "modules-service.svg",
    "fedcascade.service.server": "modules-service-server.svg",
    "fedcascade.experiments": "modules-experiments.svg",
}
CHARACTER, PADDING, GAP, HEIGHT, LAYER = 7.4, 22, 26, 32, 78  # pixels: widths, the height of a box, between layers
STYLE = """\
  text { font: 13px ui-monospace, Menlo, Consolas, monospace; text-anchor: middle; fill: #1f2328; }
  rect { fill: #eef2f7; stroke: #57606a; }
  .package { fill: #d9e8fb; }
  path { fill: none; stroke: #57606a; stroke-width: 1.2; }
  marker path { fill: #57606a; stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    rect { fill: #21262d; stroke: #9198a1; }
    .package { fill: #1b3a5c; }
    path { stroke: #9198a1; }
    marker path { fill: #9198a1; }
  }"""

Graph = dict[str, set[str]]


def list_packages(modules: dict[str, Module]) -> list[str]:
    """Return the packages, the outermost first."""
    return [name for name, module in modules.items() if module.path.name == "__init__.py"]


def collapse(graph: Graph, package: str) -> Graph:
    """Return the graph of the direct children of a package; a subpackage includes its modules."""
    prefix = f"{package}."

    def find_child(name: str) -> str | None:
        return name.removeprefix(prefix).partition(".")[0] if name.startswith(prefix) else None

    children: Graph = {child: set() for name in graph if (child := find_child(name)) and child != "__main__"}
    for name, targets in graph.items():
        child = find_child(name)
        if child in children:
            children[child] |= {other for target in targets if (other := find_child(target)) and other != child}
    return children


def reduce_transitively(graph: Graph) -> Graph:
    """Remove edges that a longer path implies."""

    def reach(start: str) -> set[str]:
        return set().union(*({target} | reach(target) for target in graph[start]))

    return {
        name: {target for target in targets if not any(target in reach(other) for other in targets - {target})}
        for name, targets in graph.items()
    }


def assign_layers(graph: Graph) -> dict[str, int]:
    """Return the layer of each node: 0 imports nothing, any other lies one above the highest that it imports."""
    layers: dict[str, int] = {}

    def place(name: str) -> int:
        if name not in layers:
            layers[name] = 1 + max(map(place, graph[name]), default=-1)
        return layers[name]

    for name in graph:
        place(name)
    return layers


@dataclass
class Layout:
    """Rows of nodes from the top, and each edge as the nodes that it passes; those between its ends have no box."""

    rows: list[list[str]]
    paths: list[list[str]]
    labels: dict[str, str] = field(default_factory=dict)

    def measure_width(self, node: str) -> float:
        """Return the width of a node in pixels."""
        return len(self.labels[node]) * CHARACTER + PADDING if node in self.labels else 4.0


def arrange(graph: Graph) -> Layout:
    """Put nodes into rows, break long edges at the rows they cross, and order the rows so that few edges cross."""
    layers = assign_layers(graph)
    top = max(layers.values(), default=0)
    rows: list[list[str]] = [[] for _ in range(top + 1)]
    for name in sorted(graph):
        rows[top - layers[name]].append(name)
    paths = []
    for name, targets in sorted(graph.items()):
        for target in sorted(targets):
            between = [f"{name}>{target}@{layer}" for layer in range(layers[name] - 1, layers[target], -1)]
            for layer, node in zip(range(layers[name] - 1, layers[target], -1), between, strict=True):
                rows[top - layer].append(node)
            paths.append([name, *between, target])
    layout = Layout(rows, paths, {name: name for name in graph})
    order_rows(layout)
    return layout


def order_rows(layout: Layout, sweeps: int = 24) -> None:
    """Sort each row by the mean place of its neighbours in the row before, downwards and upwards in turns."""
    links = [pair for path in layout.paths for pair in itertools.pairwise(path)]
    for sweep in range(sweeps):
        rows = layout.rows if sweep % 2 == 0 else layout.rows[::-1]
        for fixed, row in itertools.pairwise(rows):
            place = {node: at / max(len(fixed) - 1, 1) for at, node in enumerate(fixed)}
            before = {node: at / max(len(row) - 1, 1) for at, node in enumerate(row)}

            def mean(node: str, place: dict[str, float] = place, before: dict[str, float] = before) -> float:
                places = [
                    place[a if b == node else b] for a, b in links if node in (a, b) and (a in place or b in place)
                ]
                return sum(places) / len(places) if places else before[node]

            row.sort(key=mean)


def draw(graph: Graph, packages: set[str], title: str) -> str:
    """Draw a graph as SVG; nodes named in `packages` get the colour of a package."""
    layout = arrange(reduce_transitively(graph))
    widths = [sum(layout.measure_width(node) + GAP for node in row) + GAP for row in layout.rows]
    width, height = max(widths), LAYER * len(layout.rows)
    middle: dict[str, tuple[float, float]] = {}
    for number, (row, wide) in enumerate(zip(layout.rows, widths, strict=True)):
        spare = (width - wide) / (len(row) + 1)  # rows share out the width, so that edges are rarely flat
        x = GAP + spare
        for node in row:
            size = layout.measure_width(node)
            middle[node] = (x + size / 2, LAYER * number + LAYER / 2)
            x += size + GAP + spare
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{title}</title>",
        f"<style>\n{STYLE}\n</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
    ]
    lines += [
        f'<path d="{draw_path([middle[node] for node in path])}" marker-end="url(#arrow)"/>' for path in layout.paths
    ]
    for node in itertools.chain(*layout.rows):
        if node in layout.labels:
            (x, y), size = middle[node], layout.measure_width(node)
            kind = ' class="package"' if node in packages else ""
            lines.append(
                f'<rect{kind} x="{x - size / 2:.1f}" y="{y - HEIGHT / 2:.1f}" '
                f'width="{size:.1f}" height="{HEIGHT}" rx="6"/>'
                f'<text x="{x:.1f}" y="{y + 4.5:.1f}">{layout.labels[node]}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


def draw_path(points: list[tuple[float, float]]) -> str:
    """Return the path of a smooth line through points, from the lower edge of a box to the upper edge of another."""
    (x, y), *between, (end_x, end_y) = points
    stops = [(x, y + HEIGHT / 2), *between, (end_x, end_y - HEIGHT / 2)]
    path = f"M{stops[0][0]:.1f},{stops[0][1]:.1f}"
    for (x, y), (next_x, next_y) in itertools.pairwise(stops):
        bend = (y + next_y) / 2
        path += f" C{x:.1f},{bend:.1f} {next_x:.1f},{bend:.1f} {next_x:.1f},{next_y:.1f}"
    return path


def draw_package(modules: dict[str, Module], package: str) -> str:
    """Draw the direct children of a package."""
    graph = build_graph({name: module for name, module in modules.items() if name != PACKAGE})
    packages = {name.removeprefix(f"{package}.") for name in list_packages(modules)}
    return draw(collapse(graph, package), packages, f"Imports inside {package}")


def print_package(graph: Graph, package: str) -> None:
    """Print the imports between the children of a package."""
    print(package)
    for child, targets in sorted(collapse(graph, package).items()):
        print(f"  {child:24} {' '.join(sorted(targets))}".rstrip())


def main() -> None:
    """Print every package, and write the pictures."""
    modules = read_modules(ROOT / "src")
    graph = build_graph(modules)
    for package in list_packages(modules):
        print_package(graph, package)
    for package, file in PICTURES.items():
        (FIGURES / file).write_text(draw_package(modules, package), encoding="utf-8")
        print(f"drawn: docs/figures/{file}")


if __name__ == "__main__":
    main()
