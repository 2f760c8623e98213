"""Oracles that explore: both engines choose the same lists."""

import pytest

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.learning.exploration import EpsilonMixed, PlackettLuce
from fedcascade.learning.oracles import Oracle


@pytest.mark.parametrize("oracle", [PlackettLuce(length=3, temperature=0.2), EpsilonMixed(length=3, epsilon=0.3)])
def test_both_engines_choose_the_same_lists(oracle: Oracle) -> None:
    world = Synthetic(users=4, clusters=2, dimension=5, items=12, seed=3)
    policy = POLICIES["population"]
    exact, slow = (
        simulate(world, policy, rounds=300, oracle=oracle, engine=engine, keep_lists=True)
        for engine in ("exact", "reference")
    )
    assert exact.curve == slow.curve
    assert exact.lists is not None
    assert slow.lists is not None
    assert (exact.lists == slow.lists).all()
    assert exact.propensities is not None
    assert slow.propensities is not None
    assert (exact.propensities == slow.propensities).all()
    assert 0.0 < exact.propensities.min() < 0.5
    greedy = simulate(world, policy, rounds=300, keep_lists=True)
    assert greedy.lists is not None
    assert (greedy.lists[:, :3] != exact.lists).any()
