"""From a log in a file to estimates, by the library and by the command."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from estimator_study import Shape, World, simulate_log

import fedcascade
from fedcascade import POLICIES
from fedcascade.data.logs import read_log, write_log
from fedcascade.data.logs.items import read_items
from fedcascade.evaluation.evaluate import EvaluationOptions, evaluate
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.oracles import TopK
from fedcascade.numerics.grid import round_to_grid

WORLD = World(Shape(items=6, length=2, users=30, lists=20), seed=5)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    log, table = tmp_path / "log.parquet", tmp_path / "items.csv"
    shown = simulate_log(WORLD, "uniform", seed=1)
    order = np.random.default_rng(0).permutation(len(shown))
    write_log(log, shown.select(order))
    rows = [f"{item}," + ",".join(str(x) for x in row) for item, row in enumerate(WORLD.items.tolist())]
    table.write_text("item,a,b,c,d\n" + "\n".join(rows) + "\n")
    return log, table


def test_estimates_lie_where_the_policies_are(files: tuple[Path, Path]) -> None:
    log = read_log(files[0], items=read_items(files[1]))
    policies = [POLICIES["population"].with_beta(0.0), POLICIES["oful"].with_beta(0.0)]
    found = evaluate(log, policies, TopK(length=2))
    values = {(row.policy, row.estimator): row for row in found.estimates}
    logged = values["logged", "average"]
    assert logged.lists == 300
    for policy in ("population", "oful"):  # a learned list beats a random one
        assert values[policy, "cascade-dr"].value > logged.value
        assert values[policy, "dm"].value > logged.value
        assert values[policy, "ips"].low < values[policy, "snips"].value < values[policy, "ips"].high + 0.2
    assert not found.refusals
    alone = evaluate(log, policies, TopK(length=2), options=EvaluationOptions(threads=1))
    assert repr(alone) == repr(found)  # NaN is not NaN


def test_differences_are_paired(files: tuple[Path, Path]) -> None:
    policies = [POLICIES["fedind"].with_beta(0.0), POLICIES["oful"].with_beta(0.0)]
    found = fedcascade.evaluate(files[0], policies, TopK(length=2), items=files[1])
    rows = {(row.policy, row.baseline, row.estimator): row for row in found.differences}
    values = {(row.policy, row.estimator): row for row in found.estimates}
    assert len(rows) == 3 * 6
    assert np.isnan(rows["oful", "fedind", "snips"].low)  # as that of one of the two
    for name in ("dm", "ips", "rips", "cascade-dr"):
        row, one, other = rows["oful", "fedind", name], values["oful", name], values["fedind", name]
        assert row.value == pytest.approx(one.value - other.value)
        assert row.low < row.value < row.high
        assert row.high - row.low < (one.high - one.low) + (other.high - other.low)
    logged = rows["oful", "logged", "cascade-dr"]
    assert logged.value == pytest.approx(values["oful", "cascade-dr"].value - values["logged", "average"].value)
    twice = [policies[0], replace(policies[0], name="again")]
    same = fedcascade.evaluate(files[0], twice, TopK(length=2), items=files[1]).differences
    assert {row.value for row in same if row.baseline == "fedind"} == {0.0}
    with pytest.raises(ValueError, match="policies must have different names, got fedind, fedind"):
        fedcascade.evaluate(files[0], ["fedind", "fedind"], items=files[1])


def test_the_advice_names_an_estimator_and_its_assumption(files: tuple[Path, Path]) -> None:
    log = read_log(files[0], items=read_items(files[1]))
    found = evaluate(log, ["fedind"])
    assert found.believed == "cascade-dr"
    assert found.advice.startswith("Believe cascade-dr: propensities correct the errors of its model")
    assert "effective lists, which is few" in found.advice
    weighted = evaluate(log, ["fedind"], options=EvaluationOptions(estimators=["dm", "snips"]))
    assert weighted.believed == "snips"
    table = pl.read_parquet(files[0]).drop("propensities")
    bare = fedcascade.evaluate(table, ["fedind"], items=files[1])
    assert bare.believed is None
    assert bare.advice.startswith("Believe none blindly")


def test_the_direct_method_does_not_flatter_a_policy_for_learning_from_its_own_lists() -> None:
    """Users are alike and items have no taste: a policy per user earns what any list earns, and dm has to say so."""
    errors, random = [], np.random.default_rng(3)
    features = round_to_grid(np.eye(6) * 0.99)
    for seed in range(12):
        lists, users = 2400, 40
        items = np.argsort(random.random((lists, 6)), axis=1)[:, :2]
        hits = random.random((lists, 2)) < 0.3
        hits[:, 1] &= ~hits[:, 0]
        log = ClickLog(users=np.arange(lists) % users, items=items, clicks=hits)
        options = EvaluationOptions(estimators=["dm"], resamples=1, seed=seed)
        found = evaluate(log, [POLICIES["fedind"].with_beta(0.0)], items=features, options=options)
        errors.append(found.estimates[1].value - (1 - 0.7**2))
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(12) + 0.005, errors
    assert abs(np.mean(errors)) < 0.015


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown reward 'click': did you mean 'clicks'"):
        EvaluationOptions(reward="click")
    with pytest.raises(ValueError, match="resamples must be a whole number >= 1"):
        EvaluationOptions(resamples=0)


def test_rewards_of_clicks_are_estimated_with_the_click_rate_beside_them(files: tuple[Path, Path]) -> None:
    plain = read_log(files[0], items=read_items(files[1])).read()
    draws = np.random.default_rng(3).random(plain.clicks.shape)
    table, items = ["fedind"], files[1]
    worth_one, valued = (replace(plain, rewards=plain.clicks * worth) for worth in (np.ones_like(draws), draws))
    as_clicks, as_values = (
        {
            (row.policy, row.estimator): row
            for row in fedcascade.evaluate(log, table, items=items, options=options).estimates
        }
        for log, options in (
            (plain, EvaluationOptions(reward="clicks")),
            (worth_one, EvaluationOptions(reward="value")),
        )
    )
    clicked = as_values.pop(("logged", "clicked"))
    assert repr(as_values) == repr(as_clicks)
    assert "dm" not in {name for _, name in as_values}  # its model covers the first click
    found = fedcascade.evaluate(valued, table, items=items, options=EvaluationOptions(reward="value"))
    rows = {(row.policy, row.estimator): row for row in found.estimates}
    later = valued.select(slice(len(valued) // 2, None))
    assert rows["logged", "average"].value == pytest.approx(later.values.sum(axis=1).mean())
    assert rows["logged", "clicked"].value == clicked.value == pytest.approx(later.clicks.any(axis=1).mean())
    assert rows["fedind", "ips"].value < as_values["fedind", "ips"].value


def test_rewards_change_what_is_learned_and_not_the_model_of_clicks(files: tuple[Path, Path]) -> None:
    plain = read_log(files[0], items=read_items(files[1])).read()
    halved = replace(plain, rewards=0.5 * plain.values)
    frozen = [POLICIES["oful"].with_beta(0.0)]
    one, other = (fedcascade.evaluate(log, frozen, TopK(length=2), items=files[1]) for log in (plain, halved))
    assert repr(one) == repr(other)  # the same order of items, and the same clicks


def test_exposure_counts_what_a_policy_would_show() -> None:
    rows = 40
    log = {"user": ["a", "b"] * rows, "items": [["tea", "milk"], ["cake", "tea"]] * rows, "clicks": [[0], []] * rows}
    table = {"item": ["tea", "milk", "cake", "never"], "warm": [0.9, 0.1, 0.0, -0.9], "white": [0.0, 0.9, 0.3, 0.0]}
    greedy = fedcascade.POLICIES["oful"].with_beta(0.0)
    found = evaluate(log, [greedy], items=table, options=EvaluationOptions(resamples=10))
    assert found.exposures["logged"].shown.tolist() == [rows, rows // 2, rows // 2, 0]
    ours = found.exposures["oful"].shown
    assert ours.sum() == 2 * rows
    assert ours[0] == rows  # the one that is clicked, in every list
