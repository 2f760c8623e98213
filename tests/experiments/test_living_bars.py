"""The wishes of living populations are computed from the right runs."""

import importlib.util
from pathlib import Path

import polars as pl
import pytest

from fedcascade.experiments import living_bars
from fedcascade.experiments.builtin_plans import load_builtin_plan
from fedcascade.experiments.living_bars import ALONE, BEFORE, DETECTING, KNOWN, NEWCOMERS, OURS, STILL
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.reports.living_report import write_report
from fedcascade.experiments.results import Results

ROOT = Path(__file__).parents[2]
SEEDS = (200, 201)
SLOPES = {OURS: 2.0, BEFORE: 3.0, ALONE: 4.0, DETECTING: 5.0, KNOWN: 1.0}  # regret per 1,000 rounds


@pytest.fixture
def plan() -> Plan:
    return load_builtin_plan("living")


@pytest.fixture
def results(plan: Plan, tmp_path: Path) -> Results:
    """Results in which regret grows evenly, twice as fast in the second half."""
    curves, runs = [], []
    for environment in plan.environments:
        for system, slope in SLOPES.items():
            for seed in SEEDS:
                row = {"experiment": plan.name, "environment": environment.name, "system": system, "seed": seed}
                for round_ in (250, 50_000, 100_000):
                    regret = slope * (round_ + max(0, round_ - 50_000)) / 1_000
                    curves.append(row | {"round": round_, "regret": regret, "exchanges": 1, "clustering_error": 0.0})
                counts = {"exchanges_change": 1 if environment.name == STILL and seed == 200 else 0, "exchanges": 1}
                more = {"newcomer_regret": slope if environment.name == NEWCOMERS else None, "regret": 3.0}
                runs.append(row | counts | more | {"policy": system, "clusters": 1, "clustering_error": 0.0})
    manifest = {"plans": [], "runs": len(runs), "rounds": 1, "core_seconds": 1.0, "seconds": 1.0, "fedcascade": "0"}
    manifest |= {"machine": {"processor": "p", "cores": 2, "python": "3", "system": "s"}, "libraries": {}, "files": {}}
    return Results(tmp_path, manifest, [plan], pl.DataFrame(runs, infer_schema_length=None), pl.DataFrame(curves))


def test_the_plan_has_every_world_and_system_that_a_wish_needs(plan: Plan) -> None:
    names = {environment.name for environment in plan.environments}
    assert {
        STILL,
        NEWCOMERS,
        living_bars.ABRUPT,
        living_bars.MOVED,
        "gradual",
        "recurring",
        *living_bars.LIARS,
    } <= names
    assert {system.policy for system in plan.systems} == set(SLOPES)
    assert len(plan.seeds) >= 5
    assert min(plan.seeds) >= 200


def test_the_wishes_are_ratios_of_the_right_runs(results: Results) -> None:
    found = {finding.what: finding for finding in living_bars.judge_bars(results)}
    after = next(finding for what, finding in found.items() if what.startswith(living_bars.ABRUPT))
    assert after.before is not None
    assert after.ours.mean == pytest.approx(2.0)
    assert after.before.mean == pytest.approx(3.0)
    assert after.verdict == "not met"
    assert found[f"gradual: regret, of {DETECTING}"].ours.mean == pytest.approx(0.4)
    assert found[f"gradual: regret, of {DETECTING}"].verdict == "met"
    assert found[f"{STILL}: regret, of {BEFORE}"].ours.mean == pytest.approx(2 / 3)
    liars = next(finding for what, finding in found.items() if what.startswith("30% inverters"))
    assert liars.ours.mean == pytest.approx(1 / 0.7)
    newcomers = next(finding for what, finding in found.items() if what.startswith("newcomers"))
    assert newcomers.ours.mean == pytest.approx(0.5)
    worst = next(finding for what, finding in found.items() if what.startswith("worst checkpoint"))
    assert worst.ours.mean == pytest.approx(0.5)
    alarms = next(finding for what, finding in found.items() if "false alarms" in what)
    assert alarms.ours.mean == pytest.approx(0.05)


def test_a_line_for_every_wish(results: Results) -> None:
    assert living_bars.is_living(results)
    lines = living_bars.format_findings(living_bars.judge_bars(results))
    assert len(lines) == 13
    assert all(len(line) == 5 for line in lines)


def test_the_report_has_a_line_for_every_wish_and_the_totals_of_every_world(results: Results, plan: Plan) -> None:
    path, lines = write_report(results)
    page = path.read_text(encoding="utf-8")
    assert len(lines) == 13
    assert all(environment.name in page for environment in plan.environments)


def test_the_table_of_the_page_is_written_from_results(results: Results) -> None:
    spec = importlib.util.spec_from_file_location("living_table", ROOT / "tools" / "living_table.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "explanation-living-populations.md").read_text(encoding="utf-8")
    table = tool.format_table(living_bars.judge_bars(results))
    written = tool.replace_table(page, table)
    assert written.count(table) == 1
    assert tool.replace_table(written, table) == written
    assert len(written.splitlines()) == len(page.splitlines())  # the page has a line for each wish, and no other
