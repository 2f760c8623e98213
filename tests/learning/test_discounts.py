"""Discounts of positions: what they are, that sums stay exact, and who may have them."""

import numpy as np
import pytest

from fedcascade.learning.discounts import PositionDiscounts
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import GRID, round_to_grid


def draw_lists(seed: int) -> list[tuple[np.ndarray, int | None]]:
    random = np.random.default_rng(seed)
    lists = round_to_grid(random.uniform(-0.4, 0.4, (30, 5, 4)))
    return [(listed, int(random.integers(5)) if random.random() < 0.7 else None) for listed in lists]


def observe(lists: list[tuple[np.ndarray, int | None]], gammas: np.ndarray | None) -> Statistics:
    seen = Statistics.zero(4)
    for listed, click in lists:
        seen = seen.observe(listed, click, gammas)
    return seen


def test_discounted_sums_are_those_of_discounted_features_and_rewards() -> None:
    gammas, (listed, _) = PositionDiscounts(discount=0.9).compute_gammas(5), draw_lists(1)[0]
    before = listed.copy()
    seen = Statistics.zero(4).observe(listed, 2, gammas)
    discounted = round_to_grid(gammas[:3, None] * listed[:3].astype(np.float64)).astype(np.float64)
    np.testing.assert_array_equal(seen.gram, discounted.T @ discounted)
    np.testing.assert_array_equal(seen.moment, gammas[2] * discounted[2])
    assert (seen.count, seen.clicks, seen.rounds) == (3, 1, 1)
    np.testing.assert_array_equal(listed, before)


@pytest.mark.parametrize("seed", range(3))
def test_discounted_sums_do_not_depend_on_the_order_of_rounds(seed: int) -> None:
    lists, gammas = draw_lists(seed), PositionDiscounts(discount=0.83).compute_gammas(5)
    ours, theirs = observe(lists, gammas), observe(lists[::-1], gammas)
    np.testing.assert_array_equal(ours.gram, theirs.gram)
    np.testing.assert_array_equal(ours.moment, theirs.moment)
    assert np.all(ours.gram / GRID**2 % 1 == 0)


def test_a_discount_of_one_changes_nothing() -> None:
    lists = draw_lists(4)
    ours, theirs = observe(lists, PositionDiscounts().compute_gammas(5)), observe(lists, None)
    np.testing.assert_array_equal(ours.gram, theirs.gram)
    np.testing.assert_array_equal(ours.moment, theirs.moment)
