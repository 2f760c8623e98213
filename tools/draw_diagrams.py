"""Draw the Mermaid diagrams of pages as SVG, because the site loads no script to draw them.

One kind is known: a flowchart from left to right. Others are left as they are.
"""

import re
from collections.abc import Iterator
from html import escape

DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NODE = re.compile(r'(\w+)(?:\[\(?"([^"]+)"\)?\])?')
ARROW = re.compile(r"^\s*(.+?) -->\|([^|]+)\| (.+)$")
STYLE = "font-family:system-ui,sans-serif;font-size:12px"
STEP, BOX = 34, 28  # pixels: between rows, height of a box


def draw_diagrams(text: str) -> str:
    """Replace every supported diagram of a page by a picture."""
    return DIAGRAM.sub(lambda hit: draw(hit[1]) or hit[0], text)


def draw(diagram: str) -> str | None:
    """Draw a diagram as inline SVG; return None for an unsupported kind."""
    kind, _, body = diagram.partition("\n")
    if kind.strip() != "flowchart LR":
        return None
    width, height, *shapes = draw_flow(body.splitlines())
    opened = f'<svg viewBox="0 0 {width} {height}" style="{STYLE};max-width:100%;min-width:600px" role="img">'
    return f'<div class="diagram">{opened}{ARROW_HEAD}{"".join(shapes)}</svg></div>'


ARROW_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
)


def draw_flow(lines: list[str]) -> Iterator[str]:
    """Yield the width, the height and the shapes of a flowchart, with a row for each arrow."""
    labels: dict[str, str] = {}
    rows = []
    for line in lines:
        if hit := ARROW.match(line):
            ends = [NODE.match(end) for end in (hit[1].strip(), hit[3].strip())]
            for node in ends:
                if node and node[2]:
                    labels[node[1]] = node[2]
            rows.append((*(node[1] for node in ends if node), hit[2]))
    yield "760"
    yield str(STEP * len(rows) + 16)
    for row, (sender, receiver, words) in enumerate(rows):
        y = STEP * row + BOX // 2 + 6
        yield draw_box(140, y, labels.get(sender, sender), 270)
        yield f'<path d="M278 {y}H478" stroke="currentColor" marker-end="url(#head)"/>'
        yield draw_words(378, y - 6, words, "middle")
        yield draw_box(620, y, labels.get(receiver, receiver), 270)


def draw_box(x: float, y: float, words: str, width: int) -> str:
    """Draw a box around words, by its centre."""
    shape = f'<rect x="{x - width / 2}" y="{y - BOX / 2 + 2}" width="{width}" height="{BOX - 4}" rx="4"'
    return f'{shape} fill="none" stroke="currentColor"/>{draw_words(x, y + 4, words, "middle")}'


def draw_words(x: float, y: float, words: str, anchor: str) -> str:
    """Draw words at a place."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{escape(words)}</text>'
