"""The commands: results as tables or JSON, bad input in one line with exit code 2, nothing half-written."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedcascade.cli import main, progress
from fedcascade.cli.experiments import BUILTIN_PLANS, print_results
from fedcascade.experiments import paper_claims, runner
from fedcascade.experiments.comparisons import HEADER
from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.plan import NamedEnvironment, Plan
from fedcascade.experiments.plan_reader import (
    list_builtin_plans,
    load_builtin_plan,
    load_plan,
    read_plan,
)
from fedcascade.experiments.results import read_results, save_record
from fedcascade.experiments.runner import Progress, execute

from ..experiments.conftest import SMALL, resize_plan
from ..experiments.test_plan import GOOD

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
    main(["experiment", "plan.toml", "--json"])
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [(line["seed"], line["label"]) for line in lines] == [
        (seed, policy) for seed in (0, 1) for policy in ("fedc3ucb-h", "fedlinucb", "fedind")
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
        (["experiment", "beyond"], "figure-1a, figure-1bc"),
        (["experiment", "plan.toml", "--ratings", "plan.toml"], "--ratings: plan 'plan.toml' has no environment"),
        (["experiment", "figure-1d", "--ratings", "nowhere.csv"], "nowhere.csv' not found"),
        (["experiment"], "PLAN"),
        (["experiment", "plan.toml", "--jobs", "0"], "jobs"),
        (["experiment", "plan.toml", "--address", "auto"], "--address belongs to --scheduler ray"),
        (["experiment", "plan.toml", "--scheduler", "ray", "--jobs", "2"], "--jobs belongs to --scheduler local"),
        (["experiment", "plan.toml", "--out", "plan.toml"], "'plan.toml' cannot hold results"),
        (["report", "nowhere"], "is not a results folder"),
        (["reproduce", "--runs", "0"], "runs"),
        (["reproduce", "--quick", "--ratings", "nowhere.csv"], "nowhere.csv' not found"),
        (["reproduce", "--quick", "--strict"], "leave one of them out"),
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


def test_the_help_names_every_built_in_plan() -> None:
    assert ", ".join(list_builtin_plans()) == BUILTIN_PLANS


@pytest.fixture
def reproduction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The paper's synthetic worlds in 60 rounds a run, in this process: to start others takes longer."""
    monkeypatch.chdir(tmp_path)
    load = paper_claims.load_paper_plans

    def load_short_plans(**options: Any) -> list[Plan]:
        return [resize_plan(plan, rounds=60) for plan in load(**options)[:2]]

    monkeypatch.setattr(paper_claims, "load_paper_plans", load_short_plans)
    monkeypatch.setattr(
        runner, "make_local_scheduler", lambda **_: lambda jobs, _report: ((job, run_job(job)) for job in jobs)
    )
    return tmp_path


