"""What a file of ratings holds, and what kind of world it makes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments.matrices import Triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.learning.cascade import compute_expected_reward
from fedcascade.learning.oracles import TopK

FEW = 20  # up to so many different ratings are counted one by one
BINS = 10


def describe(ratings: Triplets, world: Ratings, *, list_length: int = 4, rounds: int = 200) -> dict[str, Any]:
    """Density, histogram, singular values, gaps between clusters, and what lists would be clicked.

    Args:
        ratings: all ratings of the file.
        world: the world made of them.
        list_length: K.
        rounds: over how many rounds click probabilities are averaged.
    """
    most = world.most_items
    require(list_length <= most, f"list length must be <= items ({most}), got {list_length}")
    matrix = world.steps.matrix(ratings)
    squared = world.singular_values**2
    return {
        "ratings": _file_facts(ratings),
        "histogram": histogram(ratings.values),
        "matrix": {"users": matrix.shape[0], "items": matrix.shape[1], "density": float((matrix != 0).mean())},
        "singular_values": world.singular_values[: world.dimension].tolist(),
        "variance_kept": float(squared[: world.dimension - world.lifted].sum() / squared.sum()),
        **_cluster_facts(world, TopK(length=list_length), rounds),
    }


def _file_facts(ratings: Triplets) -> dict[str, Any]:
    users, items = (np.unique(numbers).size for numbers in (ratings.users, ratings.items))
    pairs = np.unique(ratings.users * (ratings.items.max() + 1) + ratings.items).size
    return {"count": ratings.values.size, "users": users, "items": items, "density": pairs / (users * items)}


def histogram(values: NDArray[np.float64]) -> list[dict[str, float]]:
    """How many ratings are how high; many different ones are put into bins of equal width.

    >>> histogram(np.array([1.0, 5.0, 5.0]))
    [{'from': 1.0, 'to': 1.0, 'count': 1}, {'from': 5.0, 'to': 5.0, 'count': 2}]
    """
    levels, counts = np.unique(values, return_counts=True)
    least, most = levels, levels
    if levels.size > FEW:
        counts, edges = np.histogram(values, BINS)
        least, most = edges[:-1], edges[1:]
    rows = zip(least.tolist(), most.tolist(), counts.tolist(), strict=True)
    return [{"from": low, "to": high, "count": count} for low, high, count in rows]


def _cluster_facts(world: Ratings, oracle: TopK, rounds: int) -> dict[str, Any]:
    gaps = np.linalg.norm(world.centres[:, None] - world.centres[None], axis=2)
    apart = gaps[np.triu_indices(len(gaps), 1)]
    np.fill_diagonal(gaps, np.inf)
    least, median, most = np.quantile(apart, [0.0, 0.5, 1.0]).tolist() if apart.size else [None] * 3
    return {
        "gaps": {"least": least, "median": median, "most": most},
        "clusters": [
            {
                "cluster": label,
                "users": int((world.clusters == label).sum()),
                "norm": float(np.linalg.norm(world.centres[label])),
                "nearest": float(gaps[label].min()) if apart.size else None,
                **_clicks(world, int(np.flatnonzero(world.clusters == label)[0]), oracle, rounds),
            }
            for label in range(len(gaps))
        ],
    }


def _clicks(world: Ratings, user: int, oracle: TopK, rounds: int) -> dict[str, float]:
    """Averages over rounds: the best item's weight, and the chance of a click on the best and on a random list."""
    best_items, best_lists, random_lists = [], [], []
    for t in range(1, rounds + 1):
        weights = world.weights(t, user, world.items(t))
        best = weights[oracle.best(weights)]
        best_items.append(best[0])
        best_lists.append(compute_expected_reward(best))
        random_lists.append(compute_expected_reward(weights[: oracle.length]))  # items come in random order
    found = {"best_item": best_items, "best_list": best_lists, "random_list": random_lists}
    return {name: float(np.mean(values)) for name, values in found.items()}
