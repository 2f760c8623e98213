"""The compiled ridge agrees with numpy.linalg, and a score's bits do not depend on its neighbours."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

SEEDS = st.integers(0, 2**32)
DIMENSIONS = st.integers(1, 24)
LAMBDAS = st.floats(-3.0, 3.0).map(lambda power: 10.0**power)


def units(seed: int, count: int, dimension: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).normal(size=(count, dimension))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), np.float32)


def learned(seed: int, rounds: int, dimension: int) -> Statistics:
    random = np.random.default_rng(seed)
    total = Statistics.zero(dimension)
    for start in random.integers(0, 2**32, rounds):
        total = total.observe(units(start, 1, dimension), 0 if random.random() < 0.5 else None)
    return total


def sigma(statistics: Statistics, lambda_: float) -> NDArray[np.float64]:
    return statistics.gram + lambda_ * np.eye(statistics.dimension)


@settings(deadline=None, max_examples=80)
@given(SEEDS, DIMENSIONS, st.integers(0, 40), LAMBDAS)
def test_estimate_widths_and_determinant_are_numpys(seed: int, dimension: int, rounds: int, lambda_: float) -> None:
    statistics = learned(seed, rounds, dimension)
    ridge = Ridge(statistics, lambda_)
    matrix, items = sigma(statistics, lambda_), units(seed + 1, 7, dimension)
    x = items.astype(np.float64)
    theta = np.linalg.solve(matrix, statistics.moment)
    width = np.sqrt(np.einsum("ij,ij->i", x, np.linalg.solve(matrix, x.T).T))
    np.testing.assert_allclose(ridge.theta, theta, rtol=1e-8, atol=1e-9 * max(1.0, np.abs(theta).max()))
    np.testing.assert_allclose(ridge.width(items), width, rtol=1e-8)
    assert ridge.log_det == pytest.approx(np.linalg.slogdet(matrix)[1], rel=1e-10, abs=1e-10)
    scores = np.minimum(x @ theta + 0.3 * width, 1.0)
    np.testing.assert_allclose(ridge.scores(items, 0.3), scores, rtol=1e-8, atol=1e-8)


@settings(deadline=None, max_examples=50)
@given(SEEDS, DIMENSIONS, st.integers(0, 20), st.integers(0, 10), LAMBDAS)
def test_growth_is_the_ratio_of_determinants(
    seed: int, dimension: int, before: int, since: int, lambda_: float
) -> None:
    old, new = learned(seed, before, dimension), learned(seed + 1, since, dimension)
    larger = np.linalg.slogdet(sigma(old + new, lambda_))[1]
    expected = larger - np.linalg.slogdet(sigma(old, lambda_))[1]
    assert Ridge(old, lambda_).growth(new) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(SEEDS, DIMENSIONS, st.integers(1, 5), st.floats(1e-4, 10.0))
def test_millions_of_observations_stay_finite(seed: int, dimension: int, ranks: int, lambda_: float) -> None:
    # A gram of few directions, 10^7 times each: the condition number is up to 10^11.
    x = units(seed, ranks, dimension).astype(np.float64)
    gram = 1e7 * (x.T @ x)
    gram = (gram + gram.T) / 2
    statistics = Statistics(gram, 3e6 * x.sum(axis=0), ranks * 10**7, ranks * 3 * 10**6, 10**7)
    ridge, items = Ridge(statistics, lambda_), units(seed + 1, 5, dimension)
    assert np.all(np.isfinite(ridge.theta))
    assert np.all(np.isfinite(ridge.width(items)))
    assert np.all(ridge.width(items) >= 0)
    assert np.all(np.isfinite(ridge.scores(items, 10.5)))
    assert ridge.log_det == pytest.approx(np.linalg.slogdet(sigma(statistics, lambda_))[1], rel=1e-5, abs=1e-4)
    # The examined directions are known: one step of 10^7 observations leaves a width below 10^-3.
    assert np.all(ridge.width(x) < 1e-3)


def test_a_large_count_in_every_direction_is_as_accurate_as_a_small_one() -> None:
    small = learned(3, 60, 8)
    large = Statistics(small.gram * 1e7, small.moment * 1e7, small.count, small.clicks, small.rounds)
    np.testing.assert_allclose(Ridge(large, 4e7).theta, Ridge(small, 4.0).theta, rtol=1e-11)
    items = units(4, 6, 8)
    np.testing.assert_allclose(Ridge(large, 4e7).width(items) * 1e7**0.5, Ridge(small, 4.0).width(items), rtol=1e-11)


@settings(deadline=None, max_examples=50)
@given(SEEDS, DIMENSIONS, st.integers(1, 40), st.integers(0, 30), st.floats(0.0, 20.0))
def test_a_score_has_the_same_bits_alone_in_any_order_and_among_others(
    seed: int, dimension: int, items: int, rounds: int, beta: float
) -> None:
    ridge, features = Ridge(learned(seed, rounds, dimension), 4.0), units(seed + 1, items, dimension)
    together = ridge.scores(features, beta)
    alone = np.array([ridge.scores(features[i : i + 1], beta)[0] for i in range(items)])
    assert alone.tobytes() == together.tobytes()
    order = np.random.default_rng(seed).permutation(items)
    assert ridge.scores(features[order], beta).tobytes() == together[order].tobytes()
    few = order[: max(1, items // 3)]
    assert ridge.scores(features[few], beta).tobytes() == together[few].tobytes()
    assert ridge.scores(np.asfortranarray(features), beta).tobytes() == together.tobytes()


def test_scores_never_exceed_one_and_reach_it() -> None:
    scores = Ridge(Statistics.zero(3), 1.0).scores(np.eye(3, dtype=np.float32) * [[1.0], [0.5], [0.1]], 2.0)
    np.testing.assert_allclose(scores, [1.0, 1.0, 0.2], rtol=1e-6)


@pytest.mark.parametrize("lambda_", [0.0, -1.0, float("nan"), float("inf")])
def test_a_regulariser_that_is_not_positive_is_refused(lambda_: float) -> None:
    with pytest.raises(ValueError, match="lambda"):
        Ridge(Statistics.zero(2), lambda_)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [(0, 0), (2, 2), (0, 2), (2, 0), (2, 1)])
def test_a_gram_that_is_not_finite_is_refused(bad: float, place: tuple[int, int]) -> None:
    gram = np.eye(3)
    gram[place] = bad
    with pytest.raises(ValueError, match="gram"):
        Ridge(Statistics(gram, np.zeros(3), 3, 0, 1), 1.0)


def test_a_gram_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="gram"):
        Ridge(Statistics(-5.0 * np.eye(2), np.zeros(2), 3, 0, 1), 1.0)
    with pytest.raises(ValueError, match="gram"):
        Ridge(Statistics(np.array([[0.0, 9.0], [9.0, 0.0]]), np.zeros(2), 3, 0, 1), 1.0)


def test_a_gram_that_is_not_symmetric_is_refused() -> None:
    with pytest.raises(ValueError, match="gram"):
        Ridge(Statistics(np.array([[1.0, 0.0], [0.5, 1.0]]), np.zeros(2), 3, 0, 1), 1.0)


def test_a_moment_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="moment"):
        Ridge(Statistics(np.eye(2), np.array([0.0, np.nan]), 3, 0, 1), 1.0)