def test_a_reproduction_says_what_came_out(
    reproduction: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(["reproduce", "--quick"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("With 10 clusters, FedC3UCB-H has ")
    blocks = "\n".join(lines).split("\n\n")
    assert len(blocks[1].splitlines()) == 8  # two lines of header, a rule, five policies
    assert re.findall(r"^(\w+) +\d+% ", blocks[2], re.MULTILINE) == ["FedLinUCB", "FedInd", "NoAuxiliary", "ForceComm"]
    assert "verdict" not in blocks[2]  # runs of 60 rounds are not judged
    assert "# FedC3UCB-H" in blocks[3]
    assert "beta 10.5" in " ".join(blocks[4].split())
    assert lines[-1] == "All claims, figures and constants: results/paper/report.html"
    assert (reproduction / "results" / "paper" / "claims.json").is_file()


def test_a_strict_reproduction_fails_where_a_claim_is_not_confirmed(
    reproduction: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "--runs", "1", "--strict"])
    assert stopped.value.code == 1
    *_, tally, unconfirmed = capsys.readouterr().err.splitlines()
    assert tally == "strict: 0 of 12 claims confirmed"
    assert "J = 10, FedC3UCB-H: less regret than FedLinUCB (not judged)" in unconfirmed


def test_a_strict_reproduction_ends_well_where_all_claims_of_the_list_are_confirmed(
    reproduction: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = paper_claims.judge_claims
    monkeypatch.setattr(
        paper_claims,
        "judge_claims",
        lambda results: [claim._replace(verdict="confirmed") for claim in judge(results)],
    )
    main(["reproduce", "--runs", "1", "--strict"])
    assert capsys.readouterr().err.splitlines()[-1] == "strict: 12 of 12 claims confirmed"


FIRST_LINE = """
import sys
from fedcascade.cli import main

class Watch:
    def write(self, text):
        heavy = [name for name in ("numba", "polars", "matplotlib", "numpy") if name in sys.modules]
        print(text.strip(), heavy, flush=True)
        raise KeyboardInterrupt

    def flush(self):
        pass

    def isatty(self):
        return False

sys.stderr = Watch()
main(["reproduce", "--quick", "--out", "nothing-is-written"])
"""


def test_the_first_line_comes_before_anything_slow(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", FIRST_LINE], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    line = process.stdout.splitlines()[0]
    assert "five policies, J = 5 and J = 10, 1,000,000 rounds a run" in line
    assert line.endswith("[]")
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_lines_say_how_far_runs_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.show_runs() as show:
        for now in (
            Progress(2, 20, 200, 2_000),
            Progress(3, 20, 500, 2_000),
            Progress(9, 20, 1_000, 2_000),
            Progress(20, 20, 2_000, 2_000),
        ):
            show(now)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("2 of 20 runs: getting ready (compiles once")
    assert second == "3 of 20 runs: 25% of all rounds"
    assert third.startswith("9 of 20 runs: 50% of all rounds, about ")
    assert third.endswith(" left")


def test_without_a_terminal_lines_are_far_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.show_runs() as show:
        for rounds in range(1_000):
            show(Progress(0, 20, rounds, 2_000))
    assert len(capsys.readouterr().err.splitlines()) == 1


COMPARED = ["living", "many-users", "population", "rare-clicks", "ratings", "sensitivity"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", COMPARED)
def test_a_small_version_of_each_plan_runs_and_prints_its_table(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = resize_plan(load_builtin_plan(name), rounds=500 if name in ("living", "many-users") else 50, seeds=[300])
    small = structs.replace(plan, checkpoints=2, environments=tuple(_shrink(each) for each in plan.environments))
    execute([small], tmp_path, lambda jobs, _report: ((job, run_job(job)) for job in jobs), lambda _: None)
    print_results(read_results(tmp_path))
    shown = capsys.readouterr().out
    assert all(word in shown for word in HEADER[:4])
    assert shown.endswith(f"for figures: fedcascade report {tmp_path}\n")


def _shrink(environment: NamedEnvironment) -> NamedEnvironment:
    spec = environment.spec
    if spec.kind != "synthetic":
        return environment
    users = min(spec.options["users"], 20)
    sizes = {"users": users, "clusters": min(spec.options["clusters"], users), "dimension": 22, "items": 15}
    return structs.replace(environment, spec=structs.replace(spec, options=spec.options | sizes))


def test_builtin_plans_are_found_by_name_and_files_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list_builtin_plans():
        assert load_plan(Path(name)) == load_builtin_plan(name)
        assert name in BUILTIN_PLANS.split(", ")
    assert len(list_builtin_plans()) == len(BUILTIN_PLANS.split(", "))
    Path("living").mkdir()  # as a folder of results may be called
    assert load_plan(Path("living")).name == "living"
    Path("figure-1a").write_text(GOOD)
    assert load_plan(Path("figure-1a")).name == "good"
    with pytest.raises(ValueError, match=f"plan 'beyond' not found: .*{', '.join(list_builtin_plans())}"):
        load_plan(Path("beyond"))
