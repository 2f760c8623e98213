"""The site: every page and every public name is on it, links are moved rightly, and planted faults are found."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import build_site
import pytest
from build_site import ROOT, list_modules, list_names, move_links, read_navigation, separate_lists, write_reference
from check_links import find_faults, find_page_faults
from draw_diagrams import draw_diagrams

import fedcascade

PACKAGE = ROOT / "src" / "fedcascade"


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    sections = read_navigation(ROOT / "docs" / "README.md")[1:]
    listed = {page for section in sections for pages in section.values() for entry in pages for page in entry.values()}
    assert listed >= {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_every_public_module_has_its_place_in_the_reference(tmp_path: Path) -> None:
    write_reference(PACKAGE, tmp_path)
    written = "".join(path.read_text("utf-8") for path in tmp_path.iterdir())
    modules = {module for room in list_modules(PACKAGE).values() for module in room}
    assert set(re.findall(r"^::: (\S+)$", written, re.MULTILINE)) == modules
    assert {"fedcascade.learning.ridge", "fedcascade.service.server.writer", "fedcascade.checks"} <= modules
    assert not any(".cli." in module or "._" in module for module in modules)


def test_the_names_of_the_package_lead_to_where_they_live() -> None:
    homes = dict(list_names(PACKAGE))
    assert set(homes) >= set(fedcascade.__all__) - {"__version__"}
    for name, home in homes.items():
        assert hasattr(importlib.import_module(home), name)


def test_links_are_moved_to_the_site_or_to_the_repository() -> None:
    stage, home = build_site.STAGE / "pages", "https://example.org/home"
    text = "[a](how-to-install.md#releases) [b](../CHANGELOG.md) [c](../deploy/compose.yaml) [d](https://example.org)"
    text += " [e](../notebooks/1-a-policy-of-your-own.ipynb)"
    moved = move_links(text, stage / "page.md", ROOT / "docs" / "page.md", home)
    kept = "[a](how-to-install.md#releases) [b](project/CHANGELOG.md)"
    outside = f"[c]({home}/blob/main/deploy/compose.yaml) [d](https://example.org)"
    assert moved == f"{kept} {outside} [e](notebooks/1-a-policy-of-your-own.md)"


def test_lists_are_separated_from_paragraphs_and_code_is_left_alone() -> None:
    assert separate_lists("**Look**\n- one\n- two") == "**Look**\n\n- one\n- two"
    assert separate_lists("- one\n  more\n- two") == "- one\n  more\n- two"
    assert separate_lists("```\ntext\n- no list\n```") == "```\ntext\n- no list\n```"


def write_page(folder: Path, body: str) -> list[str]:
    (folder / "other.html").write_text('<h1 id="there">There</h1>', encoding="utf-8")
    (folder / "page.html").write_text(body, encoding="utf-8")
    return list(find_faults(folder))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('<a href="gone.html">', "leads nowhere"),
        ('<a href="other.html#gone">', "no such anchor"),
        ('<a href="#gone">', "no such anchor"),
        ('<a href="../outside.html">', "leads out of the site"),
        ('<img src="gone.png">', "leads nowhere"),
        ('<script src="https://example.org/x.js"></script>', "fetched from outside"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "fetched from outside"),
    ],
)
def test_a_planted_fault_of_a_page_is_found(body: str, reason: str, tmp_path: Path) -> None:
    [fault] = write_page(tmp_path, body)
    assert fault.startswith("page.html: ")
    assert reason in fault


def test_a_good_page_has_no_faults(tmp_path: Path) -> None:
    links = '<a href="other.html#there"><a href="https://example.org"><a href="#x"><p id="x"><link rel="canonical" href="https://x">'
    assert write_page(tmp_path, links) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[x](gone.md)", "leads nowhere"), ("[x](page.md#gone)", "no such anchor"), ("![x](gone.png)", "leads nowhere")],
)
def test_a_planted_fault_of_a_markdown_page_is_found(text: str, reason: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n\n{text}\n", encoding="utf-8")
    [fault] = find_page_faults([page])
    assert reason in fault


def test_links_in_code_are_not_looked_at(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `name` here\n\n[x](#a-name-here) `[x](gone.md)`\n\n```\n[x](gone.md)\n```\n", encoding="utf-8")
    assert list(find_page_faults([page])) == []


def test_pages_of_the_repository_have_no_faults() -> None:
    done = subprocess.run(
        [sys.executable, "tools/check_links.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_diagrams_are_drawn_and_other_kinds_stay_text() -> None:
    flow = '```mermaid\nflowchart LR\n  a["one & two"] -->|words| b\n  b -->|back| a\n```'
    drawn = draw_diagrams(flow)
    assert drawn.count("one &amp; two") == 2
    assert drawn.count("marker-end") == 2
    other = "```mermaid\ngantt\n```"
    assert draw_diagrams(other) == other


def test_every_diagram_of_the_pages_is_drawn() -> None:
    pages = [path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")]
    assert any("```mermaid" in page for page in pages)
    assert not any("```mermaid" in draw_diagrams(page) for page in pages)


@pytest.mark.long
@pytest.mark.parametrize("generator", ["zensical", "mkdocs"])
def test_the_site_is_built_without_faults_and_searched_from_a_folder(
    generator: str, tmp_path: Path, browser: Any
) -> None:
    pytest.importorskip(generator, reason="the tools of the site are not installed: make site")
    command = [sys.executable, "tools/build_site.py", "--generator", generator, "--out", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    if generator == "zensical":
        context = browser.new_context(viewport={"width": 400, "height": 800})
        page, asked = context.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"file://{tmp_path}/site/index.html")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.keyboard.press("/")
        page.keyboard.type("cascade")
        page.get_by_text(re.compile(r"\d+ results")).first.wait_for(timeout=20_000)
        assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
        context.close()
    shutil.rmtree(tmp_path)
