"""Simulations with private uploads."""

from dataclasses import replace

import numpy as np
import pytest

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.federation.policies import PRIVATE_POPULATION
from fedcascade.federation.privacy import PrivateUploads, Unit
from fedcascade.learning.oracles import TopK
from fedcascade.simulation import reference
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.scenario import Scenario


def test_both_engines_play_private_uploads_alike() -> None:
    environment = Synthetic(users=12, clusters=2, dimension=6, items=20, seed=5)
    policy = PRIVATE_POPULATION.with_constants(epsilon=3.0)
    scenario = Scenario(environment, policy, 700, TopK(length=3), keep_lists=True)
    fast, slow = exact.simulate(scenario), reference.simulate(scenario)
    np.testing.assert_array_equal(fast.lists, slow.lists)
    assert (fast.ledger, fast.curve, fast.partition) == (slow.ledger, slow.curve, slow.partition)
    other = exact.simulate(replace(scenario, policy=policy.with_constants(epsilon=1.0)))
    assert fast.curve != other.curve


def test_a_spent_budget_of_the_user_stops_uploads_and_not_learning() -> None:
    environment = Synthetic(users=3, clusters=1, dimension=4, items=10, seed=5)
    policy = replace(PRIVATE_POPULATION, privacy=PrivateUploads(epsilon=1.0, unit=Unit.USER, uploads=3))
    with pytest.warns(UserWarning, match="private uploads with the unit user"):
        trace = simulate(environment, policy, rounds=600)
    assert trace.communications() == 9
    assert trace.regret < simulate(environment, POLICIES["fedind"].with_beta(0.7), rounds=600).regret * 1.3
