"""The documentation runs: its Python blocks, its commands, and every name that it points to.

A page runs from top to bottom in a folder of its own. A ``python`` block runs, all blocks of a page in one namespace; a
``text`` block right after it is what it prints. A ``toml`` block that starts with a file's name in a comment is that
file. A ``console`` block that starts with ``$ fedcascade`` runs, and what follows is what it prints; ``...`` stands for
what depends on the machine, and line breaks may be moved.
"""

import ast
import doctest
import inspect
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fedcascade.cli import main
from fedcascade.federation.policies import get_policy, load_policies

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAP = ROOT / "docs" / "reference-paper-to-code.md"
TUTORIAL = ROOT / "docs" / "tutorial-write-a-policy.md"

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REFERENCE = re.compile(r"`(fedcascade[\w.]*):([A-Za-z_][\w.]*)`")
FILE = re.compile(r"# ([\w-]+\.toml)\n")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(hit[1], hit[2], text.count("\n", 0, hit.start()) + 2) for hit in FENCE.finditer(text)]


def commands(program: str) -> list[object]:
    return [
        pytest.param(block, id=f"{page.name}:{block.line}")
        for page in PAGES
        for block in blocks(page)
        if block.language == "console" and block.text.startswith(f"$ {program} ")
    ]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def assert_prints(printed: str, promised: str, where: str) -> None:
    agrees = doctest.OutputChecker().check_output(promised, printed, LOOSELY)
    assert agrees, f"{where} prints\n{printed}\nbut the page says\n{promised}"


@pytest.fixture
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def runs(block: Block) -> bool:
    return block.language == "python" or (block.language == "console" and block.text.startswith("$ fedcascade "))


@pytest.mark.usefixtures("_no_terminal")
@pytest.mark.parametrize("page", [page for page in PAGES if any(map(runs, blocks(page)))], ids=named)
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    found = blocks(page)
    for block, after in zip(found, [*found[1:], None], strict=True):
        if named_file := FILE.match(block.text):
            Path(named_file[1]).write_text(block.text, encoding="utf-8")
        if not runs(block):
            continue
        where, promised = f"{page.name}:{block.line}", None
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)
            promised = after.text if after is not None and after.language == "text" else None
        else:
            asked, promised = split_command(block)
            main(shlex.split(asked)[1:])
        printed = capsys.readouterr().out
        if promised is not None:
            assert_prints(printed, promised, where)


@pytest.mark.long
@pytest.mark.usefixtures("_no_terminal")
@pytest.mark.parametrize("block", commands("make"))
def test_make_demo_prints_what_the_page_says(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    asked, promised = split_command(block)
    recipe = subprocess.run(
        [*shlex.split(asked), "--dry-run"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.replace("\\\n", " ")
    line = next(line for line in recipe.splitlines() if "/fedcascade " in line)
    main(shlex.split(line)[1:])
    assert_prints(capsys.readouterr().out, promised, asked)


def split_command(block: Block) -> tuple[str, str]:
    """The command, which a backslash at a line's end continues, and what the page says it prints."""
    asked, _, promised = block.text.removeprefix("$ ").replace("\\\n", " ").partition("\n")
    return asked, promised


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_names_in_the_code_live_where_the_page_says(page: Path) -> None:
    wrong = [
        f"{module}:{name}"
        for module, name in REFERENCE.findall(page.read_text("utf-8"))
        if not lives_in(module, name.split("."))
    ]
    assert wrong == []


def test_a_name_that_is_not_there_or_lives_elsewhere_is_noticed() -> None:
    agent = "fedcascade.federation.agent"
    assert lives_in(agent, ["LocalState", "buffer"])
    assert lives_in(agent, ["ShownList", "items"])
    assert lives_in("fedcascade.federation.policies", ["POLICIES"])
    assert not lives_in(agent, ["Agent", "no_such_name"])
    assert not lives_in(agent, ["NoSuchName"])
    assert not lives_in(agent, ["Upload"]), "imported there, defined elsewhere"
    assert not lives_in("fedcascade", ["Agent"]), "offered there, defined elsewhere"


def lives_in(module: str, names: list[str]) -> bool:
    """Whether a module's own source defines the first name, and whether the others lead somewhere from there."""
    owner = import_module(module)
    return names[0] in defined_names(owner) and resolves(owner, names)


def defined_names(module: ModuleType) -> set[str]:
    """The functions, classes and variables that a module's own statements define; what it imports is not among them."""
    defined: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return defined


def resolves(owner: object, names: list[str]) -> bool:
    """Whether an attribute is there; of a class, also one that its methods set on ``self``."""
    first, rest = names[0], names[1:]
    if hasattr(owner, first):
        return not rest or resolves(getattr(owner, first), rest)
    return isinstance(owner, type) and not rest and first in instance_attributes(owner)


def instance_attributes(owner: type) -> set[str]:
    found: set[str] = set()
    for kind in owner.__mro__[:-1]:
        found |= set(inspect.get_annotations(kind))
        if kind.__module__.startswith("fedcascade"):
            found |= {
                node.attr
                for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            }
    return found


@pytest.mark.parametrize(
    ("heading", "lines"),
    [("Algorithm 1", 13), ("Algorithm 2", 19), ("Algorithm 3", 13), ("ForceComm", 10), ("ForceComm-LocalAgent", 19)],
)
def test_the_map_has_every_line_of_an_algorithm(heading: str, lines: int) -> None:
    section = re.split(r"^## ", MAP.read_text("utf-8"), flags=re.MULTILINE)
    [body] = [part for part in section if re.match(rf"{re.escape(heading)}(?![\w-])", part)]
    rows = re.findall(r"^\| (\d+)(?:-(\d+))? \|", body, flags=re.MULTILINE)
    covered = [line for first, last in rows for line in range(int(first), int(last or first) + 1)]
    assert covered == list(range(1, lines + 1))


def test_the_tutorials_plug_in_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [offer] = [tomllib.loads(block.text) for block in blocks(TUTORIAL) if block.language == "toml"]
    entries = offer["project"]["entry-points"]["fedcascade.policies"]
    code = "\n".join(
        block.text for block in blocks(TUTORIAL) if block.language == "python" and "simulate(" not in block.text
    )
    modules = {value.partition(":")[0] for value in entries.values()}
    for module in modules:
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
    info = tmp_path / "plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n", encoding="utf-8")
    listed = "\n".join(f"{name} = {value}" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[fedcascade.policies]\n{listed}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_policies.cache_clear()
    try:
        assert {get_policy(name).name for name in entries} == set(entries)
    finally:
        load_policies.cache_clear()
        for module in modules:
            sys.modules.pop(module, None)
