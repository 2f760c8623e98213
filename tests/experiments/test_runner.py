"""Runs in parallel processes: what one process would have found, each kept as it ends, none played twice."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec
import polars as pl
import pytest
from msgspec import structs

from fedcascade import Synthetic, get_policy, simulate
from fedcascade.experiments import results
from fedcascade.experiments.jobs import Job, Record, list_planned_jobs, run_job
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.plan_reader import load_plan, read_plan
from fedcascade.experiments.reports.summary import describe_effort, write_report
from fedcascade.experiments.results import make_table
from fedcascade.experiments.runner import (
    Progress,
    ReportRounds,
    Scheduler,
    collect,
    defer_interrupts,
    execute,
    make_local_scheduler,
    run_plan,
)
from fedcascade.learning.exploration import EpsilonMixed

from .conftest import SMALL, resize_plan

TABLES = (results.RUNS, results.CURVES)
KILL_SEED = 14


def make_recording_scheduler(played: list[Job], stop_after: int | None = None) -> Scheduler:
    """Make a scheduler that runs jobs in this process, lists them, and may stop like a machine that loses power."""

    def scheduler(jobs: Sequence[Job], report: ReportRounds) -> Iterator[tuple[Job, Record]]:
        for job in jobs:
            if stop_after is not None and len(played) == stop_after:
                raise KeyboardInterrupt
            played.append(job)
            yield job, run_job(job)
            report(job.rounds * len(played))

    return scheduler


def read_tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


def test_the_tables_hold_what_simulate_finds(small_folder: Path) -> None:
    runs = pl.read_parquet(small_folder / results.RUNS)
    curves = pl.read_parquet(small_folder / results.CURVES)
    assert runs.shape[0] == 6
    for row in runs.iter_rows(named=True):
        world = Synthetic(users=12, clusters=3, dimension=6, items=20, seed=row["seed"])
        tuned = get_policy(row["policy"]).with_known_constants({"beta": 5.0, "alpha_d": 1.5})
        trace = simulate(world, tuned, rounds=6_000, checkpoints=12)
        assert (row["regret"], row["reward"], row["exchanges"]) == (trace.regret, trace.reward, trace.communications())
        assert row["exchanges"] == row["exchanges_determinant"] + row["exchanges_auxiliary"] + row["exchanges_forced"]
        assert (
            row["environment_users"],
            row["environment_clusters"],
            row["environment_dimension"],
            row["environment_items"],
        ) == (12, 3, 6, 20)
        assert row["constant_alpha_d"] == tuned.constants().get("alpha_d")
        own = curves.filter((pl.col("label") == row["label"]) & (pl.col("seed") == row["seed"]))
        assert own["regret"].to_list() == [point.regret for point in trace.curve]
        assert own["clustering_error"].to_list() == [point.clustering_error for point in trace.curve]


def test_one_process_or_several_give_the_same_files(small_plan: Plan, small_folder: Path, tmp_path: Path) -> None:
    execute([small_plan], tmp_path, make_recording_scheduler([]), lambda _: None)
    assert read_tables(tmp_path) == read_tables(small_folder)


def test_a_stopped_experiment_goes_on_where_it_was(small_plan: Plan, small_folder: Path, tmp_path: Path) -> None:
    first: list[Job] = []
    with pytest.raises(KeyboardInterrupt):
        execute([small_plan], tmp_path, make_recording_scheduler(first, stop_after=4), lambda _: None)
    assert not (tmp_path / results.RUNS).exists()
    assert len(list((tmp_path / "runs").iterdir())) == 4
    second: list[Job] = []
    execute([small_plan], tmp_path, make_recording_scheduler(second), lambda _: None)
    assert len(second) == 2
    assert not {job.key for job in first} & {job.key for job in second}
    assert read_tables(tmp_path) == read_tables(small_folder)


def test_a_finished_experiment_plays_nothing(small_plan: Plan, small_folder: Path) -> None:
    before, played = read_tables(small_folder), list[Job]()
    execute([small_plan], small_folder, make_recording_scheduler(played), lambda _: None)
    assert played == []
    assert read_tables(small_folder) == before


def test_more_seeds_play_the_new_ones_alone(small_plan: Plan, tmp_path: Path) -> None:
    plan = resize_plan(small_plan, rounds=200)
    execute([plan], tmp_path, make_recording_scheduler([]), lambda _: None)
    played: list[Job] = []
    execute([resize_plan(plan, seeds=range(3))], tmp_path, make_recording_scheduler(played), lambda _: None)
    assert [job.seed for job in played] == [2, 2, 2]


def test_runs_that_two_plans_share_are_played_once(small_plan: Plan, tmp_path: Path) -> None:
    played: list[Job] = []
    plan = resize_plan(small_plan, rounds=200)
    again = read_plan(SMALL.replace('"small"', '"again"').replace("6_000", "200"))
    assert len(execute([plan, again], tmp_path, make_recording_scheduler(played), lambda _: None)) == 12
    assert len(played) == 6
    assert pl.read_parquet(tmp_path / results.RUNS).shape[0] == 12


def test_progress_counts_what_was_there_before(small_plan: Plan, tmp_path: Path) -> None:
    plan, seen = resize_plan(small_plan, rounds=200), list[Progress]()
    with pytest.raises(KeyboardInterrupt):
        execute([plan], tmp_path, make_recording_scheduler([], stop_after=2), lambda _: None)
    execute([plan], tmp_path, make_recording_scheduler([]), seen.append)
    assert seen[0] == Progress(2, 6, 400, 1_200)
    assert seen[-1] == Progress(6, 6, 1_200, 1_200)


def test_live_progress_of_processes_reaches_all_rounds(small_plan: Plan, tmp_path: Path) -> None:
    seen: list[Progress] = []
    execute([resize_plan(small_plan, rounds=2_000)], tmp_path, make_local_scheduler(workers=2), seen.append)
    assert seen[-1].rounds == seen[-1].all_rounds == 12_000
    assert [now.rounds for now in seen] == sorted(now.rounds for now in seen)


def test_an_environment_that_cannot_be_built_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    plan = read_plan(SMALL.replace("clusters = 3", "clusters = 13"))
    with pytest.raises(ValueError, match="clusters"):
        execute([plan], tmp_path / "out", make_recording_scheduler([]), lambda _: None)
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_does_not_lose_those_that_ended(small_plan: Plan, tmp_path: Path) -> None:
    plan = resize_plan(small_plan, rounds=200)
    # A list length that the reader of plans would refuse, in runs that take less time and so come last.
    bad = structs.replace(resize_plan(plan, rounds=100), name="bad", list_length=21)
    with pytest.raises(ValueError, match="list length"):
        execute([plan, bad], tmp_path, make_local_scheduler(workers=1), lambda _: None)
    assert len(list((tmp_path / "runs").iterdir())) == 6


def test_the_manifest_says_what_was_run_and_how(small_plan: Plan, small_folder: Path) -> None:
    manifest = json.loads((small_folder / results.MANIFEST).read_text())
    assert manifest["runs"] == 6
    assert manifest["rounds"] == 36_000
    assert manifest["plans"][0]["seeds"] == [0, 1]
    assert manifest["plans"][0]["policies"][0]["constants"]["alpha_d"] == 1.5
    assert manifest["libraries"]["polars"] == pl.__version__
    assert results.read_results(small_folder).plans == [small_plan]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a results folder"):
        results.read_results(tmp_path)


def test_a_record_that_is_there_is_whole(small_plan: Plan, small_folder: Path) -> None:
    for planned in list_planned_jobs([small_plan]):
        record = results.load_record(small_folder, planned.job)
        assert record is not None
        assert record["key"] == planned.job.key
        assert len(record["curve"]) == 12
    assert not [path for path in small_folder.rglob("*") if path.name.startswith(".")]


def make_command(plan: Path, folder: Path) -> list[str]:
    return [sys.executable, "-m", "fedcascade", "experiment", str(plan), "--out", str(folder), "--jobs", "2"]


def kill_after_runs(count: int, folder: Path, command: list[str], deadline: float) -> bool:
    """Start a command and kill it once that many runs are saved; returns whether it was still at work."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None and len(list(folder.glob("runs/*.json"))) < count:
            assert time.monotonic() < deadline, f"{count} runs were not saved in time"
            time.sleep(0.002)
        was_at_work = process.poll() is None
        process.kill()
        process.wait()
    finally:
        wait_until_group_ends(process.pid)
    return was_at_work


def wait_until_group_ends(group: int) -> None:
    """Wait until the workers of a killed parent have ended by themselves."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
    pytest.fail("workers outlived their parent by ten seconds")


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_killed_at_random_moments_the_results_are_those_of_an_unbroken_run(tmp_path: Path, kills: int) -> None:
    plan, unbroken, broken = (tmp_path / name for name in ("plan.toml", "unbroken", "broken"))
    plan.write_text(SMALL.replace("6_000", "15_000").replace("seeds = 2", "seeds = 4"))
    subprocess.run(make_command(plan, unbroken), stdout=subprocess.DEVNULL, check=True, timeout=300)
    runs = len(list(unbroken.glob("runs/*.json")))
    counts = sorted(random.Random(KILL_SEED).choices(range(runs), k=kills))
    print(f"seed {KILL_SEED}: killed when {counts} of {runs} runs were saved")
    deadline = time.monotonic() + 60 * kills
    for count in counts:
        while not kill_after_runs(count, broken, make_command(plan, broken), deadline):
            assert read_tables(broken) == read_tables(unbroken)  # it got to the end: start afresh
            shutil.rmtree(broken)
    subprocess.run(make_command(plan, broken), stdout=subprocess.DEVNULL, check=True, timeout=300)
    assert read_tables(broken) == read_tables(unbroken)


def wait_for_records(folder: Path, count: int, process: "subprocess.Popen[str]", seconds: float = 200.0) -> None:
    """Wait until a process has saved so many runs."""
    end = time.monotonic() + seconds
    while len(list((folder / "runs").glob("*.json"))) < count:
        assert time.monotonic() < end, "no run was saved in time"
        assert process.poll() is None, "the command ended too soon"
        time.sleep(0.01)


def test_ctrl_c_says_how_many_runs_are_kept_and_the_same_command_goes_on(tmp_path: Path) -> None:
    plan, folder = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(SMALL.replace("seeds = 2", "seeds = 400"), encoding="utf-8")
    command = [sys.executable, "-m", "fedcascade", "experiment", str(plan), "--out", str(folder), "--jobs", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_for_records(folder, 3, process)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    kept = len(list((folder / "runs").glob("*.json")))
    assert process.returncode == 130
    assert complaint.splitlines()[-1] == (
        f"fedcascade: interrupted: {kept} of 1200 runs saved; run the same command again to resume"
    )
    assert "Traceback" not in complaint
    assert len(results.read_results(folder).runs) == kept >= 3


def test_ctrl_c_leaves_no_future_locked() -> None:
    """A thread of the pool cancels what is left, and the process ends when it has."""
    futures: list[Future[None]] = [Future() for _ in range(50_000)]
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    for hundredth in range(1, 16):
        signal.setitimer(signal.ITIMER_REAL, hundredth / 100)
        with pytest.raises(KeyboardInterrupt), defer_interrupts() as check:
            next(collect(dict.fromkeys(futures), lambda: None, check))
    signal.signal(signal.SIGALRM, previous)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    canceller = threading.Thread(target=lambda: [future.cancel() for future in futures], daemon=True)
    canceller.start()
    canceller.join(timeout=30)
    assert not canceller.is_alive()


def test_an_unfinished_folder_is_read_as_far_as_it_is_and_one_that_ends_forgets_it(
    small_plan: Plan, tmp_path: Path
) -> None:
    plan = resize_plan(small_plan, rounds=200)
    with pytest.raises(KeyboardInterrupt, match="4 of 6 runs saved; run the same command again to resume"):
        execute([plan], tmp_path, make_recording_scheduler([], stop_after=4), lambda _: None)
    unfinished = results.read_results(tmp_path)
    assert (unfinished.planned, len(unfinished.runs), unfinished.plans) == (6, 4, [plan])
    assert "4 of 6 planned runs" in describe_effort(unfinished)
    assert re.search(r" rounds in \d+\.\d seconds of processor time ", describe_effort(unfinished))
    assert "4 of 6 planned runs" in write_report(unfinished).read_text(encoding="utf-8")
    execute([plan], tmp_path, make_recording_scheduler([]), lambda _: None)
    whole = results.read_results(tmp_path)
    assert (whole.planned, len(whole.runs)) == (None, 6)


@pytest.mark.parametrize("content", ["{", "[]", '{"key": "another"}', "\xff"])
def test_a_corrupt_record_is_named(content: str, small_plan: Plan, tmp_path: Path) -> None:
    plan = resize_plan(small_plan, rounds=200)
    job = list_planned_jobs([plan])[0].job
    path = tmp_path / "runs" / f"{job.key}.json"
    path.parent.mkdir()
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=f"{job.key}.json' .*: delete it|{job.key}.json' .*; delete it"):
        execute([plan], tmp_path, make_recording_scheduler([]), lambda _: None)


def test_a_run_is_there_as_it_ends_long_before_the_last(small_plan: Plan) -> None:
    jobs = [planned.job for planned in list_planned_jobs([resize_plan(small_plan, rounds=60_000)])]
    seen: list[int] = []
    runs = make_local_scheduler(workers=1)(jobs, seen.append)
    next(iter(runs))
    assert seen[-1] <= 3 * 60_000  # of six runs; in between the report comes every fifth of a second
    runs.close()  # type: ignore[attr-defined]


OWN = """
from dataclasses import dataclass
from fedcascade import Policy
from fedcascade.constants import constant
from fedcascade.federation.decisions import DownloadAndBuffer
from fedcascade.federation.grouping.partition import Everyone
from fedcascade.federation.messages import Cause
from fedcascade.federation.triggers import Trigger

@dataclass(frozen=True, kw_only=True)
class EveryN(Trigger):
    n: int = constant(50, meaning="arrivals between two exchanges")

    def cause(self, occasion):
        return Cause.FORCED if occasion.arrivals % self.n == 0 else None

punctual = Policy("punctual", Everyone(), EveryN(), DownloadAndBuffer())
other = "no policy"
"""
OWN_PLAN = (
    SMALL.replace("6_000", "300")
    + """
[[policies]]
name = "mine.py:punctual"
constants = { beta = 1.0 }
grid = { n = [5, 20] }

[[policies]]
name = "fedind"
label = "fedind, epsilon"
oracle = "epsilon"
set_oracle = { epsilon = 0.2 }
"""
)


@pytest.mark.filterwarnings("ignore:the exact engine does not support")
def test_a_plan_names_a_policy_of_a_file_beside_it_and_an_oracle_of_a_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "plan.toml").write_text(OWN_PLAN, encoding="utf-8")
    found = run_plan(tmp_path / "plan.toml", tmp_path / "out", workers=2)
    totals = {label: rows for (label,), rows in found.runs.sort("seed").group_by("label")}
    assert len(totals) == 6
    assert (totals["punctual n=5"]["exchanges"] > totals["punctual n=20"]["exchanges"]).all()
    assert (totals["fedind, epsilon"]["regret"] != totals["fedind"]["regret"]).all()
    world = Synthetic(users=12, clusters=3, dimension=6, items=20, seed=1)
    mixed = simulate(world, get_policy("fedind"), rounds=300, oracle=EpsilonMixed(length=4, epsilon=0.2))
    assert totals["fedind, epsilon"]["regret"][1] == mixed.regret
    played: list[Job] = []
    execute(found.plans, tmp_path / "out", make_recording_scheduler(played), lambda _: None)
    assert played == []
    (tmp_path / "mine.py").write_text(OWN.replace("% self.n == 0", "% self.n == 1"), encoding="utf-8")
    other = subprocess.run(
        [sys.executable, "-c", COUNT_KEYS, str(tmp_path / "plan.toml")], capture_output=True, text=True, check=True
    )
    keys = {planned.job.key for planned in list_planned_jobs(found.plans)}
    assert len(keys - set(other.stdout.split())) == 4  # those of the changed file alone


COUNT_KEYS = """
import sys
from pathlib import Path
from fedcascade.experiments.jobs import list_planned_jobs
from fedcascade.experiments.plan_reader import load_plan
print(*(planned.job.key for planned in list_planned_jobs([load_plan(Path(sys.argv[1]))])))
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine.py:nothing", "must be a Policy, got nothing of that name"),
        ("mine.py:other", "must be a Policy, got a str"),
        ("gone.py:punctual", "cannot import .*gone.py' for a policy: FileNotFoundError"),
        ("no_such_module:punctual", "cannot import 'no_such_module' for a policy: ModuleNotFoundError"),
    ],
)
def test_a_policy_that_is_not_there_is_refused_with_its_line(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "plan.toml").write_text(OWN_PLAN.replace("mine.py:punctual", name), encoding="utf-8")
    with pytest.raises(ValueError, match=f"plan.toml line 20: .*{words}"):
        load_plan(tmp_path / "plan.toml")


def test_policies_are_given_as_objects(small_plan: Plan, tmp_path: Path) -> None:
    plan = resize_plan(small_plan, rounds=200)
    eager = get_policy("fedlinucb").with_constants(alpha_c=0.1)
    found = run_plan(plan, tmp_path, policies={"eager": eager}, workers=1)
    rows = found.runs.filter(pl.col("label") == "eager").sort("seed")
    world = Synthetic(users=12, clusters=3, dimension=6, items=20, seed=0)
    assert rows["regret"][0] == simulate(world, eager, rounds=200).regret
    with pytest.raises(ValueError, match="policy 'fedind' is in the plan already"):
        run_plan(plan, tmp_path, policies=[get_policy("fedind")])
    with pytest.raises(ValueError, match="policies must be Policy objects, got a str"):
        run_plan(plan, tmp_path, policies={"a": "fedind"})  # type: ignore[arg-type]


def test_the_keys_of_old_results_are_still_those_of_their_runs(small_plan: Plan) -> None:
    """A folder of results outlives the fields that jobs got since."""
    plain = list_planned_jobs([small_plan])[0].job
    old = {name: getattr(plain, name) for name in plain.__struct_fields__ if name not in {"source", "digest"}}
    encoded = msgspec.json.encode(msgspec.defstruct("Job", list(old), kw_only=True)(**old), order="deterministic")
    assert plain.key == hashlib.sha256(encoded).hexdigest()[:20]


def test_columns_of_constants_hold_numbers_or_words_and_nulls() -> None:
    table = make_table([{"a": 1, "b": 0.5}, {"a": "inf", "c": 2}, {"b": 3}])
    assert table.to_dicts() == [
        {"a": "1", "b": 0.5, "c": None},
        {"a": "inf", "b": None, "c": 2},
        {"a": None, "b": 3.0, "c": None},
    ]
