"""Description of a file of ratings and of its environment."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments.matrices import Triplets, build_rating_matrix
from fedcascade.environments.ratings import Ratings
from fedcascade.learning.cascade import compute_expected_reward
from fedcascade.learning.oracles import TopK

MOST_LEVELS = 20  # more distinct ratings are put into bins
BINS = 10


def describe(ratings: Triplets, environment: Ratings, *, list_length: int = 4, rounds: int = 200) -> dict[str, Any]:
    """Return density, histogram, singular values, gaps between clusters, and click probabilities over ``rounds``."""
    most = environment.most_items
    require(list_length <= most, f"list length must be <= items ({most}), got {list_length}")
    matrix = build_rating_matrix(ratings, environment.options)
    squared = environment.singular_values**2
    return {
        "ratings": _describe_file(ratings),
        "histogram": make_histogram(ratings.values),
        "matrix": {"users": matrix.shape[0], "items": matrix.shape[1], "density": float((matrix != 0).mean())},
        "singular_values": environment.singular_values[: environment.dimension].tolist(),
        "variance_kept": float(squared[: environment.dimension - environment.lifted].sum() / squared.sum()),
        **_describe_clusters(environment, TopK(length=list_length), rounds),
    }


def _describe_file(ratings: Triplets) -> dict[str, Any]:
    users, items = (np.unique(numbers).size for numbers in (ratings.users, ratings.items))
    pairs = np.unique(ratings.users * (ratings.items.max() + 1) + ratings.items).size
    return {"count": ratings.values.size, "users": users, "items": items, "density": pairs / (users * items)}


def make_histogram(values: NDArray[np.float64]) -> list[dict[str, float]]:
    """Count ratings by value; more than ``MOST_LEVELS`` distinct values are put into bins of equal width.

    >>> make_histogram(np.array([1.0, 5.0, 5.0]))
    [{'from': 1.0, 'to': 1.0, 'count': 1}, {'from': 5.0, 'to': 5.0, 'count': 2}]
    """
    levels, counts = np.unique(values, return_counts=True)
    least, most = levels, levels
    if levels.size > MOST_LEVELS:
        counts, edges = np.histogram(values, BINS)
        least, most = edges[:-1], edges[1:]
    rows = zip(least.tolist(), most.tolist(), counts.tolist(), strict=True)
    return [{"from": low, "to": high, "count": count} for low, high, count in rows]


def _describe_clusters(environment: Ratings, oracle: TopK, rounds: int) -> dict[str, Any]:
    gaps = np.linalg.norm(environment.centres[:, None] - environment.centres[None], axis=2)
    distances = gaps[np.triu_indices(len(gaps), 1)]
    np.fill_diagonal(gaps, np.inf)
    least, median, most = np.quantile(distances, [0.0, 0.5, 1.0]).tolist() if distances.size else [None] * 3
    return {
        "gaps": {"least": least, "median": median, "most": most},
        "clusters": [
            {
                "cluster": label,
                "users": int((environment.clusters == label).sum()),
                "norm": float(np.linalg.norm(environment.centres[label])),
                "nearest": float(gaps[label].min()) if distances.size else None,
                **_average_clicks(environment, int(np.flatnonzero(environment.clusters == label)[0]), oracle, rounds),
            }
            for label in range(len(gaps))
        ],
    }


def _average_clicks(environment: Ratings, user: int, oracle: TopK, rounds: int) -> dict[str, float]:
    """Average the best item's weight, and the click probabilities of the best and of a random list, over rounds."""
    best_items, best_lists, random_lists = [], [], []
    for t in range(1, rounds + 1):
        weights = environment.weights(t, user, environment.items(t))
        best = weights[oracle.best(weights)]
        best_items.append(best[0])
        best_lists.append(compute_expected_reward(best))
        random_lists.append(compute_expected_reward(weights[: oracle.length]))  # items come in random order
    averaged = {"best_item": best_items, "best_list": best_lists, "random_list": random_lists}
    return {name: float(np.mean(values)) for name, values in averaged.items()}
