"""Click models: parameters are recovered from simulated logs, and the true model has the least perplexity."""

from collections.abc import Iterator

import pytest
from click_model_recovery import measure_errors, simulate_clicks

from fedcascade import POLICIES, simulate
from fedcascade.evaluation.click_models import MODELS, compare_models
from fedcascade.evaluation.simulated import iterate_simulated_log
from fedcascade.learning.click_log import ClickLog, concatenate
from fedcascade.learning.exploration import EpsilonMixed

from ..environments.test_behaviours import make_world

BARS = {"attraction": 0.03, "looked at": 0.03, "going on": 0.05, "satisfaction": 0.1}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_recovered(name: str) -> None:
    errors = measure_errors(MODELS[name](simulate_clicks(name, seed=1)))
    assert all(error < BARS[kind] for kind, error in errors.items()), errors
    kinds = {"cascade": [], "dcm": ["going on"], "dbn": ["satisfaction"], "pbm": ["looked at"]}
    assert list(errors) == ["attraction", *kinds[name]]


@pytest.mark.parametrize("name", MODELS)
def test_the_true_model_has_the_least_perplexity(name: str) -> None:
    log = simulate_clicks(name, seed=2)

    def batches() -> Iterator[ClickLog]:
        for start in range(0, len(log), 10_000):
            yield log.select(slice(start, start + 10_000))

    fits = {found.model.name: found.perplexity for found in compare_models(batches, len(log), train=0.8)}
    assert fits[name] <= min(fits.values()) + 0.002
    assert 1.0 < fits[name] < 2.0


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
