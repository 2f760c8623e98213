"""Users who click several items, or skip positions, do so by the chances of their model, and agents learn from it."""

import numpy as np
import pytest

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.environments.behaviours import Behaviour
from fedcascade.environments.clustered import Clustered
from fedcascade.evaluation.click_models import MODELS
from fedcascade.evaluation.simulated import iterate_simulated_log
from fedcascade.learning.click_log import concatenate
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.oracles import TopK

WORLD = Synthetic(users=4, clusters=2, dimension=4, items=6, seed=1)
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


@pytest.mark.parametrize("model", ["dcm", "dbn", "pbm"])
def test_agents_learn_and_the_exact_engine_says_that_it_does_not_know_the_model(model: str) -> None:
    world: Clustered = WORLD.with_behaviour(Behaviour(model=model))
    with pytest.warns(UserWarning, match=f"the exact engine does not know the click model {model}"):
        trace = simulate(world, POLICIES["fedind"], rounds=600, oracle=TopK(length=3), checkpoints=2)
    assert trace.engine == "reference"
    first, second = (point.regret for point in trace.curve)
    assert second - first < 0.7 * first


def test_a_log_has_all_clicks_and_their_model_is_recovered() -> None:
    world = WORLD.with_behaviour(Behaviour(model="dcm", level=0.7))
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
