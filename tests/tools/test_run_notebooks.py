"""The notebooks run from top to bottom, print what they store, and can be started in Colab."""

import json
import re
from pathlib import Path

import pytest
from run_notebooks import Cell, list_notebooks, read_notebook, run_cell, run_notebook, store_outputs, write_markdown


@pytest.mark.parametrize("path", list_notebooks(), ids=lambda path: path.stem)
def test_a_notebook_prints_and_draws_what_it_stores(path: Path) -> None:
    stored = json.loads(path.read_text("utf-8"))["cells"]
    printed = 0
    for kept, cell in zip(stored, run_notebook(path), strict=True):
        outputs = kept.get("outputs", [])
        texts = ["".join(each["text"]) for each in outputs if each["output_type"] == "stream"]
        # What an agent has received when its user arrives depends on the network: only the words are compared.
        mask = r"[\d\s]+" if "varies" in kept["metadata"].get("tags", []) else r"$^"
        assert re.sub(mask, " ", "".join(texts)) == re.sub(mask, " ", cell.printed), cell.source
        assert len(outputs) - len(texts) == len(cell.figures)
        printed += len(texts)
    assert printed >= 3


@pytest.mark.parametrize("path", list_notebooks(), ids=lambda path: path.stem)
def test_a_notebook_is_small_and_installs_the_package_first(path: Path) -> None:
    stored = json.loads(path.read_text("utf-8"))
    assert stored["nbformat"] == 4
    assert path.stat().st_size < 50_000
    codes = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == list(range(1, len(codes) + 1))
    assert codes[0]["source"][0].startswith("%pip install --quiet ")
    assert read_notebook(path)[0].source.startswith("# ")


def test_a_cell_prints_its_last_value_and_leaves_out_lines_for_jupyter() -> None:
    namespace: dict[str, object] = {}
    assert run_cell(Cell("code", "%pip install x\na = 1\nprint(a)\na + 1"), namespace, "cell").printed == "1\n2"
    assert run_cell(Cell("code", "b = a\nNone"), namespace, "cell").printed == ""


def test_an_error_names_the_notebook_and_the_cell() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_cell(Cell("code", "1 / 0"), {}, "x.ipynb, cell 3")
    assert caught.traceback[-1].path == Path("x.ipynb, cell 3") or "x.ipynb, cell 3" in str(caught.traceback[-1])


def test_a_page_shows_what_cells_print_and_draw(tmp_path: Path) -> None:
    draw = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])"
    cells = [{"cell_type": "markdown", "source": ["# Title"]}, {"cell_type": "code", "source": ["print('seen')"]},
             {"cell_type": "code", "source": [draw]}]  # fmt: skip
    (tmp_path / "small.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    write_markdown(tmp_path / "small.ipynb", tmp_path / "pages", "https://github.com/them/it")
    page = (tmp_path / "pages" / "small.md").read_text("utf-8")
    assert "```text\nseen\n```" in page
    assert "(https://colab.research.google.com/github/them/it/blob/main/notebooks/small.ipynb)" in page
    assert "![What the cell above draws](small-1.svg)" in page
    assert "<svg" in (tmp_path / "pages" / "small-1.svg").read_text("utf-8")
    store_outputs(tmp_path / "small.ipynb")
    _, seen, drawn = json.loads((tmp_path / "small.ipynb").read_text("utf-8"))["cells"]
    assert [output["text"] for output in seen["outputs"]] == [["seen\n"]]
    assert "<svg" in "".join(drawn["outputs"][0]["data"]["image/svg+xml"])
    assert (seen["execution_count"], drawn["execution_count"]) == (1, 2)
