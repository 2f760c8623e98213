"""The commands: results as tables or JSON, bad input in one line with exit code 2, nothing half-written."""

import json
from pathlib import Path

import pytest

from fedcascade.cli import main
from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.plan_reader import read_plan
from fedcascade.experiments.results import save_record

from .conftest import SMALL

SHORT = SMALL.replace("6_000", "300")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    return printed.err


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plan in it, all of whose runs are there already."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(SHORT)
    for planned in list_planned_jobs([read_plan(SHORT)]):
        save_record(tmp_path / "results" / "small", planned.job, run_job(planned.job))
    return tmp_path


def test_json_is_one_run_a_line_in_the_order_of_the_plan(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["experiment", "plan.toml", "--format", "json"])
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [(line["seed"], line["system"]) for line in lines] == [
        (seed, system) for seed in (0, 1) for system in ("fedc3ucb-h", "fedlinucb", "fedind")
    ]
    assert {line["environment"] for line in lines} == {"J = 3"}
    assert printed.err == ""


def test_a_table_and_then_a_report(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["experiment", "plan.toml"])
    table = capsys.readouterr().out
    assert "results: results/small" in table
    assert "fedlinucb" in table
    main(["report", "results/small"])
    assert capsys.readouterr().out == "report: results/small/report.html\n"
    assert (finished / "results" / "small" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["experiment", "nowhere.toml"], "plan 'nowhere.toml' not found"),
        (["experiment", "beyond"], "beyond-paper, figure-1a"),
        (["experiment", "plan.toml", "--ratings", "plan.toml"], "--ratings: plan 'plan.toml' has no environment"),
        (["experiment", "figure-1d", "--ratings", "nowhere.csv"], "nowhere.csv' not found"),
        (["experiment"], "PLAN"),
        (["experiment", "plan.toml", "--jobs", "0"], "jobs"),
        (["experiment", "plan.toml", "--format", "xml"], "--format"),
        (["experiment", "plan.toml", "--address", "auto"], "--address belongs to --scheduler ray"),
        (["experiment", "plan.toml", "--scheduler", "ray", "--jobs", "2"], "--jobs belongs to --scheduler local"),
        (["experiment", "plan.toml", "--out", "plan.toml"], "'plan.toml' cannot hold results"),
        (["report", "nowhere"], "no finished results folder"),
        (["reproduce", "--runs", "0"], "runs"),
        (["reproduce", "--quick", "--ratings", "nowhere.csv"], "nowhere.csv' not found"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(SHORT)
    assert words in refusal(capsys, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


def test_a_wrong_key_names_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(SHORT.replace("checkpoints", "chekpoints"))
    assert "plan.toml line 4: unknown key 'chekpoints': did you mean 'checkpoints'" in refusal(
        capsys, "experiment", "plan.toml"
    )
