"""The synthetic world is the one that was asked for, and every answer depends on the round alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedcascade.environments.synthetic import Synthetic


def world(**changes: Any) -> Synthetic:
    options: dict[str, Any] = {"users": 12, "clusters": 3, "dimension": 6, "items": 8, "seed": 1}
    return Synthetic(**(options | changes))


def cluster_thetas(made: Synthetic) -> np.ndarray:
    return np.array([made.thetas[made.clusters == label][0] for label in np.unique(made.clusters)])


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 60), st.data())
def test_clusters_are_of_equal_size_as_nearly_as_can_be(users: int, data: st.DataObject) -> None:
    clusters = data.draw(st.integers(1, users))
    made = world(users=users, clusters=clusters, directions="random", seed=data.draw(st.integers(0, 2**64 - 1)))
    sizes = np.bincount(made.clusters)
    assert sizes.size == clusters
    assert sizes.sum() == users
    assert sizes.max() - sizes.min() <= 1


def test_clusters_are_of_the_sizes_given() -> None:
    made = world(clusters=[7, 1, 4])
    assert np.bincount(made.clusters).tolist() == [7, 1, 4]


def test_clusters_are_in_another_order_in_another_world() -> None:
    orders = {tuple(world(seed=seed).clusters.tolist()) for seed in range(20)}
    assert len(orders) > 15
    assert tuple(np.repeat([0, 1, 2], 4).tolist()) not in orders


def test_users_of_a_cluster_share_their_theta_and_others_do_not() -> None:
    made = world()
    for one in range(made.users):
        for other in range(made.users):
            alike = made.clusters[one] == made.clusters[other]
            assert np.array_equal(made.thetas[one], made.thetas[other]) == alike


@pytest.mark.parametrize("clusters", [1, 3, 5])
def test_lifted_thetas_are_orthonormal_before_lifting(clusters: int) -> None:
    thetas = cluster_thetas(world(clusters=clusters))
    np.testing.assert_allclose(thetas[:, -1], 1 / np.sqrt(2), rtol=1e-14)
    free = thetas[:, :-1] * np.sqrt(2)
    np.testing.assert_allclose(free @ free.T, np.eye(clusters), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(thetas, axis=1), 1.0, rtol=1e-12)
    gaps = np.linalg.norm(thetas[:, None] - thetas[None], axis=2)
    np.testing.assert_allclose(gaps, 1 - np.eye(clusters), atol=1e-12)


@pytest.mark.parametrize("clusters", [1, 3, 6])
def test_gaussian_thetas_are_orthonormal(clusters: int) -> None:
    thetas = cluster_thetas(world(clusters=clusters, features="gaussian"))
    np.testing.assert_allclose(thetas @ thetas.T, np.eye(clusters), atol=1e-12)


@pytest.mark.parametrize("features", ["lifted", "gaussian"])
def test_random_directions_are_of_norm_one_and_not_orthogonal(features: str) -> None:
    thetas = cluster_thetas(world(clusters=12, features=features, directions="random"))
    np.testing.assert_allclose(np.linalg.norm(thetas, axis=1), 1.0, rtol=1e-12)
    free = thetas[:, :-1] if features == "lifted" else thetas
    assert np.abs(free @ free.T - np.diag(np.diag(free @ free.T))).max() > 0.1


@pytest.mark.parametrize("features", ["lifted", "gaussian"])
def test_items_are_of_norm_one_and_weights_are_probabilities(features: str) -> None:
    made = world(features=features, items=50)
    seen = []
    for t in range(1, 40):
        items = made.items(t)
        assert items.shape == (50, 6)
        assert items.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(items.astype(np.float64), axis=1), 1.0, rtol=1e-3)
        weights = made.weights(t, t % 12, items)
        expected = np.clip(items.astype(np.float64) @ made.thetas[t % 12], 0, 1)
        np.testing.assert_allclose(weights, expected, atol=1e-12)
        assert np.all((weights >= 0) & (weights <= 1))
        seen.append(weights)
    # Lifted weights are (1 + cos) / 2, half on average; clipped Gaussians are often 0.
    assert np.mean(seen) == pytest.approx(0.5 if features == "lifted" else 0.164, abs=0.02)


@pytest.mark.parametrize("arrivals", ["uniform", [1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1]])
def test_arrivals_follow_their_weights(arrivals: list[float] | str) -> None:
    made = world(arrivals=arrivals, seed=3)
    counts = np.bincount([made.arrival(t) for t in range(1, 6001)], minlength=12)
    weights = np.ones(12) if arrivals == "uniform" else np.array(arrivals, float)
    assert stats.chisquare(counts, 6000 * weights / weights.sum()).pvalue > 0.001
    # And not any weights: the reverse test.
    assert stats.chisquare(counts, 6000 * np.arange(1, 13) / 78).pvalue < 1e-6


def test_the_scale_of_arrivals_does_not_matter() -> None:
    one, other = world(arrivals=np.arange(1, 13)), world(arrivals=np.arange(1, 13) * 4.0)
    assert [one.arrival(t) for t in range(1, 200)] == [other.arrival(t) for t in range(1, 200)]


def test_items_stay_in_their_range_and_every_size_occurs_evenly() -> None:
    made = world(items=(2, 6))
    sizes = [len(made.items(t)) for t in range(1, 1001)]
    assert set(sizes) == {2, 3, 4, 5, 6}
    assert stats.chisquare(np.bincount(sizes)[2:]).pvalue > 0.001
    assert sizes == [made.count_items(t) for t in range(1, 1001)]
    assert made.most_items == 6


def test_items_do_not_depend_on_how_many_are_on_the_shelf() -> None:
    few, many = world(items=3), world(items=30)
    np.testing.assert_array_equal(few.items(7), many.items(7)[:3])


def answers(made: Synthetic, t: int) -> tuple[Any, ...]:
    user, items = made.arrival(t), made.items(t)
    weights = made.weights(t, user, items)
    attracted = made.attracted(t, np.arange(len(items)), weights)
    return (
        user,
        items.tobytes(),
        weights.tobytes(),
        attracted.tobytes(),
        made.ties(t, len(items)).tobytes(),
        made.draw(t),
    )


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**64 - 1))
def test_the_same_seed_is_the_same_world_and_another_is_another(seed: int) -> None:
    one, same, other = world(seed=seed), world(seed=seed), world(seed=seed ^ 1)
    np.testing.assert_array_equal(one.clusters, same.clusters)
    np.testing.assert_array_equal(one.thetas, same.thetas)
    assert not np.array_equal(np.sort(one.thetas, axis=None), np.sort(other.thetas, axis=None))
    for t in (1, 2, 1_000_000):
        assert answers(one, t) == answers(same, t)
        assert answers(one, t)[1] != answers(other, t)[1]
        assert answers(one, t)[4:] != answers(other, t)[4:]


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(1, 8)))
def test_the_order_of_asking_does_not_matter(order: list[int]) -> None:
    plain, asked = world(items=(2, 9)), world(items=(2, 9))
    expected = {t: answers(plain, t) for t in range(1, 8)}
    assert {t: answers(asked, t) for t in order} == expected
    assert {t: answers(asked, t) for t in range(1, 8)} == expected


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 10**6), st.permutations(range(8)), st.integers(1, 8))
def test_the_luck_of_an_item_does_not_depend_on_its_place_in_a_list(t: int, order: list[int], length: int) -> None:
    made = world()
    weights = made.weights(t, made.arrival(t), made.items(t))
    everyone = made.attracted(t, np.arange(8), weights)
    listed = np.array(order[:length])
    np.testing.assert_array_equal(made.attracted(t, listed, weights[listed]), everyone[listed])


def test_items_are_clicked_as_often_as_their_weights_say() -> None:
    made = world()
    weights = np.array([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 0.5])
    hits = np.array([made.attracted(t, np.arange(8), weights) for t in range(1, 3001)])
    counts = hits.sum(axis=0)
    assert counts[0] == 0
    assert counts[6] == 3000
    for item in (1, 2, 3, 4, 5, 7):
        assert stats.binomtest(int(counts[item]), 3000, weights[item]).pvalue > 0.001
    # Two items of one weight have luck of their own.
    assert 0.4 < np.mean(hits[:, 3] == hits[:, 7]) < 0.6


def test_draws_are_uniform_and_ties_are_distinct_words() -> None:
    made = world()
    assert stats.kstest([made.draw(t) for t in range(1, 2001)], "uniform").pvalue > 0.001
    words = made.ties(5, 200)
    assert words.dtype == np.uint32
    assert len(set(words.tolist())) == 200
    np.testing.assert_array_equal(made.ties(5, 3), words[:3])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"clusters": 13}, r"clusters must be <= users \(12\), got 13"),
        ({"clusters": 0}, "clusters must be a whole number"),
        ({"clusters": -1}, "clusters must be a whole number"),
        ({"clusters": True}, "clusters must be a whole number"),
        ({"clusters": 6}, r"clusters must be <= 5 .*\(one coordinate lifts\), got 6; use directions 'random'"),
        ({"clusters": 7, "features": "gaussian"}, "clusters must be <= 6 .*, got 7; use directions 'random'"),
        ({"clusters": [2] * 6}, "clusters must be <= 5"),
        ({"clusters": [6, 5]}, "cluster sizes"),
        ({"clusters": [12, 0]}, "clusters must be a whole number >= 1 or the size of each"),
        ({"clusters": [13, -1]}, "clusters must be a whole number >= 1 or the size of each"),
        ({"clusters": []}, "clusters must be a whole number >= 1 or the size of each"),
        ({"clusters": [5.5, 6.5]}, "clusters must be a whole number >= 1 or the size of each"),
        ({"arrivals": [1.0] * 11}, "arrivals must be 12"),
        ({"arrivals": [[1.0] * 12]}, "arrivals must be uniform, zipf or a weight"),
        ({"arrivals": [1.0] * 11 + [0.0]}, "arrivals must be uniform, zipf or a weight"),
        ({"arrivals": [1.0] * 11 + [-1.0]}, "arrivals must be uniform, zipf or a weight"),
        ({"arrivals": [1.0] * 11 + [float("nan")]}, "arrivals must be uniform, zipf or a weight"),
        ({"arrivals": [1.0] * 11 + [float("inf")]}, "arrivals must be uniform, zipf or a weight"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"users": 0}, "users"),
        ({"users": 1.5}, "users"),
        ({"dimension": 1}, "dimension"),
        ({"items": 0}, "items"),
        ({"items": (0, 5)}, "items"),
        ({"items": (6, 5)}, "items"),
        ({"items": (2, 5.5)}, "items"),
        ({"features": "lift"}, "unknown features 'lift': did you mean 'lifted'"),
        ({"directions": "orthogonal"}, "unknown directions 'orthogonal': did you mean 'orthonormal'"),
    ],
)
def test_worlds_that_cannot_be_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        world(**changes)


def test_the_largest_worlds_that_can_be_are_accepted() -> None:
    assert np.unique(world(clusters=5).clusters).size == 5
    assert np.unique(world(clusters=6, features="gaussian").clusters).size == 6
    assert np.unique(world(clusters=12, directions="random").clusters).size == 12
    assert world(seed=2**64 - 1).items(1).shape == (8, 6)


@pytest.mark.parametrize("features", ["lifted", "gaussian"])
@pytest.mark.parametrize("gap", [0.3, 0.9])
def test_a_gap_is_the_distance_between_any_two_clusters(features: str, gap: float) -> None:
    thetas = cluster_thetas(world(clusters=4, features=features, gap=gap))
    np.testing.assert_allclose(np.linalg.norm(thetas, axis=1), 1.0, rtol=1e-12)
    distances = np.linalg.norm(thetas[:, None] - thetas[None], axis=2)
    np.testing.assert_allclose(distances, gap * (1 - np.eye(4)), atol=1e-12)


def test_gaps_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="gap"):
        world(gap=1.2)  # further than orthogonal directions are
    with pytest.raises(ValueError, match="gap"):
        world(gap=0.0)
    with pytest.raises(ValueError, match="clusters must be < 5"):
        world(gap=0.5, clusters=5)


def test_a_drift_parts_every_second_user_of_a_cluster() -> None:
    steady, drifting = world(clusters=2), world(clusters=2, drift=50)
    np.testing.assert_array_equal(drifting.get_thetas(49), steady.thetas)
    moved = np.any(drifting.get_thetas(50) != steady.thetas, axis=1)
    assert moved.sum() == 6
    for cluster in range(2):
        assert moved[steady.clusters == cluster].sum() == 3
    for one in range(12):  # the clusters are those of the end
        for other in range(12):
            alike = np.array_equal(drifting.get_thetas(50)[one], drifting.get_thetas(50)[other])
            assert alike == (drifting.clusters[one] == drifting.clusters[other])
    features = drifting.items(50)
    user = int(np.flatnonzero(moved)[0])
    assert not np.array_equal(drifting.weights(49, user, features), drifting.weights(50, user, features))


def test_zipf_arrivals_fall_like_one_over_rank() -> None:
    seen = np.bincount(world(arrivals="zipf").arrivals(1, 60_000), minlength=12)
    np.testing.assert_allclose(seen / seen.sum(), (1 / np.arange(1, 13)) / (1 / np.arange(1, 13)).sum(), atol=0.01)
    with pytest.raises(ValueError, match="arrivals"):
        world(arrivals="zip")
