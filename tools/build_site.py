"""Build the documentation site from docs/, docstrings and notebooks into site/: make site.

Usage: python tools/build_site.py [--generator zensical|mkdocs] [--out site]

Pages are laid out in .cache/site first: those of docs/, the pages at the root of the repository, and one page per
package with its docstrings; notebooks are run and shown with their output. Navigation is the list of docs/README.md.
Links out of docs/ lead to the repository. The site works from a folder, without a server, and loads nothing from
elsewhere.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from check_links import find_faults
from draw_diagrams import draw_diagrams
from run_notebooks import NOTEBOOKS, list_notebooks, write_markdown

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / ".cache" / "site"
AT_THE_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
SECTION = re.compile(r"^\*\*(.+)\*\*$")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\)")
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
BULLET = re.compile(r"(?:[-*]|\d+\.) ")
OUTSIDE_SCRIPT = "https://unpkg.com/iframe-worker/shim"
Navigation = list[dict[str, Any]]


def read_navigation(page: Path) -> Navigation:
    """Read the sections and pages of a list of pages, in its order."""
    navigation: Navigation = [{"Home": "README.md"}]
    for line in page.read_text("utf-8").splitlines():
        if section := SECTION.match(line):
            navigation.append({section[1]: []})
        elif (entry := ENTRY.match(line)) and len(navigation) > 1:
            [pages] = navigation[-1].values()
            pages.append({entry[1]: entry[2].removeprefix("../").replace(".ipynb", ".md")})
    return navigation


def list_modules(package: Path) -> dict[str, list[str]]:
    """List the public modules of each package by its dotted name, except the command line."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        is_public = not any(part.startswith("_") for part in parts) and "cli" not in parts
        if is_public:
            found.setdefault(".".join(parts[:-1]), []).append(".".join(parts))
    return found


def write_reference(package: Path, folder: Path) -> Navigation:
    """Write a page per package, which mkdocstrings fills with docstrings, and an index."""
    folder.mkdir(parents=True, exist_ok=True)
    navigation: Navigation = [{"API": "api/README.md"}]
    lines = ["# API", "", "The most used names can be imported from `fedcascade` itself:", ""]
    lines += [f"- [`{name}`]({home.rpartition('.')[0]}.md#{home}.{name})" for name, home in list_names(package)]
    lines += ["", "Every public name, by package:", ""]
    for package_name, modules in list_modules(package).items():
        purpose = read_first_line(package.parent.joinpath(*package_name.split(".")) / "__init__.py")
        body = "\n\n".join(f"::: {module}" for module in modules)
        (folder / f"{package_name}.md").write_text(f"# {package_name}\n\n{purpose}\n\n{body}\n", encoding="utf-8")
        lines.append(f"- [`{package_name}`]({package_name}.md): {purpose}")
        navigation.append({package_name: f"api/{package_name}.md"})
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return navigation


