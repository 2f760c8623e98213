"""Users who click several items, or skip positions, do so by the chances of their model, and agents learn from it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedcascade import POLICIES, Synthetic, Trace, simulate
from fedcascade.environments.behaviours import Behaviour
from fedcascade.evaluation.click_models import MODELS
from fedcascade.evaluation.simulated import iterate_simulated_log
from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.policies import Policy
from fedcascade.learning.click_log import concatenate
from fedcascade.learning.discounts import PositionDiscounts
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation.cuda.lowering import find_unsupported
from fedcascade.simulation.scenario import Scenario


def make_world(**clicks: Any) -> Synthetic:
    return Synthetic(users=4, clusters=2, dimension=4, items=6, seed=1, **clicks)


WORLD = make_world()
WEIGHTS = np.array([0.6, 0.3, 0.8])


def count_clicks(behaviour: Behaviour, rounds: int = 4_000) -> tuple[np.ndarray, float]:
    """How often each position is clicked, and how often any is."""
    clicks, lists = np.zeros(3), 0
    for t in range(1, rounds + 1):
        attracted = WORLD.attracted(t, np.arange(3), WEIGHTS)
        clicked = list(behaviour.click(WORLD.seed, t, attracted, WEIGHTS))
        clicks[clicked] += 1
        lists += bool(clicked)
    return clicks / rounds, lists / rounds


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("dcm", [0.6, 0.3 * (0.4 + 0.6 * 0.5), 0.8 * (0.4 + 0.6 * 0.5) * (0.7 + 0.3 * 0.5)]),
        ("dbn", [0.6, 0.3 * (0.4 + 0.6 * 0.4), 0.8 * (0.4 + 0.6 * 0.4) * (0.7 + 0.3 * 0.7)]),
        ("pbm", [0.6, 0.3 * 0.5, 0.8 * 0.25]),
    ],
)
def test_positions_are_clicked_with_the_chances_of_the_model(model: str, expected: list[float]) -> None:
    behaviour = Behaviour(model=model)
    clicked, any_click = count_clicks(behaviour)
    assert np.allclose(clicked, expected, atol=0.03)
    assert any_click == pytest.approx(behaviour.compute_reward(WEIGHTS), abs=0.03)


def play_both(model: str, policy: Policy, oracle: Oracle, rounds: int) -> tuple[Trace, Trace]:
    """The same run of a world whose users click by a model, in the exact engine and in the reference."""
    world = make_world(clicks=model, click_level=0.6)
    exact, reference = (
        simulate(world, policy, rounds=rounds, oracle=oracle, checkpoints=2, keep_lists=True, engine=engine)
        for engine in ("exact", "reference")
    )
    assert (exact.engine, reference.engine) == ("exact", "reference")
    assert exact.lists is not None
    assert reference.lists is not None
    assert np.array_equal(exact.lists, reference.lists)
    return exact, reference


@pytest.mark.parametrize("model", ["dcm", "dbn", "pbm"])
def test_the_exact_engine_plays_other_click_models_to_the_bit_and_agents_learn(model: str) -> None:
    exact, reference = play_both(model, POLICIES["fedind"], TopK(length=3), rounds=500)
    assert replace(exact, engine="reference") == reference
    first, second = (point.regret for point in exact.curve)
    assert second - first < 0.8 * first


@pytest.mark.long
@pytest.mark.parametrize("model", ["dcm", "dbn", "pbm"])
@pytest.mark.parametrize("name", ["fedc3ucb-h", "oful", "fedlinucb", "dislinucb", "club-cascade", "phase-fclub"])
def test_all_loops_of_the_exact_engine_play_other_click_models(model: str, name: str) -> None:
    exact, reference = play_both(model, POLICIES[name], TopK(length=3), rounds=400)
    assert replace(exact, engine="reference") == reference


@pytest.mark.long
@pytest.mark.parametrize("model", ["dcm", "dbn", "pbm"])
def test_the_exact_engine_plays_click_models_with_chance_and_discounts(model: str) -> None:
    discounted = replace(POLICIES["c3-ucb"], positions=PositionDiscounts(discount=0.9))
    for policy, oracle in (
        (POLICIES["fedind"], EpsilonMixed(length=3, epsilon=0.3)),
        (discounted, TopK(length=3)),
    ):
        exact, reference = play_both(model, policy, oracle, rounds=300)
        assert replace(exact, engine="reference") == reference


def test_a_policy_that_learns_from_one_click_refuses_users_who_click_several() -> None:
    world = make_world(clicks="dcm")
    watchful = replace(POLICIES["fedind"], changes=ChangeDetection())
    for engine in ("exact", "reference"):
        with pytest.raises(ValueError, match="learns from one click per list, and dcm has several"):
            simulate(world, watchful, rounds=10, oracle=TopK(length=3), engine=engine)


def test_a_gpu_says_that_it_does_not_know_the_model() -> None:
    scenario = Scenario(make_world(clicks="pbm"), POLICIES["fedind"], 10, TopK(length=3))
    assert find_unsupported(scenario) == "click model pbm"


def test_a_log_has_all_clicks_and_their_model_is_recovered() -> None:
    world = make_world(clicks="dcm", click_level=0.7)
    oracle = EpsilonMixed(length=3, epsilon=1.0)
    trace = simulate(world, POLICIES["fedind"], rounds=1_500, oracle=oracle, engine="reference", keep_lists=True)
    log = concatenate(list(iterate_simulated_log(world, trace)))
    assert (log.clicks.sum(axis=1) > 1).mean() > 0.2
    assert int(log.clicks.any(axis=1).sum()) == trace.reward
    going_on = MODELS["dcm"](log).going_on
    assert going_on is not None
    assert going_on[:2] == pytest.approx([0.7, 0.7], abs=0.1)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ValueError, match="click model"):
        Behaviour(model="dcn")
    with pytest.raises(ValueError, match="level"):
        Behaviour(model="dcm", level=1.5)
