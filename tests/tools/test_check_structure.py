"""Every fault of structure is found in a small package that has it, and none in one that has not."""

import subprocess
from pathlib import Path

import check_structure
import pytest
from source_tree import Module, read_modules

SOUND = {
    "__init__.py": "",
    "low.py": """
        from typing import NamedTuple
        class Row(NamedTuple):
            key: str
        class Table:
            _shared = 1
            def __init__(self):
                self._rows = []
            def join(self, table):
                return self._rows + table._rows + self._merge([self._shared])
            def _merge(self, rows):
                return rows
        """,
    "high.py": """
        import os
        from . import low
        from .low import Row, Table as _Table
        def rename(row: Row):
            _ = _Table()
            return row._replace(key=row.__class__.__name__), low.Table, os._exit
        """,
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tmp_path / "box"


def write(package: Path, files: dict[str, str]) -> dict[str, Module]:
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        path.write_text("\n".join(line[indent:] for line in lines) + "\n", encoding="utf-8")
    return read_modules(package.parent)


def test_nothing_is_found_in_a_sound_package(package: Path) -> None:
    assert list(check_structure.find_all(write(package, SOUND))) == []


@pytest.mark.parametrize(
    ("code", "private"),
    [
        ("from box.low import _hidden", "_hidden"),
        ("from .low import _hidden as shown", "_hidden"),
        ("from . import low\nlow._hidden()", "low._hidden"),
        ("from . import low\n_hidden = low._hidden", "low._hidden"),
        ("import box.low\nbox.low._hidden()", "box.low._hidden"),
        ("def peek(table):\n    return table._rows", "table._rows"),
        ("def peek(table):\n    table._rows = []", "table._rows"),
        ("from .low import Table\nclass Sub(Table):\n    def peek(self):\n        return self._rows", "self._rows"),
    ],
)
def test_a_private_name_of_another_module_is_found(package: Path, code: str, private: str) -> None:
    modules = write(package, SOUND | {"nosy.py": code})
    [finding] = check_structure.find_private_names(modules)
    assert f"{private} " in finding or f"{private}," in finding
    assert "nosy.py:" in finding


def test_a_private_name_on_an_object_is_fine_in_the_module_that_defines_it(package: Path) -> None:
    frozen = "def fill(self):\n    object.__setattr__(self, '_sums', 1)\ndef read(table):\n    return table._sums"
    assert list(check_structure.find_private_names(write(package, {"__init__.py": frozen}))) == []


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(("lines", "found"), [(60, 0), (61, 1)])
def test_a_function_is_long_with_its_signature_and_docstring(package: Path, kind: str, lines: int, found: int) -> None:
    code = f'class Box:\n  {kind} work(\n    a,\n    b,\n  ):\n    """Do."""\n' + "    a += b\n" * (lines - 5)
    findings = list(check_structure.find_long_functions(write(package, {"__init__.py": code})))
    assert len(findings) == found
    assert all("work has 61 lines" in finding for finding in findings)


@pytest.mark.parametrize(
    ("signature", "found"),
    [
        ("self, a, b, c, d, e, f, g, h", 0),
        ("self, a, b, c, d, e, f, g, h, i", 1),
        ("a, /, b, *, c, d, e, f, g, h, i", 1),
        ("a, b, c, d, e, f, *g, **h", 0),
        ("a, b, c, d, e, f, g, *h, **i", 1),
    ],
)
def test_parameters_of_every_kind_are_counted_but_not_self(package: Path, signature: str, found: int) -> None:
    modules = write(package, {"__init__.py": f"def work({signature}): ..."})
    findings = list(check_structure.find_long_signatures(modules))
    assert len(findings) == found
    assert all("work has 9 parameters" in finding for finding in findings)


def test_a_class_name_that_exists_twice_is_found(package: Path) -> None:
    files = {"__init__.py": "class A: ...\nclass B: ...", "more.py": "def f():\n    class A: ..."}
    [finding] = check_structure.find_shared_names(write(package, files))
    assert "more.py:2: class A exists twice" in finding


def test_known_offenders_are_excused_until_they_are_gone() -> None:
    findings = ["src/a.py:7: work has 61 lines, more than 60", "src/a.py:9: play has 9 parameters, more than 8"]
    known = ["src/a.py: work has many lines", "src/a.py: work has many parameters"]
    unknown, gone = check_structure.excuse_known(findings, known)
    assert unknown == findings[1]
    assert gone.startswith(known[1])


@pytest.mark.parametrize(
    ("name", "text", "is_secret"),
    [
        ("operator.token", "a", True),
        ("live.db", "a", True),
        ("notes.txt", f"-----BEGIN {'RSA'} PRIVATE KEY-----", True),
        ("token.py", "a", False),
        ("notes.txt", f"-----BEGIN {'PUBLIC'} KEY-----", False),
    ],
)
def test_secrets_are_found_once_git_tracks_them(tmp_path: Path, name: str, text: str, is_secret: bool) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    for arguments in (["init", "--quiet"], ["add", "--force", name]):
        assert list(check_structure.find_secrets(tmp_path)) == []
        subprocess.run(["git", "-C", tmp_path, *arguments], check=True)
    assert [finding.startswith(name) for finding in check_structure.find_secrets(tmp_path)] == [True] * is_secret


@pytest.mark.parametrize(
    "late",
    [
        "from box.b import f",
        "def g():\n    import box.b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import b",
    ],
)
def test_an_import_cycle_is_found_wherever_the_import_stands(package: Path, late: str) -> None:
    files = {"__init__.py": "", "a.py": late, "b.py": "from . import c", "c.py": "import box.a"}
    [finding] = check_structure.find_cycles(write(package, files))
    assert "import cycle" in finding
    assert all(f"box.{name}" in finding for name in "abc")


def test_two_cycles_are_two_findings(package: Path) -> None:
    pairs = {"a.py": "from . import b", "b.py": "from . import a", "c.py": "from . import d", "d.py": "from . import c"}
    assert len(list(check_structure.find_cycles(write(package, pairs)))) == 2


def test_an_import_of_a_package_is_not_one_of_its_modules(package: Path) -> None:
    files = {"__init__.py": "from .room.a import f", "room/__init__.py": "", "room/a.py": "from box import room"}
    assert list(check_structure.find_cycles(write(package, files))) == []


@pytest.mark.parametrize(("limit", "words"), [("MAX_SOURCE_LINES", "7 lines"), ("MAX_MODULES", "2 modules")])
def test_too_many_lines_and_modules_are_found(
    package: Path, monkeypatch: pytest.MonkeyPatch, limit: str, words: str
) -> None:
    modules = write(package, {"__init__.py": "a = 1\n" * 3, "more.py": "b = 1\n" * 4})
    monkeypatch.setattr(check_structure, limit, int(words.split()[0]))
    assert list(check_structure.find_growth(modules)) == []
    monkeypatch.setattr(check_structure, limit, int(words.split()[0]) - 1)
    [finding] = check_structure.find_growth(modules)
    assert words in finding


def test_a_test_of_a_lower_package_does_not_import_an_upper_one(tmp_path: Path) -> None:
    files = {
        "src/fedcascade/__init__.py": '_HOME = {"play": "high.play", "add": "low.add"}',
        "tests/low/test_a.py": "from fedcascade.high import b\nfrom fedcascade import add",
        "tests/low/test_b.py": "from fedcascade import play",
        "tests/high/test_c.py": "from fedcascade.low import c\nfrom fedcascade.testing import d",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = list(check_structure.find_upward_tests(tmp_path, ("low", "high")))
    assert [finding.partition("tests/")[2] for finding in found] == [
        "low/test_a.py:1: a test of low imports high, a package above it",
        "low/test_b.py:1: a test of low imports high, a package above it",
    ]


def test_the_command_prints_findings_and_fails(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(package, SOUND)
    monkeypatch.setattr(check_structure, "SRC", package.parent)
    monkeypatch.setattr(check_structure, "KNOWN_OFFENDERS", ())
    assert check_structure.main([]) == 0
    write(package, {"nosy.py": "from box.low import _hidden"})
    assert check_structure.main([]) == 1
    monkeypatch.setattr(check_structure, "MAX_SOURCE_LINES", 1)
    assert check_structure.main(["--any-size"]) == 1
    assert "more than 1" not in capsys.readouterr().out
    assert check_structure.main([]) == 1
    printed = capsys.readouterr().out
    assert "more than 1" in printed
    assert "box/nosy.py:1: imports _hidden of box.low" in printed
