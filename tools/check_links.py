"""Find broken links, anchors and pictures of a built site, and resources that it loads from elsewhere.

Usage: python tools/check_links.py FOLDER. Also checks the Markdown pages of the repository: make check.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("source", "src"), ("iframe", "src"), ("video", "src")}
HARMLESS = {"canonical", "next", "prev", "edit", "alternate"}  # <link> relations that are never fetched
PLANNED = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6} +(.*?)(?: *\{#([\w-]+)\})?$", re.MULTILINE)


class Page(HTMLParser):
    """The anchors, links and fetched resources of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Record the addresses of a tag."""
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        for name in ("src", "href"):
            if (tag, name) in FETCHED and given.get(name) and not HARMLESS & set(given.get("rel", "").split()):
                self.fetched.append(given[name])


@cache
def read_page(path: Path) -> Page:
    """Read a page, once."""
    return Page(path.read_text("utf-8"))


def find_faults(folder: Path) -> Iterator[str]:
    """Yield the faults of a built site, one line each."""
    read_page.cache_clear()
    for path in sorted(folder.rglob("*.html")):
        if path.name == "404.html":  # its addresses start at the root of the site
            continue
        page, name = read_page(path), path.relative_to(folder)
        for address in dict.fromkeys([*page.links, *page.fetched]):
            if reason := find_fault(address, path, folder, is_fetched=address in page.fetched):
                yield f"{name}: {address}: {reason}"


def find_fault(address: str, path: Path, folder: Path, *, is_fetched: bool) -> str | None:
    """Return the fault of an address on a page, or None."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return "is fetched from outside" if is_fetched and parts.scheme != "data" else None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(folder.resolve()) and parts.path:
        return "leads out of the site"
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "leads nowhere"
    is_page = target.suffix == ".html" and parts.fragment
    if is_page and unquote(parts.fragment) not in read_page(target.resolve()).anchors | {"__top"}:
        return "there is no such anchor"
    return None


def slugify(heading: str) -> str:
    """Return the anchor of a heading, as site generators and GitHub make it.

    >>> slugify("What `make` does, in short"), slugify("A [link](page.md) here")
    ('what-make-does-in-short', 'a-link-here')
    """
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def find_page_faults(pages: list[Path]) -> Iterator[str]:
    """Yield links of Markdown pages to missing files or anchors, outside code."""
    for page in pages:
        text = INLINE.sub("", FENCED.sub("", page.read_text("utf-8")))
        for address in PLANNED.findall(text):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = page.parent / unquote(parts.path) if parts.path else page
            if not target.exists():
                yield f"{page}: {address}: leads nowhere"
            elif parts.fragment and target.suffix == ".md" and parts.fragment not in list_anchors(target):
                yield f"{page}: {address}: there is no such anchor"


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a Markdown page: of its headings, and explicit ones."""
    text = FENCED.sub("", page.read_text("utf-8"))
    return {given or slugify(heading) for heading, given in HEADING.findall(text)} | set(
        re.findall(r'(?:id|name)="([^"]+)"', text)
    )


def main() -> None:
    """Check a built site or, without an argument, the Markdown pages of the repository."""
    root = Path(__file__).resolve().parent.parent
    if sys.argv[1:]:
        faults = list(find_faults(Path(sys.argv[1])))
    else:
        pages = [
            *sorted(root.glob("*.md")),
            *sorted((root / "docs").rglob("*.md")),
            *(root / "packages").glob("*/*.md"),
        ]
        faults = [fault.removeprefix(f"{root}/") for fault in find_page_faults(pages)]
    print(*faults, f"links: {len(faults) or 'no'} faults", sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
