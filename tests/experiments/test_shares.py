"""The table of shares: ratios of the right runs at the right checkpoints, and plans that run at a small size."""

from pathlib import Path

import polars as pl
import pytest
from msgspec import structs

from fedcascade.cli.experiments import print_results
from fedcascade.experiments import shares
from fedcascade.experiments.builtin_plans import load_builtin_plan
from fedcascade.experiments.environments import SyntheticSpec
from fedcascade.experiments.intervals import Interval
from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.plan import NamedEnvironment, Plan, resize_plan, select_systems
from fedcascade.experiments.reports.shares_report import HEADER, format_shares, write_report
from fedcascade.experiments.results import Results, read_results
from fedcascade.experiments.runner import execute
from fedcascade.experiments.shares import ALONE, BETAS, DETECTING, KNOWN, NEWCOMERS, OURS, RESTART, STILL, Share

SEEDS = (300, 301)
SLOPES = {RESTART: 2.0, OURS: 3.0, ALONE: 4.0, DETECTING: 5.0, KNOWN: 1.0, BETAS[1]: 6.0, BETAS[2]: 3.5}
MANIFEST = {
    "plans": [], "runs": 1, "rounds": 1, "core_seconds": 1.0, "seconds": 1.0, "fedcascade": "0", "libraries": {},
    "machine": {"processor": "p", "cores": 2, "python": "3", "system": "s"}, "files": {},
}  # fmt: skip


