"""Comparisons of policies: ratios of the right runs at the right checkpoints, and plans that run at a small size."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec import structs
from scipy import stats

from fedcascade.experiments.comparisons import Comparison, compare_policies
from fedcascade.experiments.jobs import list_planned_jobs
from fedcascade.experiments.paper_claims import TEN
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.plan_reader import load_builtin_plan, read_plan
from fedcascade.experiments.results import Results
from fedcascade.intervals import Interval, estimate_mean, format_mean

from .conftest import resize_plan

SEEDS = (300, 301, 302)
SLOPES = {"population": 3.0, "fedind": 4.0, "known-clusters": 1.0}
PLAN = """
name = "compared"
rounds = 100
checkpoints = 10
compare = { against = ["fedind"], since = 50 }
[[environments]]
name = "still"
kind = "synthetic"
users = 4
clusters = 2
[[policies]]
name = ["population", "fedind"]
"""


def make_results(plan: Plan) -> Results:
    """Results in which regret grows evenly, and for seed 301 thrice as fast; exchanges are 10 and newcomers lose 5."""
    curves, runs = [], []
    for planned in list_planned_jobs([resize_plan(plan, seeds=SEEDS)]):
        job, slope = planned.job, SLOPES.get(planned.label, 6.0) * (3.0 if planned.job.seed == 301 else 1.0)
        row = {"experiment": plan.name, "environment": planned.environment, "label": planned.label, "seed": job.seed}
        for number in range(1, job.checkpoints + 1):
            round_ = job.rounds * number // job.checkpoints
            late = max(0, round_ - job.rounds // 2) if planned.label == "population" else 0
            curves.append(row | {"round": round_, "regret": slope * (round_ + late)})
        exchanges = 10 if planned.label == "population" else 0 if planned.label == "fedind" else 20
        runs.append(row | {"exchanges": exchanges, "newcomer_regret": slope})
    return Results(Path(), {}, [plan], pl.DataFrame(runs), pl.DataFrame(curves))


def index_shares(results: Results) -> dict[tuple[str, str, str], float]:
    return {(each.quantity, each.where, each.against): each.share.mean for each in compare_policies(results)}


def test_regret_is_compared_run_by_run_at_the_end_and_from_a_round_on() -> None:
    (regret, late, newcomers) = compare_policies(make_results(read_plan(PLAN)))
    assert regret == Comparison("population: regret", "still", "fedind", Interval(9 / 8, 0.0, 3))
    assert late == Comparison("population: regret from round 50 on", "still", "fedind", Interval(1.5, 0.0, 3))
    assert newcomers.share.mean == 0.75  # and no exchanges, which fedind has none of


def test_regret_after_rounds_of_each_user_is_that_of_its_checkpoint() -> None:
    shares = index_shares(make_results(load_builtin_plan("population")))
    assert shares["population: regret after 25 own rounds", "J = 10", "fedind"] == pytest.approx(0.75)
    assert shares["population: regret after 1,000 own rounds", "J = 10", "fedind"] == pytest.approx(1.125)
    assert shares["population: regret after 25 own rounds", "J = 10", "fedind beta=2.0"] == pytest.approx(0.5)
    many = "1,000 users, J = 10"
    lengths = {quantity for quantity, where, _ in shares if where == many and "regret after" in quantity}
    assert lengths == {f"population: regret after {own} own rounds" for own in (25, 50, 150)}


def test_the_worst_checkpoint_has_the_largest_share_and_its_own_interval() -> None:
    results = make_results(read_plan(PLAN.replace("since = 50", "worst_from = 30")))
    bump = pl.when((pl.col("label") == "population") & (pl.col("round") == 40)).then(2.0).otherwise(1.0)
    early = pl.when((pl.col("label") == "population") & (pl.col("round") == 20)).then(9.0).otherwise(1.0)
    uneven = pl.when((pl.col("round") == 40) & (pl.col("seed") == 301)).then(1.1).otherwise(1.0)
    curves = results.curves.with_columns(regret=pl.col("regret") * bump * early * uneven)
    [worst] = [each for each in compare_policies(structs.replace(results, curves=curves)) if "largest" in each.quantity]
    assert worst.quantity == "population: largest share of regret from 30 rounds on"
    assert worst.share.mean == pytest.approx(1.5)  # at round 40; the larger share of round 20 is too early
    shares = index_shares(make_results(load_builtin_plan("population")))
    named = "population: largest share of regret from 25 own rounds on"
    assert shares[named, "J = 10", "fedind"] == pytest.approx(1.125)
    assert shares[named, "1,000 users, J = 10", "fedind"] == pytest.approx(1.125)


def test_a_single_run_has_no_interval() -> None:
    one, three = Interval(0.5, float("inf"), 1), Interval(0.5, 0.25, 3)
    assert Comparison("q", "w", "a", one).format() == ("q", "w", "a", "0.50", "-")
    assert Comparison("q", "w", "a", three).format() == ("q", "w", "a", "0.50", "0.25 to 0.75")


def test_a_plan_that_compares_with_an_unknown_policy_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"line 5: unknown policy of this plan 'fedin': did you mean 'fedind'"):
        read_plan(PLAN.replace('against = ["fedind"]', 'against = ["fedin"]'))
    with pytest.raises(ValueError, match=r"line 5: compare: .*'until'"):
        read_plan(PLAN.replace("since", "until"))


def test_the_plan_of_constants_halves_and_doubles_what_was_searched_and_nothing_else() -> None:
    plan, papers = load_builtin_plan("sensitivity"), load_builtin_plan(TEN)
    assert plan.environments[0] == papers.environments[0]
    base = {each.label: each.constants for each in papers.policies}
    for planned in plan.policies:
        changed = {name: value for name, value in planned.constants.items() if value != base[planned.policy][name]}
        assert len(changed) == (planned.label != planned.policy)
        assert all(value / base[planned.policy][name] in (0.5, 2.0) for name, value in changed.items())  # type: ignore[operator]


@pytest.mark.parametrize("count", [3, 4, 10, 31])
def test_the_interval_is_students(count: int) -> None:
    values = np.random.default_rng(count).normal(5, 2, count)
    interval = estimate_mean(values.tolist())
    low, high = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=stats.sem(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.half_width == pytest.approx((high - low) / 2, rel=1e-3)
    assert interval.runs == count
    assert interval.low == pytest.approx(low, rel=1e-3)
    assert interval.high == pytest.approx(high, rel=1e-3)


def test_one_run_or_two_say_nothing_about_noise() -> None:
    assert estimate_mean([4.0]) == (4.0, float("inf"), 1)
    assert estimate_mean([4.0, 5.0]) == (4.5, float("inf"), 2)
    assert format_mean(estimate_mean([4.0, 5.0])) == "4.5"


def test_no_run_has_no_mean() -> None:
    interval = estimate_mean([])
    assert np.isnan(interval.mean)
    assert interval[1:] == (float("inf"), 0)
