"""Users that change, arrive and leave: both engines leave the same trace."""

import numpy as np
import pytest

from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import POLICIES
from fedcascade.simulation import reference
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.scenario import Scenario

from ..environments.test_life import LIVES, make_ratings, make_world


@pytest.mark.parametrize("name", LIVES)
@pytest.mark.parametrize("policy", ["population", "fedc3ucb-h"])
def test_both_engines_play_the_same_life(name: str, policy: str) -> None:
    for world in (make_world(LIVES[name]), make_ratings(LIVES[name])):
        system = POLICIES[policy].with_beta(0.7)
        scenario = Scenario(world, system, 900, keep_lists=True)
        fast, slow = exact.simulate(scenario), reference.simulate(scenario)
        assert (fast.curve, fast.ledger, fast.user_records) == (slow.curve, slow.ledger, slow.user_records)
        np.testing.assert_array_equal(fast.lists, slow.lists)
        honest = [record for record in fast.user_records if record.role.kind != "poisoning"]
        assert fast.regret == pytest.approx(sum(record.regret for record in honest))
        assert sum(record.rounds for record in fast.user_records) == 900


@pytest.mark.parametrize("policy", ["population", "fedc3ucb-h", "known-clusters"])
@pytest.mark.parametrize("name", ["recurring", "everything"])
def test_systems_for_living_populations_leave_the_same_trace_in_both_engines(policy: str, name: str) -> None:
    for world in (make_world(LIVES[name]), make_world(LIVES[name], features="gaussian"), make_ratings(LIVES[name])):
        system = POLICIES[policy].with_beta(0.7)
        if policy != "known-clusters":
            system = system.with_constants(drift="restart")
        system = system.with_known_constants({"threshold": 4.0, "limit": 3.0, "every": 3})
        scenario = Scenario(world, system, 900, keep_lists=True)
        fast, slow = exact.simulate(scenario, window=77), reference.simulate(scenario)
        assert (fast.curve, fast.ledger, fast.user_records) == (slow.curve, slow.ledger, slow.user_records)
        assert fast.partition == slow.partition
        np.testing.assert_array_equal(fast.lists, slow.lists)
        if policy == "known-clusters":
            changed = {exchange.agent for exchange in fast.ledger if exchange.cause is Cause.CHANGE}
            assert changed == {user for user, record in enumerate(fast.user_records) if record.role.kind != "steady"}