def make_results(plan: Plan, folder: Path) -> Results:
    """Results in which regret grows evenly, twice as fast in the second half; ours is worse at own round 75."""
    curves, runs = [], []
    for planned in list_planned_jobs([resize_plan(plan, seeds=SEEDS)]):
        job, slope = planned.job, SLOPES[planned.system]
        where = {"experiment": plan.name, "environment": planned.environment, "system": planned.system}
        row = where | {"seed": job.seed}
        for number in range(1, job.checkpoints + 1):
            round_ = job.rounds * number // job.checkpoints
            regret = slope * (round_ + max(0, round_ - job.rounds // 2))
            is_worse = planned.system == OURS and plan.per_user and round_ == 75 * getattr(job.environment, "users", 0)
            curves.append(row | {"round": round_, "regret": 2 * regret if is_worse else regret})
        counts = {"exchanges_change": 1 if (planned.environment, job.seed) == (STILL, 300) else 0, "exchanges": 80}
        more = {"newcomer_regret": slope if planned.environment == NEWCOMERS else None, "regret": 3.0}
        runs.append(row | counts | more | {"policy": job.policy, "clusters": 1, "clustering_error": 0.0})
    return Results(folder, MANIFEST, [plan], pl.DataFrame(runs, infer_schema_length=None), pl.DataFrame(curves))


def find(measured: list[Share], quantity: str, where: str) -> Interval:
    (share,) = [each.share for each in measured if (each.quantity, each.where) == (quantity, where)]
    return share


@pytest.mark.parametrize("name", ["population", "rare-clicks"])
def test_plans_play_report_seeds_and_have_a_checkpoint_every_25_own_rounds(name: str) -> None:
    plan = load_builtin_plan(name)
    assert plan.per_user
    for environment in plan.environments:
        assert isinstance(environment.spec, SyntheticSpec)
        seeds, rounds = environment.seeds or plan.seeds, environment.rounds or plan.rounds
        assert min(seeds) >= 300
        assert len(seeds) == (3 if environment.spec.users == 1_000 else 8)
        assert rounds // (environment.checkpoints or plan.checkpoints) == 25
        labels = [system.label for system in select_systems(plan.systems, environment.name)]
        assert sorted(labels) == sorted([OURS, *BETAS])
    default = next(system for system in plan.systems if system.label == ALONE)
    assert default.constants["beta"] == 0.7


def test_shares_are_of_learning_alone_with_its_default_and_its_best_beta(tmp_path: Path) -> None:
    measured = shares.measure_shares(make_results(load_builtin_plan("rare-clicks"), tmp_path))
    few, many = "J = 10, scale 0.2", "1,000 users, J = 10, scale 0.2"
    assert find(measured, "regret after 1,000 own rounds, of fedind", few) == Interval(0.75, 0.0, 2)
    assert find(measured, "regret after 25 own rounds, of fedind, best beta", few).mean == pytest.approx(3 / 3.5)
    assert find(measured, "worst checkpoint from own round 25 on, of fedind", few).mean == pytest.approx(1.5)
    assert find(measured, "exchanges per user", few).mean == 2.0
    assert find(measured, "exchanges per user", many).mean == 0.08
    quantities = [share.quantity for share in measured if share.where == many]
    assert len(quantities) == 2 * (3 + 1) + 1  # 25, 50 and 150 own rounds, and the worst checkpoint
    assert "regret after 500 own rounds, of fedind" not in quantities


def test_shares_of_living_populations_are_of_the_right_runs(tmp_path: Path) -> None:
    measured = shares.measure_shares(make_results(load_builtin_plan("living"), tmp_path))
    abrupt = "abrupt, to new tastes"
    assert find(measured, f"{RESTART}: regret after the change, of {KNOWN}", abrupt).mean == pytest.approx(2.0)
    assert find(measured, f"{OURS}: regret, of {DETECTING}", "gradual").mean == pytest.approx(0.6)
    honest = find(measured, f"{OURS}: honest regret, of that without poisoning", "30% inverters")
    assert honest.mean == pytest.approx(1 / 0.7)
    assert find(measured, f"{RESTART}: regret of first 50 rounds, of {ALONE}", NEWCOMERS).mean == pytest.approx(0.5)
    alarms = find(measured, f"{RESTART}: false alarms per user and 10,000 own rounds", STILL)
    assert alarms.mean == pytest.approx(0.05)
    assert sum("worst checkpoint" in share.quantity for share in measured) == 2


def test_the_report_has_every_line_and_the_totals_of_every_environment(tmp_path: Path) -> None:
    plan = load_builtin_plan("living")
    results = make_results(plan, tmp_path)
    assert shares.has_shares(results)
    path, lines = write_report(results)
    page = path.read_text(encoding="utf-8")
    assert all(len(line) == len(HEADER) for line in lines)
    assert all(environment.name in page for environment in plan.environments)


def test_a_single_run_has_no_interval() -> None:
    lines = format_shares([Share("q", "w", Interval(0.5, float("inf"), 1)), Share("q", "w", Interval(0.5, 0.25, 3))])
    assert lines == [("q", "w", "0.50", "-"), ("q", "w", "0.50", "0.25 to 0.75")]


@pytest.mark.parametrize("name", ["population", "rare-clicks", "living"])
def test_a_small_version_of_each_plan_runs_and_prints_its_table(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = resize_plan(load_builtin_plan(name), rounds=50 if name != "living" else 500, seeds=[300])
    small = structs.replace(plan, checkpoints=2, environments=tuple(_shrink(each) for each in plan.environments))
    execute([small], tmp_path, lambda jobs, _report: ((job, run_job(job)) for job in jobs), lambda _: None)
    print_results(read_results(tmp_path))
    shown = capsys.readouterr().out
    assert "quantity" in shown
    assert shown.endswith(f"report: {tmp_path / 'report.html'}\n")


def _shrink(environment: NamedEnvironment) -> NamedEnvironment:
    spec = environment.spec
    if not isinstance(spec, SyntheticSpec):
        return environment
    users = min(spec.users, 20)
    clusters = spec.clusters if isinstance(spec.clusters, tuple) else min(spec.clusters, users)
    return structs.replace(
        environment, spec=structs.replace(spec, users=users, clusters=clusters, dimension=12, items=15)
    )
