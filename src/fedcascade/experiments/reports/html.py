"""Render self-contained web pages: no script, font or picture from elsewhere."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from fedcascade.platforms import write_atomically

GLOSSARY = "https://fedcascade.github.io/fedcascade/reference-glossary.html"
STYLE = files(__package__).joinpath("report.css").read_text("utf-8")


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


def escape_text(value: object) -> Html:
    """Return a value as markup, escaped unless it is ``Html``."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def render_paragraph(value: object, kind: str = "") -> Html:
    """Render a paragraph; ``kind`` is its CSS class."""
    return Html(f'<p class="{kind}">{escape_text(value)}</p>')


def render_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = (), caption: str = ""
) -> Html:
    """Render a table; the columns in ``numbers`` are aligned to the right."""
    right = set(numbers)

    def render_cells(values: Sequence[object], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if column in right else ''}>{escape_text(value)}</{tag}>"
            for column, value in enumerate(values)
        )

    body = "".join(f"<tr>{render_cells(row, 'td')}</tr>" for row in rows)
    above = f"<caption>{escape_text(caption)}</caption>" if caption else ""
    head = f"<thead><tr>{render_cells(header, 'th')}</tr></thead>" if any(header) else ""
    return Html(f"<div class=card><table>{above}{head}<tbody>{body}</tbody></table></div>")


def render_figure(svg: str, caption: str) -> Html:
    """Render a figure with inline SVG, as wide as its container."""
    inline = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    inline = re.sub(r"<metadata>.*?</metadata>", "", inline, flags=re.DOTALL)
    # A page may show the colours of a figure as others, where it is dark: report.css has these variables.
    inline = re.sub(r"#([0-9a-f]{6})\b(?=[;\"])", r"var(--x\1, #\1)", inline)
    labelled = inline.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
    return Html(f"<figure>{labelled}<figcaption>{escape_text(caption)}</figcaption></figure>")


def render_gallery(figures: Iterable[Html]) -> Html:
    """Render figures side by side."""
    return Html(f'<div class="figures">{"".join(figures)}</div>')


def render_tally(verdicts: Sequence[str], kinds: Mapping[str, str]) -> Html:
    """Render the count of every verdict that occurs; ``kinds`` maps verdicts to colours."""
    boxes = "".join(
        f'<div class="{kind}"><b>{verdicts.count(verdict)}</b>{escape_text(verdict)}</div>'
        for verdict, kind in kinds.items()
        if verdict in verdicts
    )
    return Html(f"<div class=tally>{boxes}</div>")


def render_section(title: str, *parts: Html) -> Html:
    """Render a heading and its contents."""
    return Html(f"<section><h2>{escape_text(title)}</h2>{''.join(parts)}</section>")


def write_page(path: Path, title: str, parts: Iterable[Html]) -> Path:
    """Write a page that loads nothing and ends with a link to the glossary, and return its path."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    words = f'<p class=dim><a class=dim rel="noreferrer" href="{GLOSSARY}">Glossary</a></p>'
    page = (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape_text(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape_text(title)}</h1>{''.join(parts)}{words}</main></body></html>\n"
    )
    write_atomically(path, page.encode())
    return path
