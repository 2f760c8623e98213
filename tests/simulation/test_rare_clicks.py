"""Both engines give equal Traces where clicks are rare, and a scale of 1 changes none."""

from dataclasses import replace
from typing import Any

import pytest

from fedcascade import POLICIES, Budget, PerCategory, Synthetic, TopK, Trace, simulate
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.matrices import generate_ratings
from fedcascade.environments.options import Change
from fedcascade.environments.ratings import Ratings
from fedcascade.federation.policies import Policy
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.oracles import Oracle
from fedcascade.simulation.scenario import Scenario
from fedcascade_cuda.lowering import find_unsupported

from .record_traces import hash_trace

RARE: list[dict[str, Any]] = [{"scale": 0.2}, {"features": "logistic"}]
SIZES: dict[str, Any] = {"users": 6, "clusters": 2, "dimension": 6, "items": 20, "seed": 1}
ORACLE = TopK(length=3)


def play(world: Clustered, policy: Policy, oracle: Oracle = ORACLE, **options: Any) -> Trace:
    return simulate(world, policy, oracle=oracle, keep_lists=True, **{"rounds": 800, "threads": 1} | options)


def assert_equal(world: Clustered, policy: Policy, oracle: Oracle = ORACLE) -> None:
    """Both engines play the run to the bit."""
    exact, reference = (play(world, policy, oracle, engine=engine) for engine in ("exact", "reference"))
    assert exact.engine == "exact"
    assert replace(exact, engine="reference") == reference
    assert hash_trace(exact) == hash_trace(reference)


@pytest.mark.parametrize("rare", RARE)
@pytest.mark.parametrize("name", ["fedind", "fedc3ucb-h", "population", "fedlinucb", "club-cascade"])
def test_both_engines_give_equal_traces(rare: dict[str, Any], name: str) -> None:
    assert_equal(Synthetic(**SIZES, **rare), POLICIES[name])


@pytest.mark.parametrize("rare", RARE)
@pytest.mark.parametrize("changes", [{"drift": 400}, {"change": Change(at=200, until=600)}])
def test_both_engines_give_equal_traces_of_users_who_change(rare: dict[str, Any], changes: dict[str, Any]) -> None:
    assert_equal(Synthetic(**SIZES, **rare, **changes), POLICIES["fedind"])


@pytest.mark.parametrize("model", ["dcm", "dbn", "pbm"])
@pytest.mark.parametrize("rare", RARE)
def test_both_engines_give_equal_traces_of_other_click_models(rare: dict[str, Any], model: str) -> None:
    assert_equal(Synthetic(**SIZES, **rare, clicks=model), POLICIES["fedind"])


@pytest.mark.parametrize(
    "oracle", [PerCategory(length=3, limit=1), Budget(length=3, budget=1.0), EpsilonMixed(length=3, epsilon=0.2)]
)
@pytest.mark.parametrize("rare", RARE)
def test_both_engines_give_equal_traces_of_other_oracles(rare: dict[str, Any], oracle: Oracle) -> None:
    assert_equal(Synthetic(**SIZES, **rare, categories=3, costs=True), POLICIES["fedind"], oracle)


def test_both_engines_give_equal_traces_of_scaled_ratings() -> None:
    world = Ratings.from_matrix(generate_ratings(60, 80), users=10, clusters=3, dimension=8, items=20, scale=0.2)
    assert_equal(world, POLICIES["fedind"])


@pytest.mark.parametrize("features", ["lifted", "gaussian"])
def test_a_scale_of_one_changes_no_bit(features: Any) -> None:
    plain, scaled = Synthetic(**SIZES, features=features), Synthetic(**SIZES, features=features, scale=1.0)
    assert plain.thetas.tobytes() == scaled.thetas.tobytes()
    assert hash_trace(play(plain, POLICIES["fedind"])) == hash_trace(play(scaled, POLICIES["fedind"]))


def test_rare_clicks_make_another_run() -> None:
    worlds = [Synthetic(**SIZES), *(Synthetic(**SIZES, **rare) for rare in RARE)]
    rewards = [play(world, POLICIES["fedind"]).curve[-1].reward for world in worlds]
    assert rewards[0] > 1.5 * max(rewards[1:])
    assert len(set(rewards)) == 3


def test_a_gpu_says_that_it_does_not_know_logistic_clicks() -> None:
    scenario = Scenario(Synthetic(**SIZES, features="logistic"), POLICIES["fedind"], 10, ORACLE)
    assert find_unsupported(scenario) == "link Logistic"
    assert find_unsupported(Scenario(Synthetic(**SIZES, scale=0.2), POLICIES["fedind"], 10, ORACLE)) is None


@pytest.mark.parametrize(("scale", "least", "most"), [(0.2, 0.34, 0.46), (0.05, 0.085, 0.135)])
def test_a_scale_says_how_many_lists_are_clicked(scale: float, least: float, most: float) -> None:
    world = Synthetic(dimension=20, items=50, scale=scale, seed=1)
    trace = simulate(world, POLICIES["fedind"], rounds=4_000, oracle=TopK(length=4), engine="exact")
    assert least < trace.curve[-1].reward / 4_000 < most
