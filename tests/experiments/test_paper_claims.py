"""The paper's claims: its own numbers, our arithmetic against numpy, and verdicts that can go either way."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedcascade.experiments import paper_claims
from fedcascade.experiments.environments import PluginSpec, RatingsSpec, SyntheticSpec
from fedcascade.experiments.intervals import Interval
from fedcascade.experiments.paper_claims import AUXILIARY, OURS, PLANS, RATINGS, TEN, judge_count, judge_gap
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.results import Results

SYSTEMS = tuple(paper_claims.NAMES)


def make_results(plans: list[Plan]) -> Results:
    """Make results in which every number is known."""
    luck = np.random.default_rng(0)
    runs = [
        {"experiment": plan.name, "environment": plan.environments[0].name, "system": system.label, "seed": seed,
         "regret": 100.0 * (1 + SYSTEMS.index(system.label)) + luck.normal(), "exchanges": int(luck.integers(500, 900)),
         "clustering_error": 0.0}
        for plan in plans for system in plan.systems for seed in plan.seeds
    ]  # fmt: skip
    placed_at = [{"fedc3ucb-h": 30, "no-auxiliary": 40, "force-comm": 20}.get(str(row["system"]), 100) for row in runs]
    curves = [
        {**row, "round": round_, "clustering_error": 1.0 if round_ < at else 0.0}
        for row, at in zip(runs, placed_at, strict=True)
        for round_ in (10, 20, 30, 40)
    ]
    return Results(Path(), {}, plans, pl.DataFrame(runs), pl.DataFrame(curves))


def test_the_plans_are_the_papers_setting_with_the_constants_that_reproduce_it() -> None:
    for plan in paper_claims.load_paper_plans():
        assert (plan.rounds, plan.list_length) == (1_000_000, 4)
        assert len(plan.seeds) == (10 if plan.name == AUXILIARY else 3)
        spec = plan.environments[0].spec
        assert not isinstance(spec, PluginSpec)
        assert (spec.users, spec.dimension, spec.items) == (40, 20, 200)
        if isinstance(spec, SyntheticSpec):
            assert (spec.features, spec.directions) == ("lifted", "orthonormal")
        else:
            assert (spec.preset, spec.file) == ("paper", None)
        for system in plan.systems:
            assert system.constants["lambda"] == 4.0
            assert system.constants["beta"] == 10.5
            assert system.constants.get("alpha_c", 1.0) == 1.0
            assert system.constants.get("alpha_d", 7.0) == 7.0
    specs = [plan.environments[0].spec for plan in paper_claims.load_paper_plans()]
    assert [spec.clusters for spec in specs if not isinstance(spec, PluginSpec)] == [5, 10, 10, 10]


def test_quick_plans_are_shorter_and_a_file_replaces_generated_ratings(tmp_path: Path) -> None:
    quick = paper_claims.load_paper_plans(quick=True, ratings=tmp_path / "ratings.csv")
    assert {(plan.rounds, plan.seeds) for plan in quick} == {(300_000, (0, 1))}
    spec = quick[PLANS.index(RATINGS)].environments[0].spec
    assert isinstance(spec, RatingsSpec)
    assert spec.file == str(tmp_path / "ratings.csv")
    assert [len(plan.seeds) for plan in paper_claims.load_paper_plans(runs=12)] == [12, 12, 12, 12]
    with pytest.raises(ValueError, match="runs"):
        paper_claims.load_paper_plans(runs=0)


def test_percentages_are_those_of_paired_runs() -> None:
    results = make_results(paper_claims.load_paper_plans())
    claims = {(claim.place, claim.text): claim for claim in paper_claims.judge_claims(results)}
    claim = claims["J = 10", "FedC3UCB-H: less regret than FedLinUCB"]
    rows = results.runs.filter(pl.col("experiment") == TEN)
    ours, theirs = (
        rows.filter(pl.col("system") == name).sort("seed")["regret"].to_numpy() for name in (OURS, "fedlinucb")
    )
    gaps = 1 - ours / theirs
    assert claim.ours.mean == pytest.approx(gaps.mean())
    assert claim.ours.deviation == pytest.approx(gaps.std(ddof=1))
    assert claim.paper == 0.82
    assert claims["J = 10", "FedC3UCB-H: less regret than NoAuxiliary"].ours.runs == 10


def test_clustering_claims_compare_when_users_are_placed() -> None:
    later, sooner = (
        claim
        for claim in paper_claims.judge_claims(make_results(paper_claims.load_paper_plans()))
        if claim.unit == "rounds"
    )
    assert (later.ours.mean, later.verdict) == (10, "holds")
    assert (sooner.ours.mean, sooner.verdict) == (10, "holds")


def test_quick_runs_are_not_judged_by_size() -> None:
    for claim in paper_claims.judge_claims(make_results(paper_claims.load_paper_plans(quick=True))):
        if claim.unit == "exchanges":
            assert claim.verdict == "not judged"
    full = [
        claim
        for claim in paper_claims.judge_claims(make_results(paper_claims.load_paper_plans()))
        if claim.unit == "exchanges"
    ]
    assert len(full) == 12
    assert "not judged" not in {claim.verdict for claim in full}


@pytest.mark.parametrize(
    ("mean", "half", "paper_says", "verdict"),
    [
        (0.826, 0.01, 0.82, "holds"),
        (0.78, 0.01, 0.82, "holds"),
        (0.70, 0.01, 0.82, "does not hold here"),
        (0.75, 0.05, 0.82, "holds within noise"),
        (0.065, 0.05, 0.10, "holds"),
        (0.065, 0.08, 0.10, "holds within noise"),
        (-0.01, 0.20, 0.10, "does not hold here"),
        (0.20, 0.01, None, "holds"),
        (0.01, 0.05, None, "holds within noise"),
        (-0.01, 0.05, None, "does not hold here"),
        (0.0, 0.0, None, "does not hold here"),
    ],
)
def test_verdicts_on_gaps(mean: float, half: float, paper_says: float | None, verdict: str) -> None:
    assert judge_gap(Interval(mean, 0.1, half, 3), paper_says) == verdict


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [(1040, 0, "holds"), (960, 0, "holds"), (1060, 20, "holds within noise"), (1060, 5, "does not hold here"),
     (900, 20, "does not hold here")],
)  # fmt: skip
def test_verdicts_on_counts(mean: float, half: float, verdict: str) -> None:
    assert judge_count(Interval(mean, 1.0, half, 3), 1000) == verdict


def test_results_of_other_plans_are_not_the_papers(small_results: Results) -> None:
    assert not paper_claims.is_paper(small_results)
    assert paper_claims.is_paper(make_results(paper_claims.load_paper_plans(quick=True)))
    assert not paper_claims.is_full(make_results(paper_claims.load_paper_plans(quick=True)))
