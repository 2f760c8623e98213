"""k-means finds what brute force finds, gives every cluster a point, and is the same for the same seed."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from fedcascade.environments.matrices import cluster_points

SEEDS = st.integers(0, 2**64 - 1)


def cost(points: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    groups = [points[labels == label] for label in np.unique(labels)]
    return float(sum(((group - group.mean(axis=0)) ** 2).sum() for group in groups))


@pytest.mark.parametrize("clusters", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_few_points_are_divided_as_well_as_can_be(clusters: int, seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(7, 2))
    _, labels = cluster_points(points, clusters, seed=seed)
    best = min(
        cost(points, np.array(each)) for each in product(range(clusters), repeat=7) if len(set(each)) == clusters
    )
    assert cost(points, labels) == pytest.approx(best)


def test_many_points_are_divided_as_well_as_by_scipy() -> None:
    points = np.random.default_rng(0).normal(size=(60, 8))
    _, labels = cluster_points(points, 10, seed=1, starts=30)
    theirs = min(cost(points, kmeans2(points, 10, minit="++", rng=seed)[1]) for seed in range(30))
    assert cost(points, labels) <= 1.02 * theirs


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, data=st.data())
def test_every_cluster_has_a_point_and_its_centre_is_their_mean(seed: int, data: st.DataObject) -> None:
    # Points on a small grid, so that many are equal.
    flat = data.draw(
        st.lists(st.integers(0, 3), min_size=2, max_size=40).map(lambda found: found[: len(found) // 2 * 2])
    )
    points = np.array(flat, np.float64).reshape(-1, 2)
    clusters = data.draw(st.integers(1, len(np.unique(points, axis=0))))
    centres, labels = cluster_points(points, clusters, seed=seed, starts=3)
    assert sorted(set(labels.tolist())) == list(range(clusters))
    for label in range(clusters):
        np.testing.assert_allclose(centres[label], points[labels == label].mean(axis=0), atol=1e-12)


def test_the_seed_decides() -> None:
    points = np.random.default_rng(3).normal(size=(40, 5))
    one, same, other = (cluster_points(points, 8, seed=seed, starts=1) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one[0], same[0])
    assert not np.array_equal(one[0], other[0])


def test_more_clusters_than_different_points_are_refused() -> None:
    with pytest.raises(ValueError, match="clusters must be <= 2, the number of distinct users, got 3"):
        cluster_points(np.array([[0.0], [1.0], [0.0]]), 3, seed=0)
