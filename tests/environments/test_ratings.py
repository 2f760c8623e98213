"""A world from ratings keeps the contract of environments, and its users and items are the file's."""

import pickle
from typing import Any

import numpy as np
import pytest
from scipy import linalg, stats

from fedcascade.environments import draws
from fedcascade.environments.clustered import lift
from fedcascade.environments.matrices import compute_vectors, generate_ratings
from fedcascade.environments.ratings import Ratings
from fedcascade.numerics import streams
from fedcascade.numerics.grid import GRID
from fedcascade.testing import check_environment

MATRIX = generate_ratings(150, 120, seed=2)


def world(**changes: Any) -> Ratings:
    options: dict[str, Any] = {"users": 20, "clusters": 4, "dimension": 6, "items": 30, "seed": 1}
    return Ratings.from_matrix(MATRIX, **(options | changes))


@pytest.mark.parametrize("preset", ["catalogue", "paper"])
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
@pytest.mark.parametrize("items", [30, (3, 9)])
def test_both_presets_keep_the_contract(preset: str, seed: int, items: Any) -> None:
    check_environment(world(preset=preset, seed=seed, items=items))


@pytest.mark.parametrize(
    "steps",
    [
        {"selection": "nested", "top_users": 40, "top_items": 50},
        {"values": "counts"},
        {"values": "threshold", "threshold": 2.5},
    ],
)
def test_every_step_is_an_option_that_changes_the_world(steps: dict[str, Any]) -> None:
    plain, changed = world(), world(**steps)
    check_environment(changed)
    assert not np.array_equal(plain.items(1), changed.items(1)) or not np.array_equal(plain.thetas, changed.thetas)


def test_a_catalogue_offers_different_items_of_the_file() -> None:
    made = world()
    catalogue = {column.tobytes() for column in made.catalogue.T}
    for t in range(1, 50):
        offered = {row.tobytes() for row in made.items(t)}
        assert len(offered) == 30
        assert offered <= catalogue


def test_weights_of_a_catalogue_are_clipped_products_and_their_signs_are_the_matrix_s() -> None:
    made = world(items=100)
    items = made.items(1)
    products = items.astype(np.float64) @ made.thetas.T
    assert products.min() < 0 < products.max()
    for user in range(made.users):
        np.testing.assert_allclose(made.weights(1, user, items), np.clip(products[:, user], 0, 1), atol=1e-12)


def test_the_paper_s_preset_is_the_paper_s_lineage() -> None:
    made = world(preset="paper")
    assert np.all(made.centres[:, -1] == draws.LIFTING)
    items = made.items(3)
    assert np.all(items[:, -1] == draws.LIFTING)
    fresh = np.empty((6, 30), np.float32)
    draws.draw_unit_items_into(np.uint64(1), 3, fresh, True, streams.make_word_buffer())
    np.testing.assert_array_equal(items, fresh.T)


@pytest.mark.parametrize("preset", ["catalogue", "paper"])
def test_thetas_are_the_means_of_their_cluster_s_users_and_not_of_norm_one(preset: str) -> None:
    made = world(preset=preset)
    paper = preset == "paper"
    dense = MATRIX[np.argsort(-(MATRIX > 0).sum(axis=1), kind="stable")]
    dense = dense[:, np.argsort(-(MATRIX > 0).sum(axis=0), kind="stable")]
    found = compute_vectors(dense[(dense > 0).any(axis=1)], 5 if paper else 6, is_scaled=not paper).users
    rows = lift(found) if paper else found
    sampled = rows[np.argsort(streams.uniforms(np.uint64(1), streams.SAMPLE, 0, len(rows)))[:20]]
    for label in range(4):
        alike = made.clusters == label
        np.testing.assert_allclose(made.centres[label], sampled[alike].mean(axis=0), atol=GRID)
        assert np.all(made.thetas[alike] == made.centres[label])
    lengths = np.linalg.norm(made.centres, axis=1)
    assert np.all(lengths <= 1)
    assert lengths.min() < 0.97


def test_another_seed_samples_other_users() -> None:
    assert not np.allclose(np.sort(world(seed=1).centres, axis=0), np.sort(world(seed=2).centres, axis=0))


