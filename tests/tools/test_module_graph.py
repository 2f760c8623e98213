"""The pictures of the rooms show the rooms that there are, and arrows that point downwards."""

import re
from pathlib import Path

import module_graph
import pytest
from module_graph import FIGURES, PICTURES, ROOT
from source_tree import build_graph, read_modules

MODULES = read_modules(ROOT / "src")
PAGES = [ROOT / "docs" / "explanation-architecture.md"]


def test_the_picture_of_the_rooms_is_up_to_date() -> None:
    written = (FIGURES / PICTURES["fedcascade"]).read_text("utf-8")
    assert written == module_graph.draw_package(MODULES, "fedcascade"), "run `make graph`"


@pytest.mark.parametrize("room", PICTURES)
def test_a_picture_names_every_module_of_its_room(room: str) -> None:
    written = (FIGURES / PICTURES[room]).read_text("utf-8")
    names = set(re.findall(r"<text[^>]*>(\w+)</text>", written))
    assert names == set(module_graph.collapse(build_graph(MODULES), room)), "run `make graph`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    names = re.findall(r"`((?:[a-z_]+/)*[\w-]+\.(?:py|js)|(?:[a-z_]+/)+)`", text)
    assert len(names) > 20
    missing = [name for name in names if not any((ROOT / "src" / "fedcascade").rglob(name))]
    assert [name for name in missing if not (ROOT / name).exists()] == []


def test_arrows_that_follow_from_others_are_left_out() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert module_graph.reduce_transitively(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_arrows_point_downwards_and_long_ones_pass_every_row() -> None:
    graph = {"top": {"left", "bottom"}, "left": {"middle"}, "middle": {"bottom"}, "bottom": set(), "apart": set()}
    layout = module_graph.arrange(graph)
    rows = {node: number for number, row in enumerate(layout.rows) for node in row}
    for path in layout.paths:
        assert [rows[node] for node in path] == list(range(rows[path[0]], rows[path[-1]] + 1))
    assert sorted((path[0], path[-1]) for path in layout.paths) == sorted((a, b) for a in graph for b in graph[a])


def test_a_room_is_collapsed_to_its_children() -> None:
    graph = {"p.a.x": {"p.b", "p.a.y", "q"}, "p.a.y": set(), "p.b": {"p.c.z"}, "p.c.z": set(), "q": {"p.b"}}
    assert module_graph.collapse(graph, "p") == {"a": {"b"}, "b": {"c"}, "c": set()}
