"""The sensitivity to constants: every change is measured against the runs that it belongs to."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedcascade.cli.experiments import print_results
from fedcascade.experiments import sensitivity
from fedcascade.experiments.builtin_plans import load_builtin_plan
from fedcascade.experiments.intervals import estimate_mean
from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.paper_claims import OURS, TEN
from fedcascade.experiments.plan import Plan, resize_plan, select_systems
from fedcascade.experiments.reports import sensitivity_report
from fedcascade.experiments.results import Results, read_results
from fedcascade.experiments.runner import execute

from .reports.test_reports import read

CHANGES = [f"{name}={value}" for name, value in (
    ("lambda", 2.0), ("lambda", 8.0), ("alpha_c", 0.5), ("alpha_c", 2.0), ("alpha_d", 3.5), ("alpha_d", 14.0),
    ("beta", 5.25), ("beta", 21.0), ("p_scale", 1.5), ("p_scale", 6.0),
)]  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_builtin_plan(sensitivity.PLAN)


def make_results(plan: Plan) -> Results:
    """Results in which every system has numbers of its own."""
    luck = np.random.default_rng(0)
    runs = [
        {"environment": environment.name, "system": system.label, "policy": system.policy, "seed": seed,
         "regret": luck.uniform(1_000, 9_000), "exchanges": int(luck.integers(500, 900))}
        for environment in plan.environments for system in select_systems(plan.systems, environment.name)
        for seed in plan.seeds
    ]  # fmt: skip
    return Results(Path(), {}, [plan], pl.DataFrame(runs), pl.DataFrame())


def test_the_plan_halves_and_doubles_what_was_searched_and_nothing_else(plan: Plan) -> None:
    assert sensitivity.list_changes(plan) == [sensitivity.AS_CHOSEN, *CHANGES]
    (chosen,) = load_builtin_plan(TEN).environments
    assert plan.environments[0] == chosen
    base = {system.label: system.constants for system in load_builtin_plan(TEN).systems}
    for system in plan.systems:
        changed = {name: value for name, value in system.constants.items() if value != base[system.policy][name]}
        assert len(changed) == (system.label != system.policy)
    assert (plan.rounds, plan.seeds) == (1_000_000, (0, 1, 2))


def test_runs_that_a_change_does_not_concern_are_those_as_chosen(plan: Plan) -> None:
    results = make_results(plan)
    rows = {row.change: row for row in sensitivity.measure_changes(results)}
    place = pl.col("environment") == plan.environments[0].name

    def totals(system: str, quantity: str) -> list[float]:
        return list(results.runs.filter(place & (pl.col("system") == system)).sort("seed")[quantity])

    row = rows["p_scale 6 (x 2)"]
    ours, theirs = (np.array(totals(system, "regret")) for system in (f"{OURS} p_scale=6.0", "fedlinucb"))
    assert row.below[0] == estimate_mean((1 - ours / theirs).tolist())
    assert row.exchanges[0] == estimate_mean(totals(f"{OURS} p_scale=6.0", "exchanges"))
    assert row.exchanges[1:] == rows["as chosen"].exchanges[1:]
    assert rows["beta 5.25 (x 0.5)"].exchanges[3] == estimate_mean(totals("fedlinucb beta=5.25", "exchanges"))
    assert len(rows) == 1 + len(CHANGES) + 1


def test_the_papers_figures_stand_above() -> None:
    assert sensitivity_report.format_papers_figures() == (
        *("the paper", "1,070.7", "1,125.3", "899.3", "482.3"),
        *("82%", "64%", "10%", "12%"),
    )


@pytest.mark.timeout(300)
def test_the_command_prints_the_table_and_writes_the_page(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = resize_plan(plan, rounds=40, seeds=range(1))
    execute([short], tmp_path, lambda jobs, _report: ((job, run_job(job)) for job in jobs), lambda _: None)
    print_results(read_results(tmp_path))
    shown = capsys.readouterr().out
    for words in ("the paper", "as chosen", "lambda 2 (x 0.5)", "alpha_d 14 (x 2)", "Gaussian features", "report: "):
        assert words in shown
    assert read(tmp_path / "report.html").loaded == []
    assert len(list_planned_jobs([plan])) == 138