def test_the_same_seed_is_the_same_world_also_in_another_process() -> None:
    one, other = world(seed=5), pickle.loads(pickle.dumps(world(seed=5)))
    np.testing.assert_array_equal(one.thetas, other.thetas)
    np.testing.assert_array_equal(one.items(7), other.items(7))
    assert one.arrivals(1, 50).tolist() == other.arrivals(1, 50).tolist()


@pytest.mark.parametrize("preset", ["catalogue", "paper"])
def test_the_solver_of_the_svd_does_not_show(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = world(preset=preset)
    monkeypatch.setattr(np.linalg, "svd", lambda matrix, full_matrices: other_svd(matrix))
    theirs = world(preset=preset)
    assert not np.array_equal(ours.singular_values, theirs.singular_values)
    np.testing.assert_array_equal(ours.thetas, theirs.thetas)
    np.testing.assert_array_equal(ours.catalogue, theirs.catalogue)


def other_svd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Another algorithm, and every second pair of vectors with the other sign."""
    left, singular, right = linalg.svd(matrix, full_matrices=False, lapack_driver="gesvd")
    signs = np.where(np.arange(singular.size) % 2, 1.0, -1.0)
    return left * signs, singular, right * signs[:, None]


def test_zero_vectors_are_dropped_with_a_notice() -> None:
    # User 0 rated only item 0, which only user 0 rated: a singular vector of its own, and not a large one.
    matrix = generate_ratings(40, 30, seed=1)
    matrix[0], matrix[:, 0] = 0.0, 0.0
    matrix[0, 0] = 0.01
    with pytest.warns(UserWarning, match="left out 1 of 34 users and 1 of 25 items: their vectors are zero"):
        made = Ratings.from_matrix(matrix, users=33, clusters=3, dimension=4, items=10)
    assert made.users == 33


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"users": 151}, r"users must be <= \d+, the users of the ratings, got 151"),
        ({"clusters": 21}, r"clusters must be <= users \(20\), got 21"),
        ({"clusters": [10, 10]}, "clusters must be a whole number"),
        ({"dimension": 1}, "dimension"),
        ({"dimension": 130}, "rank >= 130"),
        ({"items": 121}, "items must be <= 120, the size of the catalogue, got 121"),
        ({"items": (9, 3)}, "items"),
        ({"preset": "catalog"}, "unknown preset 'catalog': did you mean 'catalogue'"),
        ({"seed": -1}, "seed"),
        ({"arrivals": [1, 2]}, "arrivals"),
    ],
)
def test_bad_options_are_refused_in_one_line(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named) as refused:
        world(**options)
    assert "\n" not in str(refused.value)


def drawn(seed: int, round_: int, items: int, catalogue: np.ndarray) -> np.ndarray:
    out = np.full((len(catalogue), items), np.nan, np.float32)
    draws.draw_items_into(np.uint64(seed), round_, out, False, catalogue, streams.make_word_buffer())
    return out


NUMBERED = np.arange(23, dtype=np.float32)[None]  # one feature: the item's number


def test_items_of_a_round_are_different_and_all_there_when_all_are_asked_for() -> None:
    for t in range(1, 100):
        assert len(set(drawn(3, t, 9, NUMBERED)[0].tolist())) == 9
        assert sorted(drawn(3, t, 23, NUMBERED)[0].tolist()) == list(range(23))


def test_the_first_items_do_not_depend_on_how_many_are_drawn() -> None:
    for t in range(1, 30):
        whole = drawn(5, t, 32, NUMBERED)
        assert np.all(whole[:, 23:] == 0)
        for items in (1, 7, 16, 22):
            np.testing.assert_array_equal(drawn(5, t, items, NUMBERED), whole[:, :items])


def test_every_item_is_equally_likely_in_every_place() -> None:
    rounds = np.array([drawn(7, t, 5, NUMBERED)[0] for t in range(1, 8001)]).astype(int)
    for place in range(5):
        assert stats.chisquare(np.bincount(rounds[:, place], minlength=23)).pvalue > 0.001
    pairs = np.bincount(rounds[:, 0] * 23 + rounds[:, 4], minlength=529).reshape(23, 23)
    assert np.all(np.diag(pairs) == 0)
    assert stats.chisquare(pairs[~np.eye(23, dtype=bool)]).pvalue > 0.001
