"""Preparation of ratings: a matrix of the most active users and most rated items, its singular vectors, k-means."""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require, require_integer
from fedcascade.environments.options import RatingsOptions
from fedcascade.numerics import streams

Points = NDArray[np.float64]
Labels = NDArray[np.int64]

ZERO_LENGTH = 1e-10  # vectors shorter than this times the longest count as zero
RANK, DENSITY, TAIL = 20, 0.1, 0.7  # of generated ratings
MOST_STEPS = 300  # of k-means


class Triplets(NamedTuple):
    """Ratings as three arrays of equal length; users and items are numbered from 0."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    values: NDArray[np.float64]


class Vectors(NamedTuple):
    """Unit vectors of users and items, one row each, and all singular values of the matrix."""

    users: NDArray[np.float64]
    items: NDArray[np.float64]
    singular_values: NDArray[np.float64]


def to_triplets(matrix: NDArray[np.float64]) -> Triplets:
    """Return the ratings of a matrix (users, items), in which 0 is no rating.

    >>> to_triplets(np.array([[5.0, 0.0], [0.0, 3.0]])).values.tolist()
    [5.0, 3.0]
    """
    matrix = np.asarray(matrix, np.float64)
    good = matrix.ndim == 2 and bool(np.all(np.isfinite(matrix)))
    require(good, "ratings must be a matrix (users, items) of finite numbers, 0 where a user has not rated")
    users, items = np.nonzero(matrix)
    return Triplets(users, items, matrix[users, items])


def build_rating_matrix(ratings: Triplets, options: RatingsOptions) -> NDArray[np.float64]:
    """Return the matrix of the most active users and the most rated items, the busiest first.

    Repeated ratings of an item by a user are averaged.
    """
    require(ratings.values.size > 0, "ratings must hold at least one rating")
    users, items = _select_busiest(ratings, options.top_users, options.top_items, options.selection == "nested")
    rows, columns = _find_positions(ratings.users, users), _find_positions(ratings.items, items)
    selected = (rows >= 0) & (columns >= 0)
    cells, size = rows[selected] * items.size + columns[selected], users.size * items.size
    counts = np.bincount(cells, minlength=size)
    if options.values == "counts":
        return counts.astype(np.float64).reshape(users.size, items.size)
    stars = np.bincount(cells, ratings.values[selected], size) / np.maximum(counts, 1)
    chosen = stars if options.values == "stars" else np.where((counts > 0) & (stars >= options.threshold), 1.0, 0.0)
    return chosen.reshape(users.size, items.size)


def _select_busiest(
    ratings: Triplets, top_users: int, top_items: int, nested: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not nested:
        return _find_most_frequent(ratings.users, top_users), _find_most_frequent(ratings.items, top_items)
    busy = _find_positions(ratings.users, _find_most_frequent(ratings.users, 3 * top_users)) >= 0
    items = _find_most_frequent(ratings.items[busy], top_items)
    both = busy & (_find_positions(ratings.items, items) >= 0)
    return _find_most_frequent(ratings.users[both], top_users), items


def _find_most_frequent(numbers: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    counts = np.bincount(numbers)
    order = np.argsort(-counts, kind="stable")[:most]
    return order[counts[order] > 0]


def _find_positions(numbers: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each number in ``among``, or -1."""
    positions = np.full(int(numbers.max()) + 1, -1)
    positions[among] = np.arange(among.size)
    return positions[numbers]


def compute_vectors(matrix: NDArray[np.float64], dimension: int, *, is_scaled: bool) -> Vectors:
    """Return users and items as unit vectors: rows of U sqrt(S) and V sqrt(S) if ``is_scaled``, else of U and V.

    The sign of singular vectors makes the largest entry of each in U positive. Zero vectors are left out.
    """
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    rank = int((singular > singular[0] * max(matrix.shape) * np.finfo(np.float64).eps).sum())
    require(dimension <= rank, f"the ratings must be of rank >= {dimension} for this dimension, got rank {rank}")
    left, right = left[:, :dimension], right[:dimension].T
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(dimension)])
    scales = signs * (np.sqrt(singular[:dimension]) if is_scaled else 1.0)
    users, items = _normalise_rows(left * scales), _normalise_rows(right * scales)
    return Vectors(users=users, items=items, singular_values=singular)


def _normalise_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(rows, axis=1)
    nonzero = lengths > ZERO_LENGTH * lengths.max()
    units: NDArray[np.float64] = rows[nonzero] / lengths[nonzero, None]
    return units


