"""Run the cells of notebooks in order, without Jupyter, and write them with their output as Markdown.

Usage: python tools/run_notebooks.py FOLDER [NOTEBOOK ...]
       python tools/run_notebooks.py --write [NOTEBOOK ...]

With ``--write`` their output is stored in the notebooks themselves, and no Markdown is written.

Lines that start with ``%``, such as the ``%pip install`` of the first cell, are for Jupyter and Colab and are left out.
What a cell's last expression is worth is printed, unless it is None; figures that it opened in pyplot are drawn as SVG.
"""

import ast
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
COLAB = "https://colab.research.google.com/github"


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook, with its printed output and SVGs after it ran."""

    kind: str
    source: str
    printed: str = ""
    figures: tuple[str, ...] = ()


def list_notebooks() -> list[Path]:
    """List the notebooks of the repository by name."""
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def read_notebook(path: Path) -> list[Cell]:
    """Read the cells of a notebook, without stored outputs."""
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text("utf-8"))["cells"]]


def run_notebook(path: Path) -> Iterator[Cell]:
    """Run a notebook in an empty folder, and yield each cell with its output."""
    os.environ["MPLBACKEND"] = "agg"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")  # figures of the caller are none of the notebook's
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for number, cell in enumerate(read_notebook(path), start=1):
            yield run_cell(cell, namespace, f"{path.name}, cell {number}") if cell.kind == "code" else cell


def run_cell(cell: Cell, namespace: dict[str, Any], name: str) -> Cell:
    """Run a cell; ``name`` stands in the traceback of an error."""
    lines = ["" if line.startswith("%") else line for line in cell.source.split("\n")]
    module = ast.parse("\n".join(lines), name)
    last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(module, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
            print(repr(value) if value is not None else "", end="")
    return Cell(cell.kind, cell.source, printed.getvalue(), tuple(collect_figures(name)))


def collect_figures(name: str) -> Iterator[str]:
    """Close the figures that are open in pyplot, if it was imported, and yield them as SVG."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else []:
        stream = io.StringIO()
        with pyplot.rc_context({"svg.hashsalt": f"{name}, {number}", "svg.fonttype": "none"}):
            pyplot.figure(number).savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
        pyplot.close(number)
        yield stream.getvalue()


def write_markdown(path: Path, folder: Path, repository: str) -> None:
    """Run a notebook and write it as a page of that folder, with its figures beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    place = f"/blob/main/notebooks/{path.name}"
    colab = COLAB + repository.removeprefix("https://github.com") + place
    parts, drawn = [], 0
    for cell in run_notebook(path):
        parts.append(cell.source if cell.kind == "markdown" else f"```python\n{cell.source}\n```")
        if cell.printed.strip():
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        for svg in cell.figures:
            drawn += 1
            figure = f"{path.stem}-{drawn}.svg"
            (folder / figure).write_text(svg, encoding="utf-8")
            parts.append(f"![What the cell above draws]({figure})")
    parts.insert(1, f"[The notebook]({repository}{place}) · [open it in Colab]({colab})")
    (folder / f"{path.stem}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def store_outputs(path: Path) -> None:
    """Run a notebook and store in it what its cells print and draw."""
    stored, count = json.loads(path.read_text("utf-8")), 0
    for kept, cell in zip(stored["cells"], run_notebook(path), strict=True):
        if cell.kind == "code":
            count += 1
            text = {"name": "stdout", "output_type": "stream", "text": cell.printed.splitlines(keepends=True)}
            drawn = [
                {
                    "data": {"image/svg+xml": svg.splitlines(keepends=True)},
                    "metadata": {},
                    "output_type": "display_data",
                }
                for svg in cell.figures
            ]
            kept |= {"execution_count": count, "outputs": [text, *drawn] if cell.printed else drawn}
    path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Run the named notebooks, or all."""
    folder, *named = map(Path, sys.argv[1:] or [str(ROOT / ".cache" / "notebooks")])
    for path in named or list_notebooks():
        if folder.name == "--write":
            store_outputs(path.resolve())
            continue
        write_markdown(path.resolve(), folder.resolve(), "https://github.com/fedcascade/fedcascade")
        print(folder / f"{path.stem}.md")


if __name__ == "__main__":
    main()
