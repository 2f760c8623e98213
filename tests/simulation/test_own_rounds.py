"""Regret by the rounds of each user: the same from both engines, and what a plain loop finds."""

import numpy as np
import pytest

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.simulation.user_regret import COHORTS, OwnRounds


def test_curves_are_what_a_plain_loop_finds() -> None:
    draws = np.random.default_rng(5)
    users, regret = draws.integers(0, 13, 400), draws.uniform(size=400)
    own = OwnRounds(users=13, most=20)
    for part in np.split(np.arange(400), [7, 8, 250]):
        own.record(users[part], regret[part])
    order = list(dict.fromkeys(users.tolist()))
    for cohort, curve in enumerate(own.list_curves()):
        members = [user for place, user in enumerate(order) if place * COHORTS // 13 == cohort]
        rows = [regret[users == user][:20] for user in members]
        means = [np.mean([row[r] for row in rows if row.size > r]) for r in range(len(curve.regret))]
        assert curve.users == len(members)
        assert len(curve.regret) == max(row.size for row in rows)
        np.testing.assert_allclose(curve.regret, np.cumsum(means))


@pytest.mark.parametrize("policy", ["fedind", "fedc3ucb-h", "async-linucb"])
def test_both_engines_record_the_same_curves(policy: str) -> None:
    world = Synthetic(users=8, clusters=2, dimension=4, items=8, arrivals="zipf")
    fast = simulate(world, POLICIES[policy], rounds=300, own_rounds=25)
    slow = simulate(world, POLICIES[policy], rounds=300, own_rounds=25, engine="reference")
    assert fast.own_curves == slow.own_curves
    assert [curve.users for curve in fast.own_curves] == [2, 2, 2, 2]
    assert len(fast.own_curves[0].regret) == 25
    assert simulate(world, POLICIES[policy], rounds=300).own_curves == ()
