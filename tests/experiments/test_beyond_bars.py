"""Our own bars: ratios of paired runs against numpy, verdicts that can go either way, and a page with every figure."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec import structs

from fedcascade.cli import main
from fedcascade.cli.experiments import print_results
from fedcascade.experiments import beyond_bars
from fedcascade.experiments.beyond_bars import (
    ALONE,
    BARS,
    KNOWN,
    OURS,
    PAPERS,
    ROUNDS,
    Finding,
    judge_measurement,
    make_label,
)
from fedcascade.experiments.builtin_plans import load_builtin_plan, set_ratings_file
from fedcascade.experiments.environments import PluginSpec, RatingsSpec
from fedcascade.experiments.intervals import Interval
from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.plan import Plan, resize_plan, select_systems
from fedcascade.experiments.reports import beyond_report, figures
from fedcascade.experiments.reports.trade_off import Point, plot_trade_off
from fedcascade.experiments.results import Results, read_results
from fedcascade.experiments.runner import execute

from .reports.test_reports import read

TEN, BETA = "lifted, J = 10", 2.0
REGRET = {OURS: 60.0, ALONE: 100.0, PAPERS: 500.0, KNOWN: 40.0}


def make_results(plan: Plan, worse_at: int = 0) -> Results:
    """Results in which every number is known; at one checkpoint ours is half as bad again as alone."""
    luck = np.random.default_rng(0)
    curves = [
        {"experiment": plan.name, "environment": environment.name, "system": system.label, "seed": seed,
         "round": round_,
         "regret": (150.0 if (system.policy, round_) == (OURS, worse_at) else REGRET.get(system.policy, 100.0))
         + luck.normal(), "exchanges": 80 if system.policy == OURS else 100, "clustering_error": 0.0}
        for environment in plan.environments for system in select_systems(plan.systems, environment.name)
        for seed in plan.seeds for round_ in (1_000, 5_000, 10_000, plan.rounds)
    ]  # fmt: skip
    table = pl.DataFrame(curves)
    return Results(Path(), {}, [plan], table.filter(pl.col("round") == plan.rounds), table)


def find(findings: list[Finding], environment: str, quantity: str, *against: str) -> Finding:
    wanted = (environment, BETA, quantity, against)
    (finding,) = [
        each for each in findings if (each.environment, each.beta, each.bar.quantity, each.bar.against) == wanted
    ]
    return finding


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load_builtin_plan(beyond_bars.PLAN)


@pytest.fixture(scope="module")
def folder(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole plan in 50 rounds a run, in this process: to start others takes longer than the runs."""
    folder = tmp_path_factory.mktemp("beyond")
    plans = [resize_plan(plan, rounds=50, seeds=range(1))]
    execute(plans, folder, lambda jobs, _report: ((job, run_job(job)) for job in jobs), lambda _: None)
    return folder


def test_the_plan_is_the_setting_of_the_bars(plan: Plan) -> None:
    assert (plan.rounds, plan.list_length, plan.seeds) == (ROUNDS, 4, (0, 1, 2, 3, 4))
    assert plan.rounds // plan.checkpoints == beyond_bars.EARLY
    for environment in plan.environments:
        assert not isinstance(environment.spec, PluginSpec)
        assert (environment.spec.users, environment.spec.items) == (40, 200)
        assert environment.spec.dimension == (40 if environment.name == "Gaussian, J = 40" else 20)
        assert not isinstance(environment.spec, RatingsSpec) or environment.spec.file is None
    for system in (system for system in plan.systems if system.policy != OURS):
        assert system.constants["lambda"] == 4.0
        assert system.constants.get("alpha_d", 7.0) == 7.0
    assert len(list_planned_jobs([plan])) <= 460  # about as many as two cores play in a quarter of an hour


def test_every_bar_has_its_runs(plan: Plan) -> None:
    assert beyond_bars.is_beyond(make_results(plan))
    for environment, beta in {setting for bar in BARS for setting in beyond_bars.list_settings(bar, plan)}:
        assert make_label(OURS, beta) in [
            system.label for system in beyond_bars.select_systems_at_beta(plan, environment, beta)
        ]
    judged_here = {environment for bar in BARS for environment, _ in beyond_bars.list_settings(bar, plan)}
    assert {environment.name for environment in plan.environments} - judged_here == {"lifted, drift"}


def test_results_of_other_plans_are_not_judged(plan: Plan, small_results: Results) -> None:
    assert not beyond_bars.is_beyond(small_results)
    results = make_results(plan)
    lacking = results.runs.filter(pl.col("system") != make_label(KNOWN, BETA))
    assert not beyond_bars.is_beyond(Results(Path(), {}, [plan], lacking, results.curves))
    without = structs.replace(plan, environments=plan.environments[1:])
    assert not beyond_bars.is_beyond(Results(Path(), {}, [without], results.runs, results.curves))


def test_ratings_are_called_generated_unless_there_is_a_file(plan: Plan) -> None:
    bar = next(bar for bar in BARS if bar.environments == beyond_bars.RATINGS)
    assert beyond_bars.list_settings(bar, plan)[0] == ("generated ratings, J = 10", 0.5)
    given = set_ratings_file(plan, Path("ratings.csv"))
    assert beyond_bars.list_settings(bar, given)[0] == ("ratings, J = 10", 0.5)
    assert beyond_bars.is_beyond(make_results(given))


