"""Ratings become the matrix and the vectors that a slow and plain computation gives."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.environments.matrices import (
    Triplets,
    build_rating_matrix,
    compute_vectors,
    generate_ratings,
    to_triplets,
)
from fedcascade.environments.options import RatingsOptions, Selection

RATED = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7), st.integers(1, 5)), min_size=1, max_size=80)


def triplets(rated: list[tuple[int, int, int]]) -> Triplets:
    users, items, values = zip(*rated, strict=True)
    return Triplets(np.array(users), np.array(items), np.array(values, np.float64))


def most(numbers: list[int], count: int) -> list[int]:
    return sorted(set(numbers), key=lambda number: (-numbers.count(number), number))[:count]


def plainly(rated: list[tuple[int, int, int]], top: int, wide: int, selection: str, values: str) -> list[list[float]]:
    users, items = most([user for user, _, _ in rated], top), most([item for _, item, _ in rated], wide)
    if selection == "nested":
        busy = most([user for user, _, _ in rated], 3 * top)
        items = most([item for user, item, _ in rated if user in busy], wide)
        users = most([user for user, item, _ in rated if user in busy and item in items], top)
    stars: dict[tuple[int, int], list[float]] = defaultdict(list)
    for user, item, star in rated:
        stars[user, item].append(star)
    of: dict[str, Callable[[list[float]], float]] = {
        "stars": lambda given: sum(given) / len(given),
        "counts": len,
        "threshold": lambda given: float(sum(given) / len(given) >= 4),
    }
    return [[of[values](stars[user, item]) if stars[user, item] else 0.0 for item in items] for user in users]


@settings(deadline=None, max_examples=150)
@given(
    RATED,
    st.integers(1, 12),
    st.integers(1, 9),
    st.sampled_from(["independent", "nested"]),
    st.sampled_from(["stars", "counts", "threshold"]),
)
def test_the_matrix_is_the_one_that_was_asked_for(rated: Any, top: int, wide: int, selection: str, values: str) -> None:
    chosen: dict[str, Any] = {"selection": selection, "values": values}
    matrix = build_rating_matrix(triplets(rated), RatingsOptions(top_users=top, top_items=wide, **chosen))
    np.testing.assert_allclose(matrix, plainly(rated, top, wide, selection, values), rtol=1e-12)


def test_nested_differs_from_independent() -> None:
    # Item 9 is popular among users who rate little, so only an independent choice takes it.
    rated = [(user, item, 5) for user in range(3) for item in range(4)] + [(10 + extra, 9, 5) for extra in range(8)]
    one, other = (
        build_rating_matrix(triplets(rated), RatingsOptions(top_users=1, top_items=4, selection=kind))
        for kind in get_args(Selection)
    )
    assert (one == 0).sum() == 1
    assert (other == 0).sum() == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"selection": "nestled"}, "did you mean 'nested'"),
        ({"values": "star"}, "did you mean 'stars'"),
        ({"top_users": 0}, "top_users must be a whole number >= 1, got 0"),
        ({"top_items": 1.5}, "top_items must be a whole number >= 1, got 1.5"),
    ],
)
def test_unknown_steps_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RatingsOptions(**options)


def test_no_ratings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one rating"):
        build_rating_matrix(to_triplets(np.zeros((3, 4))), RatingsOptions())


@pytest.mark.parametrize("matrix", [np.ones(3), np.array([[1.0, np.nan]]), np.array([[np.inf]])])
def test_what_is_no_matrix_of_numbers_is_refused(matrix: Any) -> None:
    with pytest.raises(ValueError, match="matrix"):
        to_triplets(matrix)


def cosines(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (rows, columns)]
    return np.asarray(unit[0] @ unit[1].T)


def test_scaled_vectors_multiply_to_the_best_matrix_of_their_rank() -> None:
    matrix = np.random.default_rng(1).normal(size=(12, 9))
    values, directions = np.linalg.eigh(matrix.T @ matrix)
    top = directions[:, np.argsort(values)[-4:]]
    nearest = matrix @ top @ top.T
    found = compute_vectors(matrix, 4, is_scaled=True)
    # Unit vectors are known by their signs and proportions: divide the lengths out of the matrix too.
    lengths = [np.sqrt(np.diag(each)) for each in (_root(matrix @ matrix.T, 4), _root(matrix.T @ matrix, 4))]
    np.testing.assert_allclose(found.users @ found.items.T, nearest / np.outer(*lengths), atol=1e-9)
    np.testing.assert_allclose(found.singular_values**2, np.sort(values)[::-1], atol=1e-9)


def _root(square: np.ndarray, rank: int) -> np.ndarray:
    """U S U^T of the largest eigenvalues: its diagonal holds the squared lengths of rows of U sqrt(S)."""
    values, directions = np.linalg.eigh(square)
    return np.asarray(directions[:, -rank:] @ np.diag(np.sqrt(values[-rank:])) @ directions[:, -rank:].T)


def test_vectors_without_scaling_are_rows_of_u() -> None:
    matrix = np.random.default_rng(2).normal(size=(10, 6))
    _, directions = np.linalg.eigh(matrix @ matrix.T)
    expected = directions[:, -3:]
    found = compute_vectors(matrix, 3, is_scaled=False)
    np.testing.assert_allclose(found.users @ found.users.T, cosines(expected, expected), atol=1e-9)


def test_signs_do_not_depend_on_the_solver() -> None:
    matrix = np.random.default_rng(4).normal(size=(10, 6))
    found = compute_vectors(matrix, 6, is_scaled=False)
    left = np.linalg.svd(matrix, full_matrices=False)[0]
    largest = np.abs(left).argmax(axis=0)
    assert np.all(found.users[largest, np.arange(6)] > 0)
    np.testing.assert_allclose(compute_vectors(-matrix, 6, is_scaled=False).users, found.users, atol=1e-9)


def test_who_points_nowhere_is_left_out() -> None:
    matrix = np.random.default_rng(5).normal(size=(8, 7))
    matrix[3] = 0.0
    matrix[:, 1] = 0.0
    found = compute_vectors(matrix, 3, is_scaled=True)
    assert (len(found.users), len(found.items)) == (7, 6)
    np.testing.assert_allclose(np.linalg.norm(found.users, axis=1), 1.0)


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="rank >= 3 for this dimension, got rank 2"):
        compute_vectors(
            np.outer(np.arange(1.0, 6), np.ones(4)) + np.eye(5, 4, 1)[:, :] * [[1], [0], [0], [0], [0]],
            3,
            is_scaled=True,
        )


def test_generated_ratings_are_low_rank_with_noise_and_a_long_tail() -> None:
    matrix = generate_ratings(seed=3)
    assert 0.05 < (matrix > 0).mean() < 0.1
    assert set(np.unique(matrix)) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    for axis in (0, 1):
        counts = np.sort((matrix > 0).sum(axis=axis))[::-1]
        tenth = counts.size // 10
        assert counts[:tenth].sum() > 0.25 * counts.sum(), "a tenth has more than a quarter"
        assert counts[-tenth:].sum() < 0.05 * counts.sum()
    # Low rank: 20 singular values hold more than they do when ratings keep to their item but change users.
    shuffled = np.random.default_rng(0).permuted(matrix, axis=0)
    share = [each[1:20].sum() / each.sum() for each in map(_square_singular_values, (matrix, shuffled))]
    assert share[0] > 2 * share[1]


def _square_singular_values(matrix: np.ndarray) -> np.ndarray:
    """The squares of the singular values, the largest first."""
    return np.linalg.eigvalsh(matrix @ matrix.T)[::-1]


def test_generated_ratings_follow_from_their_seed() -> None:
    one, same, other = (generate_ratings(40, 30, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert Counter(one.ravel().tolist())[0.0] < 1200
