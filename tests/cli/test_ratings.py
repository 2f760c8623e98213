"""Ratings on the command line: the same world in every command, and one line for bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.cli import main
from fedcascade.environments.matrices import generate_ratings

SMALL = ["--users", "10", "--clusters", "3", "--dimension", "5", "--items", "20"]


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    matrix = generate_ratings(60, 50, seed=3)
    path = tmp_path_factory.mktemp("ratings") / "ratings.csv"
    rows = (f"u{user},i{item},{matrix[user, item]}" for user, item in zip(*np.nonzero(matrix), strict=True))
    path.write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    return path


def run(capsys: pytest.CaptureFixture[str], ratings: Path, *more: str) -> dict[str, Any]:
    main(["run", "--ratings", str(ratings), *SMALL, "--rounds", "400", "--json", "--policy", "fedc3ucb-h", *more])
    printed = capsys.readouterr()
    assert printed.err == ""
    result: dict[str, Any] = json.loads(printed.out)
    result.pop("seconds")
    return result


def test_both_engines_run_ratings_and_agree(ratings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = run(capsys, ratings), run(capsys, ratings, "--engine", "reference")
    assert (fast.pop("engine"), slow.pop("engine")) == ("exact", "reference")
    assert fast == slow


@pytest.mark.parametrize(
    "change",
    [("--preset", "paper"), ("--values", "counts"), ("--seed", "2")],
)
def test_every_option_changes_the_run(
    ratings: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str]
) -> None:
    assert run(capsys, ratings)["regret"] != run(capsys, ratings, *change)["regret"]


def test_columns_are_named(ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(ratings.read_text().replace("user,item,rating", "who,what,how"))
    assert run(capsys, renamed, "--columns", "who,what,how") == run(capsys, ratings)


def test_describe_as_tables_and_as_json(ratings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "describe", str(ratings), *SMALL])
    shown = capsys.readouterr().out
    for words in ("density", "singular values", "cluster gaps", "histogram of ratings", "best list"):
        assert words in shown
    main(["data", "describe", str(ratings), *SMALL, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["file"] == str(ratings)
    assert f"{facts['ratings']['count']:,} by" in shown
    assert len(facts["clusters"]) == 3


@pytest.mark.filterwarnings("default")
def test_a_notice_is_one_line_on_stderr(ratings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lonely = tmp_path / "lonely.csv"
    lonely.write_text(ratings.read_text() + "hermit,cave,0.01\n")
    main(["run", "--ratings", str(lonely), *SMALL, "--rounds", "10", "--policy", "fedind"])
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("fedcascade: left out 1 of")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--ratings", "none.csv"], "there is no file none.csv"),
        (["run", "--ratings", "latin.csv"], "latin.csv, line 2 is not UTF-8 text"),
        (["run", "--ratings", "words.csv"], "words.csv, line 3: the rating must be a number, got 'good'"),
        (["run", "--ratings", "good.csv", "--users", "61"], "users must be <= "),
        (["run", "--ratings", "good.csv", "--users", "9", "--clusters", "10"], "clusters must be <= users (9), got 10"),
        (["run", "--ratings", "good.csv", "--clusters", "5,5"], "clusters must be a whole number"),
        (["run", "--ratings", "good.csv", *SMALL[:6], "--items", "51"], "items must be <= "),
        (["run", "--ratings", "good.csv", *SMALL[:4], "--dimension", "60"], "rank >= 60"),
        (
            ["run", "--ratings", "good.csv", "--features", "gaussian"],
            "--features: only for a synthetic environment",
        ),
        (["run", "--ratings", "good.csv", "--columns", "user,item"], "columns must be three names"),
        (["run", "--ratings", "good.csv", "--columns", "user,item,stars"], "has no column stars for rating"),
        (["run", "--ratings", "good.csv", "--selection", "nestled"], "did you mean 'nested'"),
        (["run", "--ratings", "good.csv", "--top-users", "many"], "top_users must be a whole number"),
        (["run", "--ratings", "good.csv", "--threshold", "high"], "threshold must be a number"),
        (["run", "--preset", "paper"], "--preset: belongs to --ratings FILE"),
        (["data", "describe", "none.csv"], "there is no file none.csv"),
        (["data", "describe", "words.csv", "--json"], "words.csv, line 3"),
        (["data", "describe", "good.csv", "--users", "61"], "users must be <= "),
        (["data", "describe", "good.csv", *SMALL, "--list-length", "21"], "list length must be <= items (20), got 21"),
        (["data", "describe"], "FILE"),
        (["data", "fetch", "netflix"], "netflix"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(
    ratings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_bytes(ratings.read_bytes())
    Path("latin.csv").write_bytes("user,item,rating\né,1,5\n".encode("latin-1"))
    Path("words.csv").write_text("user,item,rating\n1,1,5\n1,2,good\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.out, len(printed.err.splitlines())) == (2, "", 1)
    assert complaint in printed.err
    assert sorted(tmp_path.iterdir()) == before
