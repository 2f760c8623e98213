"""Shared and personal parts: alternating minimisation ends where the joint ridge regression is."""

import numpy as np
import pytest

from fedcascade.federation.personal import PersonalEstimate, subtract_explained
from fedcascade.learning.ridge import Ridge, stack_estimates
from fedcascade.learning.statistics import Statistics

D, LAMBDA = 5, 0.7


def data(seed: int, rounds: int = 40) -> tuple[list[tuple[np.ndarray, int | None]], Statistics]:
    generator = np.random.default_rng(seed)
    lists = []
    seen = Statistics.zero(D)
    for _ in range(rounds):
        x = generator.normal(size=(3, D))
        x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
        click = int(generator.integers(4))
        lists.append((x, click if click < 3 else None))
        seen = seen.observe(*lists[-1])
    return lists, seen


def test_alternating_minimisation_ends_at_the_joint_estimate() -> None:
    """Minimise |y - X (g + u)|^2 + lambda |g|^2 + lambda |u|^2 over both parts at once, and in turns."""
    lists, seen = data(1)
    personal = PersonalEstimate(D, LAMBDA)
    for shown, click in lists:
        personal.observe(shown, click)
    for _ in range(3_000):
        shared = Ridge(personal.subtract_personal(seen), LAMBDA)
        estimate = personal.fit_to(shared)
    gram = seen.gram
    joint = np.block([[gram + LAMBDA * np.eye(D), gram], [gram, gram + LAMBDA * np.eye(D)]])
    both = np.linalg.solve(joint, np.concatenate([seen.moment, seen.moment]))
    np.testing.assert_allclose(shared.theta, both[:D], atol=1e-6)
    np.testing.assert_allclose(personal.theta, both[D:], atol=1e-6)
    np.testing.assert_allclose(estimate.theta, both[:D] + both[D:], atol=1e-6)


def test_partial_rewards_are_what_is_left() -> None:
    lists, seen = data(2)
    theta = np.arange(D) / 10
    moment = np.zeros(D)
    for shown, click in lists:
        for position in range(3 if click is None else click + 1):
            x = shown[position].astype(float)
            moment += x * ((position == click) - x @ theta)
    left = subtract_explained(seen, theta)
    np.testing.assert_allclose(left.moment, moment, atol=1e-12)
    np.testing.assert_array_equal(left.gram, seen.gram)
    assert (left.count, left.clicks, left.rounds) == (seen.count, seen.clicks, seen.rounds)


@pytest.mark.parametrize("seed", range(5))
def test_a_stacked_width_is_that_of_the_stacked_features(seed: int) -> None:
    (_, one), (_, other) = data(seed), data(seed + 100, rounds=7)
    shared, own = Ridge(one, LAMBDA), Ridge(other, LAMBDA)
    both = stack_estimates(shared, own)
    x = np.random.default_rng(seed).normal(size=(20, D)).astype(np.float32)
    zero = np.zeros((D, D))
    sigma = np.block([[one.gram + LAMBDA * np.eye(D), zero], [zero, other.gram + LAMBDA * np.eye(D)]])
    pairs = np.hstack([x, x]).astype(float)
    np.testing.assert_allclose(
        both.width(x) ** 2, np.einsum("ij,ij->i", pairs, np.linalg.solve(sigma, pairs.T).T), rtol=1e-9
    )
    assert np.all(np.triu(both.root, 1) == 0.0)
    assert both.log_det == shared.log_det