def generate_ratings(users: int = 1_000, items: int = 1_000, seed: int = 0) -> NDArray[np.float64]:
    """Generate a matrix of stars from 1 to 5, 0 without a rating: low rank, with noise and a long tail.

    Affinities of users to items have rank 20. They determine both the stars, with added noise, and the probability of
    a rating. Few users and few items have most of the ratings. Less than a tenth of the matrix is rated.

    >>> matrix = generate_ratings(50, 80, seed=0)
    >>> matrix.shape, sorted(set(matrix.ravel().tolist()))
    ((50, 80), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    """
    require_integer("users", users)
    require_integer("items", items)
    draw_normals = partial(streams.draw_normals, seed, streams.RATINGS)
    importance = 1.0 / np.sqrt(np.arange(1, RANK + 1))
    importance /= np.linalg.norm(importance)
    tastes, traits = draw_normals(0, (RANK, users)), draw_normals(1, (RANK, items))
    affinity = (tastes.T * importance) @ traits
    wanted = np.exp(affinity) * np.outer(_draw_long_tail(seed, 2, users), _draw_long_tail(seed, 3, items))
    uniforms = streams.uniforms(np.uint64(seed), streams.RATINGS, 4, users * items).reshape(users, items)
    stars = np.clip(np.rint(3.5 + 0.8 * affinity + 0.6 * draw_normals(5, (users, items))), 1.0, 5.0)
    return np.where(uniforms < DENSITY * wanted / wanted.mean(), stars, 0.0)


def _draw_long_tail(seed: int, which: int, size: int) -> NDArray[np.float64]:
    """Return 1, 2, 3, ... to the power -TAIL, in random order."""
    ranks = np.argsort(streams.uniforms(np.uint64(seed), streams.RATINGS, which, size)) + 1
    return np.power(ranks.astype(np.float64), -TAIL)


def cluster_points(points: Points, clusters: int, *, seed: int, starts: int = 10) -> tuple[Points, Labels]:
    """Cluster points by k-means++ (Arthur and Vassilvitskii 2007) and Lloyd's steps, the best of several starts.

    Return the centres and each point's cluster.

    >>> centres, labels = cluster_points(np.array([[0.0], [0.2], [5.0]]), 2, seed=0)
    >>> sorted(centres.ravel().tolist()), bool(labels[0] == labels[1])
    ([0.1, 5.0], True)
    """
    different = len(np.unique(points, axis=0))
    require(clusters <= different, f"clusters must be <= {different}, the number of distinct users, got {clusters}")
    tries = [_refine_centres(points, _choose_centres(points, clusters, seed, start)) for start in range(starts)]
    rows = np.arange(len(points))
    squares = [_compute_squared_distances(points, centres)[rows, labels].sum() for centres, labels in tries]
    return tries[int(np.argmin(squares))]


def _choose_centres(points: Points, clusters: int, seed: int, start: int) -> Points:
    """Choose points as centres, with probabilities proportional to the squared distance to the nearest earlier one."""
    draws = streams.uniforms(np.uint64(seed), streams.KMEANS, start, clusters)
    chosen = [int(draws[0] * len(points))]
    for draw in draws[1:]:
        steps = np.cumsum(_compute_squared_distances(points, points[chosen]).min(axis=1))
        chosen.append(int(np.searchsorted(steps, draw * steps[-1], side="right")))
    return points[chosen]


def _refine_centres(points: Points, centres: Points) -> tuple[Points, Labels]:
    """Run Lloyd's steps until no point changes its cluster."""
    labels = _assign_points(points, centres)
    for _ in range(MOST_STEPS):
        centres = np.array([points[labels == label].mean(axis=0) for label in range(len(centres))])
        before, labels = labels, _assign_points(points, centres)
        if np.array_equal(before, labels):
            break
    return np.array([points[labels == label].mean(axis=0) for label in range(len(centres))]), labels


def _assign_points(points: Points, centres: Points) -> Labels:
    """Assign each point to its nearest centre; an empty centre gets the point farthest from its own."""
    squared = _compute_squared_distances(points, centres)
    labels: Labels = squared.argmin(axis=1)
    for empty in np.setdiff1d(np.arange(len(centres)), labels):
        distance = squared[np.arange(len(points)), labels]
        shared = np.bincount(labels, minlength=len(centres))[labels] > 1
        labels[np.where(shared, distance, -1.0).argmax()] = empty
    return labels


def _compute_squared_distances(points: Points, centres: Points) -> Points:
    squared: Points = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    return squared