def list_names(package: Path) -> Iterator[tuple[str, str]]:
    """List the names that the package exports, and the module of each."""
    for node in ast.parse((package / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOME":
            homes: dict[str, str] = ast.literal_eval(node.value)
            yield from ((name, f"{package.name}.{home}") for name, home in sorted(homes.items()))


def separate_lists(text: str) -> str:
    """Put an empty line between a paragraph and a list, as the generator requires."""
    lines: list[str] = []
    is_code = False
    for line in text.split("\n"):
        is_code ^= line.lstrip().startswith(("```", "~~~"))
        before = lines[-1] if lines else ""
        is_new = bool(before.strip()) and not BULLET.match(before) and not before.startswith((" ", "|"))
        if not is_code and BULLET.match(line) and is_new:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def read_first_line(module: Path) -> str:
    """Return the first line of a module's docstring."""
    found = re.match(r'"""(.+?)(?:"""|\n)', module.read_text("utf-8"))
    return found[1] if found else ""


def move_links(text: str, page: Path, origin: Path, repository: str) -> str:
    """Rewrite the links of a page from ``origin`` to their targets in the site, or in the repository."""

    def move(hit: re.Match[str]) -> str:
        target = (origin.parent / hit[2]).resolve()
        moved = locate(target)
        if moved is None:
            kind = "tree" if target.is_dir() else "blob"
            return f"{hit[1]}{repository}/{kind}/main/{target.relative_to(ROOT).as_posix()}{hit[3]}"
        return f"{hit[1]}{relative(moved, page)}{hit[3]}"

    return "\n".join(LINK.sub(move, line) for line in text.split("\n"))


def locate(target: Path) -> Path | None:
    """Return the path of a repository file in the staged site, or None."""
    if target.is_relative_to(ROOT / "docs") and target.is_file():
        return STAGE / "pages" / target.relative_to(ROOT / "docs")
    if target.parent == NOTEBOOKS:  # a notebook, or a figure that it drew
        return STAGE / "pages" / "notebooks" / target.name.replace(".ipynb", ".md")
    if target == ROOT / "README.md":
        return STAGE / "pages" / "README.md"
    if target.name in AT_THE_ROOT and target.parent == ROOT:
        return STAGE / "pages" / "project" / target.name
    return None


def relative(target: Path, page: Path) -> str:
    """Return the address of a file relative to a page."""
    up = [".."] * len(page.parent.relative_to(STAGE / "pages").parts)
    return "/".join([*up, *target.relative_to(STAGE / "pages").parts])


def stage_pages(repository: str) -> None:
    """Copy docs/ and the pages at the root into the stage, render the notebooks, and rewrite all links."""
    pages = STAGE / "pages"
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    (pages / "project").mkdir()
    originals = [(path, pages / path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    originals += [(ROOT / name, pages / "project" / name) for name in AT_THE_ROOT]
    for origin, page in originals:
        page.write_text(origin.read_text("utf-8"), encoding="utf-8")
    for notebook in list_notebooks():
        write_markdown(notebook, pages / "notebooks", repository)
        originals.append((notebook, pages / "notebooks" / f"{notebook.stem}.md"))
    for origin, page in originals:
        text = draw_diagrams(separate_lists(page.read_text("utf-8")))
        page.write_text(move_links(text, page, origin, repository), encoding="utf-8")


def write_config(generator: str) -> Path:
    """Write the configuration of this build: mkdocs.yml, with the folder and order of pages."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    navigation = read_navigation(ROOT / "docs" / "README.md")
    navigation.append({"API": write_reference(ROOT / "src" / "fedcascade", STAGE / "pages" / "api")})
    navigation.append({"Project": [{name.removesuffix(".md").replace("_", " ").capitalize(): f"project/{name}"}
                                   for name in AT_THE_ROOT]})  # fmt: skip
    config.update(docs_dir="pages", site_dir="built", nav=navigation)
    for plugin in config["plugins"]:
        if "mkdocstrings" in plugin:
            handler = plugin["mkdocstrings"]["handlers"]["python"]
            handler["paths"] = [str(ROOT / "src")]
            handler["options"]["extensions"] = [str(ROOT / "tools" / "fence_doctests.py")]
    if generator == "mkdocs":  # only its built-in themes are installed
        config["theme"] = {"name": "readthedocs", "highlightjs": False}
        config["plugins"].remove("offline")
    path = STAGE / "mkdocs.yml"
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def bring_home(folder: Path) -> None:
    """Serve from the site the one script that the generator would load from elsewhere."""
    for page in folder.rglob("*.html"):
        up = "../" * len(page.parent.relative_to(folder).parts)
        text = page.read_text("utf-8").replace(OUTSIDE_SCRIPT, f"{up}offline-worker.js")
        page.write_text(text, encoding="utf-8")


def main() -> None:
    """Stage, build, and check every link and anchor of the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generator", choices=["zensical", "mkdocs"], default="zensical")
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    asked, started = parser.parse_args(), time.monotonic()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    stage_pages(project["urls"]["Repository"])
    shutil.rmtree(asked.out, ignore_errors=True)
    config = write_config(asked.generator)
    subprocess.run([sys.executable, "-m", asked.generator, "build", "-f", str(config)], check=True, cwd=STAGE)
    bring_home(STAGE / "built")
    shutil.move(STAGE / "built", asked.out)
    faults = list(find_faults(asked.out))
    print(*faults, sep="\n", end="\n" if faults else "")
    pages = len([*asked.out.rglob("*.html")])
    print(f"{asked.out}: {pages} pages in {time.monotonic() - started:.0f} s, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
