"""Thompson sampling draws thetas of the right spread, the same in both engines, and knows no chances."""

from dataclasses import replace

import numpy as np
import pytest

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.evaluation.fit import freeze_policy
from fedcascade.federation.decisions import ThompsonSampling
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.learning.thompson import draw_theta

SAMPLING = replace(POLICIES["population"], decision=ThompsonSampling())


def test_thetas_have_the_mean_and_spread_of_the_posterior() -> None:
    gram = np.array([[3.0, 1.0], [1.0, 2.0]])
    ridge, draw = Ridge(Statistics(gram, np.array([1.0, 0.5]), 5, 2, 5), 1.0), np.random.default_rng(5)
    words = draw.integers(0, 2**32, (20_000, 7), np.uint32)
    drawn = np.array([draw_theta(ridge.theta, ridge.root, 0.5, row) for row in words])
    wanted = 0.25 * np.linalg.inv(gram + np.eye(2))
    assert np.allclose(drawn.mean(axis=0), ridge.theta, atol=4 * np.sqrt(wanted.max() / len(drawn)))
    assert np.allclose(np.cov(drawn.T), wanted, atol=0.002)


@pytest.mark.parametrize("name", ["population", "oful"])
def test_both_engines_sample_the_same_lists(name: str) -> None:
    world = Synthetic(users=4, clusters=2, dimension=5, items=12, seed=3)
    policy = replace(POLICIES[name], decision=ThompsonSampling())
    exact, slow = (
        simulate(world, policy, rounds=300, oracle=TopK(length=3), engine=engine, keep_lists=True)
        for engine in ("exact", "reference")
    )
    assert replace(exact, engine="reference") == slow
    assert exact.lists is not None
    assert slow.lists is not None
    assert (exact.lists == slow.lists).all()
    assert exact.propensities is None
    greedy = simulate(world, POLICIES[name], rounds=300, oracle=TopK(length=3), keep_lists=True)
    assert greedy.lists is not None
    assert (greedy.lists != exact.lists).any()


def test_it_learns() -> None:
    world = Synthetic(users=4, clusters=2, dimension=5, items=12, seed=3)
    curve = simulate(world, SAMPLING, rounds=2_000, checkpoints=2).curve
    assert curve[1].regret - curve[0].regret < 0.6 * curve[0].regret


def test_its_unknown_chances_are_not_evaluated() -> None:
    sums = LogSums(3)
    with pytest.raises(ValueError, match="population samples: the chances of its lists are not known"):
        freeze_policy(SAMPLING, sums, TopK())
    with pytest.raises(ValueError, match="draws one theta"):
        replace(POLICIES["async-linucb-am"], decision=ThompsonSampling())
