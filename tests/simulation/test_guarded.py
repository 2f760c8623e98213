"""Policies with bounded influence: both engines leave the same trace."""

import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES, Policy, guard_policy
from fedcascade.simulation.engines import simulate

from ..federation.grouping.test_guarded import D


@pytest.mark.parametrize("name", ["fedc3ucb-h", "population", "fedlinucb"])
def test_a_guarded_policy_plays_the_same_in_both_engines(name: str) -> None:
    policy: Policy = guard_policy(POLICIES[name].with_known_constants({"alpha_d": 0.5}).with_beta(0.5))
    assert policy.sharing is not None
    world = Synthetic(users=6, clusters=2, dimension=D, items=8, seed=3)
    traces = [simulate(world, policy, rounds=400, checkpoints=4, engine=engine) for engine in ("exact", "reference")]
    assert traces[0].curve == traces[1].curve
    assert traces[0].partition == traces[1].partition