def test_a_ratio_is_that_of_means_with_an_interval_by_paired_runs(plan: Plan) -> None:
    results = make_results(plan)
    finding = find(beyond_bars.judge_bars(results), TEN, "regret", ALONE, PAPERS)
    rows = results.runs.filter(pl.col("environment") == TEN).sort("seed")
    ours, theirs = (
        rows.filter(pl.col("system") == make_label(name, BETA))["regret"].to_numpy() for name in (OURS, ALONE)
    )
    assert finding.rival == ALONE
    assert finding.measured.mean == pytest.approx(ours.mean() / theirs.mean())
    left_out = [np.delete(ours, run).mean() / np.delete(theirs, run).mean() for run in range(5)]
    jackknife = np.sqrt(4 / 5 * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    assert finding.measured.half_width == pytest.approx(2.776 * jackknife, rel=0.02)
    assert finding.verdict == "met"


def test_bars_go_either_way(plan: Plan) -> None:
    findings = beyond_bars.judge_bars(make_results(plan))
    assert find(findings, TEN, "regret", KNOWN).verdict == "met"  # 60 / 40 <= 1.7
    assert find(findings, TEN, "exchanges", PAPERS).verdict == "met"
    assert find(findings, TEN, "clustering error").verdict == "met"
    assert {
        each.verdict for each in findings if each.environment.startswith("Gaussian") and each.bar.against == (KNOWN,)
    } <= {
        "inconclusive",
        "not met",
    }  # 60 / 40, about 1.5
    results = make_results(plan)
    wrong = results.curves.with_columns(clustering_error=pl.lit(0.025))
    judged_again = beyond_bars.judge_bars(Results(Path(), {}, [plan], results.runs, wrong))
    assert find(judged_again, TEN, "clustering error").verdict == "not met"


def test_the_worst_checkpoint_decides(plan: Plan) -> None:
    late = find(beyond_bars.judge_bars(make_results(plan, worse_at=10_000)), TEN, "early regret", ALONE)
    assert (late.worst, late.verdict) == (10_000, "not met")
    assert late.measured.mean == pytest.approx(1.5, abs=0.05)
    assert "at 10,000" in beyond_report.format_measured(late)
    before = find(beyond_bars.judge_bars(make_results(plan, worse_at=1_000)), TEN, "early regret", ALONE)
    assert (before.worst != 1_000, before.verdict) == (True, "met")


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (0.60, 0.04, "met"),
        (0.65, 0.00, "met"),
        (0.64, 0.02, "inconclusive"),
        (0.66, 0.05, "inconclusive"),
        (0.71, 0.05, "not met"),
        (0.60, np.inf, "inconclusive"),
        (np.inf, np.inf, "not met"),
    ],
)
def test_verdicts(mean: float, half: float, verdict: str) -> None:
    assert judge_measurement(Interval(mean, half, 5), 0.65) == verdict


def test_shorter_runs_are_not_judged(plan: Plan) -> None:
    findings = beyond_bars.judge_bars(make_results(resize_plan(plan, rounds=2_000)))
    assert {finding.verdict for finding in findings} == {"not judged"}
    assert "early regret" not in {finding.bar.quantity for finding in findings}


@pytest.mark.timeout(900)  # 92 short runs, and a page with all figures
def test_the_page_has_every_figure_and_needs_nothing_else(
    folder: Path, plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FORMATS", ("svg",))  # the page shows no other; other tests write all three
    print_results(read_results(folder))
    shown = capsys.readouterr().out
    assert "bars | measured" in shown
    assert shown.endswith(f"report: {folder / 'report.html'}\n")
    page, text = read(folder / "report.html"), (folder / "report.html").read_text(encoding="utf-8")
    settings = [
        (environment.name, beta)
        for environment in plan.environments
        for beta in beyond_bars.list_betas(plan, environment.name)
    ]
    placed = [setting for setting in settings if len(beyond_report.choose_quantities(setting[0])) == 2]
    assert page.drawings == len(settings) + len(placed) + len(beyond_bars.TRADE_OFFS)
    assert len(list((folder / "figures").glob("*.svg"))) == page.drawings
    assert page.loaded == []
    for words in ("not judged", "generated ratings", "95% interval", "alpha_c = 40", "async-linucb", "drift = 150000"):
        assert words in text


@pytest.mark.timeout(900)
def test_the_command_knows_whose_report_it_writes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Results] = []

    def write_report(results: Results) -> tuple[Path, list[Path]]:
        written.append(results)
        return Path("there"), []

    monkeypatch.setattr(beyond_report, "write_report", write_report)
    main(["report", str(folder)])
    assert capsys.readouterr().out == "report: there\n"
    assert len(written) == 1


def test_a_trade_off_labels_every_point_and_no_label_covers_another() -> None:
    points = [Point(f"system {number}", "other", 700.0 + number, 300.0 + number) for number in range(6)]
    points += [
        Point("silent", "yardstick", 0.0, 600.0),
        Point("more", "ours", 900, 290),
        Point("less", "ours", 400, 320),
    ]
    figure = plot_trade_off(points, "title")
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.texts]
    assert [label.get_text() for label in axes.texts] == [point.name for point in points]
    assert not any(box.overlaps(earlier) for index, box in enumerate(boxes) for earlier in boxes[:index])
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [400, 900]
