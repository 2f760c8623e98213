"""From ratings to vectors: the most active users and most rated items, a matrix, its singular vectors."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require, require_integer, require_known
from fedcascade.numerics import streams

Selection = Literal["independent", "nested"]
Values = Literal["stars", "counts", "threshold"]
Scaling = Literal["root", "none"]

NOTHING = 1e-10  # a vector shorter than this, next to the longest, points nowhere
RANK, DENSITY, TAIL = 20, 0.1, 0.7  # of generated ratings


class Triplets(NamedTuple):
    """Ratings, one place each in three arrays; users and items are numbered from 0."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Users and items as unit vectors, one row each, and all singular values of the matrix."""

    users: NDArray[np.float64]
    items: NDArray[np.float64]
    singular_values: NDArray[np.float64]


def to_triplets(matrix: NDArray[np.float64]) -> Triplets:
    """The ratings of a matrix (users, items), in which 0 says that there is none.

    >>> to_triplets(np.array([[5.0, 0.0], [0.0, 3.0]])).values.tolist()
    [5.0, 3.0]
    """
    matrix = np.asarray(matrix, np.float64)
    good = matrix.ndim == 2 and bool(np.all(np.isfinite(matrix)))
    require(good, "ratings must be a matrix (users, items) of finite numbers, 0 where a user has not rated")
    users, items = np.nonzero(matrix)
    return Triplets(users, items, matrix[users, items])


def build_rating_matrix(
    ratings: Triplets,
    *,
    top_users: int = 1_000,
    top_items: int = 1_000,
    selection: Selection = "independent",
    values: Values = "stars",
    threshold: float = 4.0,
) -> NDArray[np.float64]:
    """The matrix of at most so many of the most active users and the most rated items, the busiest first.

    The selection is "independent": both by all ratings; or "nested": the items by the ratings of three times as many
    users, then the users by their ratings of those items. The values are "stars": the ratings, or their mean where a
    user rated an item several times; "counts": how often the user rated it; "threshold": 1 for at least ``threshold``.
    """
    require_known("selection", selection, get_args(Selection))
    require_known("values", values, get_args(Values))
    require_integer("top_users", top_users)
    require_integer("top_items", top_items)
    require(ratings.values.size > 0, "ratings must hold at least one rating")
    users, items = _select_busiest(ratings, top_users, top_items, selection == "nested")
    rows, columns = _find_positions(ratings.users, users), _find_positions(ratings.items, items)
    selected = (rows >= 0) & (columns >= 0)
    cells, size = rows[selected] * items.size + columns[selected], users.size * items.size
    counts = np.bincount(cells, minlength=size)
    if values == "counts":
        return counts.astype(np.float64).reshape(users.size, items.size)
    stars = np.bincount(cells, ratings.values[selected], size) / np.maximum(counts, 1)
    chosen = stars if values == "stars" else np.where((counts > 0) & (stars >= threshold), 1.0, 0.0)
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
    """Where in ``among`` each number is, or -1."""
    positions = np.full(int(numbers.max()) + 1, -1)
    positions[among] = np.arange(among.size)
    return positions[numbers]


def compute_vectors(matrix: NDArray[np.float64], dimension: int, scaling: Scaling) -> Vectors:
    """Users and items as unit vectors: rows of U sqrt(S) and V sqrt(S), or with scaling "none" of U and V.

    Singular vectors are known up to their sign; here the largest entry of each in U is positive. Users and
    items that point nowhere are left out.
    """
    require_known("scaling", scaling, get_args(Scaling))
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    rank = int((singular > singular[0] * max(matrix.shape) * np.finfo(np.float64).eps).sum())
    require(dimension <= rank, f"the ratings must be of rank >= {dimension} for this dimension, got rank {rank}")
    left, right = left[:, :dimension], right[:dimension].T
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(dimension)])
    scales = signs * (np.sqrt(singular[:dimension]) if scaling == "root" else 1.0)
    users, items = _normalise_rows(left * scales), _normalise_rows(right * scales)
    return Vectors(users=users, items=items, singular_values=singular)


def _normalise_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(rows, axis=1)
    nonzero = lengths > NOTHING * lengths.max()
    units: NDArray[np.float64] = rows[nonzero] / lengths[nonzero, None]
    return units


def generate_ratings(users: int = 1_000, items: int = 1_000, seed: int = 0) -> NDArray[np.float64]:
    """A matrix of stars from 1 to 5, 0 where there is no rating: low rank, with noise and a long tail.

    A user's affinity to an item has rank 20 at most. It moves both the stars, to which noise is added, and
    whether the item is rated at all; few users and few items have most of the ratings. Less than a tenth is rated.

    >>> matrix = generate_ratings(50, 80, seed=0)
    >>> matrix.shape, sorted(set(matrix.ravel().tolist()))
    ((50, 80), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    """
    require_integer("users", users)
    require_integer("items", items)
    draw_normals, stream = streams.draw_normals, streams.RATINGS
    importance = 1.0 / np.sqrt(np.arange(1, RANK + 1))
    importance /= np.linalg.norm(importance)
    tastes, traits = draw_normals(seed, stream, 0, (RANK, users)), draw_normals(seed, stream, 1, (RANK, items))
    affinity = (tastes.T * importance) @ traits
    wanted = np.exp(affinity) * np.outer(_draw_long_tail(seed, 2, users), _draw_long_tail(seed, 3, items))
    uniforms = streams.uniforms(np.uint64(seed), streams.RATINGS, 4, users * items).reshape(users, items)
    stars = np.clip(np.rint(3.5 + 0.8 * affinity + 0.6 * draw_normals(seed, stream, 5, (users, items))), 1.0, 5.0)
    return np.where(uniforms < DENSITY * wanted / wanted.mean(), stars, 0.0)


def _draw_long_tail(seed: int, which: int, size: int) -> NDArray[np.float64]:
    """The numbers 1, 2, 3, ... to the power -TAIL, in random order."""
    ranks = np.argsort(streams.uniforms(np.uint64(seed), streams.RATINGS, which, size)) + 1
    return np.power(ranks.astype(np.float64), -TAIL)
