"""What is described is what the ratings and the environment are."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from fedcascade.data.describe import describe, make_histogram
from fedcascade.environments.matrices import Triplets, generate_ratings, to_triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.learning.cascade import compute_expected_reward

MATRIX = generate_ratings(120, 100, seed=4)
RATINGS = to_triplets(MATRIX)
SIZES: dict[str, Any] = {"users": 15, "clusters": 3, "dimension": 6, "items": 25, "seed": 2}


def test_density_and_matrix() -> None:
    twice = Triplets(*(np.concatenate([each, each[:9]]) for each in RATINGS))
    facts = describe(twice, Ratings(twice, **SIZES, top_users=50, top_items=40), rounds=1)
    users, items = (MATRIX.any(axis=axis).sum() for axis in (1, 0))
    assert facts["ratings"] == {
        "count": np.count_nonzero(MATRIX) + 9,
        "users": users,
        "items": items,
        "density": pytest.approx(np.count_nonzero(MATRIX) / (users * items)),
    }
    assert (facts["matrix"]["users"], facts["matrix"]["items"]) == (50, 40)
    assert facts["matrix"]["density"] > 2 * facts["ratings"]["density"]


def test_singular_values_and_the_variance_they_keep() -> None:
    facts = describe(RATINGS, Ratings(RATINGS, **SIZES), rounds=1)
    squared = np.sort(np.linalg.eigvalsh(MATRIX @ MATRIX.T))[::-1]
    np.testing.assert_allclose(facts["singular_values"], np.sqrt(squared[:6]), rtol=1e-9)
    assert facts["variance_kept"] == pytest.approx(squared[:6].sum() / squared.sum())
    lifted = describe(RATINGS, Ratings(RATINGS, **SIZES, preset="paper"), rounds=1)
    assert lifted["variance_kept"] == pytest.approx(squared[:5].sum() / squared.sum())


def test_clusters_gaps_and_clicks() -> None:
    world = Ratings(RATINGS, **SIZES)
    facts = describe(RATINGS, world, list_length=3, rounds=40)
    gaps = {pair: np.linalg.norm(world.centres[pair[0]] - world.centres[pair[1]]) for pair in combinations(range(3), 2)}
    assert facts["gaps"]["least"] == pytest.approx(min(gaps.values()))
    assert facts["gaps"]["most"] == pytest.approx(max(gaps.values()))
    assert facts["gaps"]["least"] <= facts["gaps"]["median"] <= facts["gaps"]["most"]
    for row in facts["clusters"]:
        label = row["cluster"]
        assert row["users"] == (world.clusters == label).sum()
        assert row["nearest"] == pytest.approx(min(gap for pair, gap in gaps.items() if label in pair))
        weights = [np.clip(world.items(t) @ world.centres[label], 0, 1) for t in range(1, 41)]
        best = np.mean([compute_expected_reward(np.sort(each)[-3:]) for each in weights])
        assert row["best_list"] == pytest.approx(best, abs=1e-6)
        assert row["best_item"] == pytest.approx(np.mean([each.max() for each in weights]), abs=1e-6)
        assert row["random_list"] < row["best_list"]


def test_one_cluster_has_no_gap() -> None:
    facts = describe(RATINGS, Ratings(RATINGS, **(SIZES | {"clusters": 1})), rounds=1)
    assert facts["gaps"] == {"least": None, "median": None, "most": None}
    assert facts["clusters"][0]["nearest"] is None


def test_many_different_ratings_are_binned() -> None:
    rows = make_histogram(np.linspace(0, 1, 1_001))
    assert len(rows) == 10
    assert sum(row["count"] for row in rows) == 1_001
    assert (rows[0]["from"], rows[-1]["to"]) == (0.0, 1.0)


def test_a_list_longer_than_the_shelf_is_refused() -> None:
    with pytest.raises(ValueError, match=r"list length must be <= items \(25\), got 26"):
        describe(RATINGS, Ratings(RATINGS, **SIZES), list_length=26)
