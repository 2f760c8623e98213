"""Other click models than the cascade, in the engines."""

from dataclasses import replace

import numpy as np
import pytest

from fedcascade import POLICIES, Trace, simulate
from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.policies import Policy
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation.scenario import Scenario
from fedcascade_cuda.lowering import find_unsupported

from ..environments.test_behaviours import make_world


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
def test_the_exact_engine_plays_click_models_with_chance(model: str) -> None:
    exact, reference = play_both(model, POLICIES["fedind"], EpsilonMixed(length=3, epsilon=0.3), rounds=300)
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
