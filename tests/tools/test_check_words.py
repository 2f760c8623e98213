"""The check of words finds what was planted, and nothing else. `make check` runs it on the project itself."""

import re
from pathlib import Path

import check_words
import pytest

GOOD = '''"""A module."""


class Agent:
    """An agent of one user."""

    @property
    def name(self) -> str:
        """The name of the agent."""
        return "plain words"


def count_agents() -> int:
    """Return the number of agents."""
    return 1  # the only one
'''


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "module.py").write_text(GOOD, encoding="utf-8")
    return tmp_path


def plant(root: Path, old: str, new: str) -> list[str]:
    """Replace a text of the module, and return the findings."""
    assert old in GOOD
    (root / "src" / "module.py").write_text(GOOD.replace(old, new), encoding="utf-8")
    return list(check_words.check_all(["src"]))


def test_a_clean_module_has_no_finding(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert root.is_dir()
    assert check_words.main(["src"]) == 0
    assert "nothing found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("An agent of one user.", "An agent of whoever uses it.", "whoever"),
        ("the only one", "nobody else", "nobody"),
        ("plain words", "fitted anew", "anew"),
    ],
    ids=["docstring", "comment", "message"],
)
def test_a_planted_word_is_found_with_advice(root: Path, old: str, new: str, word: str) -> None:
    [finding] = plant(root, old, new)
    assert re.fullmatch(rf"src/module\.py:\d+: '{word}': write .+", finding)


def test_code_and_addresses_are_no_prose(root: Path) -> None:
    assert plant(root, "plain words", "the state `room` at https://example.org/world") == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Return the number of agents.", "The number of agents.", "docstring of count_agents starts with 'The'"),
        ("Return the number of agents.", "Returns the number of agents.", "starts with 'Returns'"),
        ("An agent of one user.", "What a user has.", "docstring of Agent starts with 'What', not with a noun"),
    ],
)
def test_a_planted_opening_is_found(root: Path, old: str, new: str, expected: str) -> None:
    [finding] = plant(root, old, new)
    assert expected in finding


def test_an_exception_holds_for_its_file_and_word_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check_words.EXCEPTIONS, "src/module.py", re.compile("room"))
    assert plant(root, "the only one", "the only room") == []
    assert len(plant(root, "the only one", "the only world")) == 1


def test_pages_are_checked_outside_their_code(root: Path) -> None:
    (root / "page.md").write_text("Nobody reads this.\n\n```\nnobody\n```\n", encoding="utf-8")
    [finding] = check_words.check_all(["page.md"])
    assert finding.startswith("page.md:1: 'Nobody'")


@pytest.mark.parametrize(("words", "expected"), [(350, 0), (351, 1)])
def test_a_record_of_a_decision_has_a_limit(root: Path, words: int, expected: int) -> None:
    folder = root / "docs" / "decisions"
    folder.mkdir(parents=True)
    (folder / "0001-a-choice.md").write_text("word " * words, encoding="utf-8")
    assert len(list(check_words.check_all(["docs"]))) == expected
