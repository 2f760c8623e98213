"""Clicks are as rare as was asked for: scaled thetas, and logistic probabilities."""

from typing import Any

import numpy as np
import pytest

from fedcascade import Synthetic
from fedcascade.environments.matrices import generate_ratings
from fedcascade.environments.options import Change, Poisoning
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import LOGISTIC
from fedcascade.testing import check_environment

MATRIX = generate_ratings(150, 120, seed=2)
LIFE: dict[str, Any] = {"change": Change(at=50, until=150), "poisoning": Poisoning(share=0.25)}
RATINGS: dict[str, Any] = {"users": 8, "clusters": 3, "dimension": 6, "items": 9}


def make_world(**options: Any) -> Synthetic:
    return Synthetic(**{"users": 12, "clusters": 2, "dimension": 6, "items": 8, "seed": 1} | options)


@pytest.mark.parametrize("features", ["lifted", "gaussian", "logistic"])
@pytest.mark.parametrize("options", [{}, {"drift": 100}, {"gap": 0.5, "drift": 100}, LIFE])
def test_all_thetas_are_scaled(features: str, options: dict[str, Any]) -> None:
    plain, scaled = (make_world(features=features, scale=scale, **options) for scale in (1.0, 0.25))
    for t in (1, 99, 100, 200):
        np.testing.assert_allclose(scaled.get_thetas(t), 0.25 * plain.get_thetas(t), rtol=1e-14)
        np.testing.assert_array_equal(scaled.items(t), plain.items(t))


@pytest.mark.parametrize("preset", ["catalogue", "paper"])
@pytest.mark.parametrize("events", [{}, LIFE])
def test_all_thetas_of_ratings_are_scaled(preset: str, events: dict[str, Any]) -> None:
    plain, scaled = (
        Ratings.from_matrix(MATRIX, preset=preset, scale=scale, **RATINGS, **events) for scale in (1.0, 0.25)
    )
    for t in (1, 100, 200):
        np.testing.assert_allclose(scaled.get_thetas(t), 0.25 * plain.get_thetas(t), rtol=1e-14)


@pytest.mark.parametrize("scale", [0, -0.5, 1.01, float("nan"), float("inf"), "0.2", None])
def test_other_scales_are_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match=rf"^scale must be in \(0, 1\], got {scale}$"):
        make_world(scale=scale)
    with pytest.raises(ValueError, match=rf"^scale must be in \(0, 1\], got {scale}$"):
        Ratings.from_matrix(MATRIX, scale=scale, **RATINGS)


def test_logistic_probabilities_are_small_with_a_few_good_items() -> None:
    world = Synthetic(dimension=20, items=500, features="logistic", seed=3)
    weights = np.concatenate([world.weights(t, t % 40, world.items(t)) for t in range(1, 201)])
    assert np.median(weights) == pytest.approx(0.005, abs=0.0005)
    assert np.mean((weights >= 0.1) & (weights <= 0.4)) == pytest.approx(0.01, abs=0.002)
    assert np.mean(weights > 0.4) < 0.0005


def test_logistic_weights_are_the_sigmoid_and_the_world_keeps_the_contract() -> None:
    world = make_world(features="logistic")
    check_environment(world)
    items = world.items(3)
    logits = LOGISTIC.steepness * (items.astype(np.float64) @ world.thetas[2]) + LOGISTIC.bias
    np.testing.assert_allclose(world.weights(3, 2, items), 1 / (1 + np.exp(-logits)), rtol=1e-12)
    assert np.all(np.linalg.norm(items, axis=1) <= 1)
    lifted = make_world()
    np.testing.assert_array_equal(world.thetas, lifted.thetas)
    np.testing.assert_array_equal(items, lifted.items(3))
