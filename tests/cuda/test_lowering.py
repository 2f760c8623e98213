"""What the CUDA engine knows, and how it says so."""

from dataclasses import replace

import numpy as np
import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.confidence import Oful
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.exact import arrays
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.scenario import Scenario, prepare_simulation
from fedcascade_cuda.layout import Layout
from fedcascade_cuda.lowering import StopRule, find_unsupported, lower_triggers

WORLD, ORACLE = Synthetic(users=2, clusters=1, dimension=3, items=5), TopK(length=2)


def test_parts_that_the_device_does_not_know_are_named() -> None:
    narrow = replace(POLICIES["fedind"], confidence=Oful())
    drifting = Synthetic(users=4, clusters=2, dimension=6, items=9, drift=5)
    crowded = Synthetic(users=2, clusters=1, dimension=3, items=10_000)
    assert find_unsupported(Scenario(WORLD, POLICIES["fedc3ucb-h"], 10, ORACLE)) is None
    assert find_unsupported(Scenario(WORLD, POLICIES["dislinucb"], 10, ORACLE)) == "reply rule AllAgents"
    assert (
        find_unsupported(Scenario(drifting, POLICIES["fedind"], 10, ORACLE)) == "environment with a changing population"
    )
    assert find_unsupported(Scenario(WORLD, POLICIES["population"], 10, ORACLE)) == "part Trust"
    assert find_unsupported(Scenario(WORLD, POLICIES["fedind"], 10, ORACLE, batch=5)) == "late feedback"
    valued = Synthetic(users=2, clusters=1, dimension=3, items=5, rewards="beta")
    assert find_unsupported(Scenario(valued, POLICIES["fedind"], 10, ORACLE)) == "values of clicks in the environment"
    changing = POLICIES["fedind"].with_constants(drift="restart")
    assert find_unsupported(Scenario(WORLD, changing, 10, ORACLE)) == "part ChangeDetection"
    assert find_unsupported(Scenario(WORLD, narrow, 10, ORACLE)) == "confidence Oful in every round"
    assert (
        find_unsupported(Scenario(crowded, POLICIES["fedind"], 10, ORACLE))
        == "number of items: too many for a multiprocessor"
    )


def compile_policy(name: str) -> arrays.CompiledPolicy:
    scenario = Scenario(WORLD, POLICIES[name], 400, ORACLE)
    return ExchangeDriver(scenario, prepare_simulation(scenario)).compiled_policy


def test_every_trigger_says_where_its_agents_stop() -> None:
    assert lower_triggers(compile_policy("fedind")) == StopRule()
    assert lower_triggers(compile_policy("force-comm")).at_doublings
    rule = lower_triggers(compile_policy("fedc3ucb-h"))
    assert rule.p_scale > 0.0
    assert 0.0 < rule.level < rule.bound < np.inf


def test_a_trigger_without_a_row_is_an_error() -> None:
    policy = compile_policy("fedind")._replace(
        triggers=np.array([arrays.SYNCHRONISATION]), levels=np.ones(1), bounds=np.ones(1)
    )
    with pytest.raises(NotImplementedError, match=f"kind {arrays.SYNCHRONISATION}"):
        lower_triggers(policy)


@pytest.mark.parametrize("d", [1, 5, 20])
def test_the_parts_of_a_row_follow_each_other(d: int) -> None:
    layout = Layout.of(d)
    sizes = np.diff([0, *layout])
    assert sizes.tolist() == [d, d * d, d * d, d, 2, 4, d, d * d, d]
    assert layout.own_size == 4 + d + d * d
