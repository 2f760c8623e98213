"""Shared and personal parts: the reward of an observation is split between them, once and until nothing changes."""

import numpy as np
import pytest

from fedcascade.federation.personal import PersonalEstimate
from fedcascade.learning.cascade import follow_cascade
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid

D, LAMBDA = 5, 0.7


def draw_lists(seed: int, rounds: int = 40) -> list[tuple[np.ndarray, int | None]]:
    random = np.random.default_rng(seed)
    lists: list[tuple[np.ndarray, int | None]] = []
    for _ in range(rounds):
        x = random.normal(size=(3, D))
        click = int(random.integers(4))
        lists.append((round_to_grid(x / np.linalg.norm(x, axis=1, keepdims=True)), click if click < 3 else None))
    return lists


def observe(lists: list[tuple[np.ndarray, int | None]]) -> tuple[PersonalEstimate, Statistics]:
    personal, buffer = PersonalEstimate(Statistics.zero(D), LAMBDA), Statistics.zero(D)
    for shown, click in lists:
        buffer, personal = personal.observe(Statistics.zero(D), buffer, shown, follow_cascade(len(shown), click))
    return personal, buffer


def limit(theta: np.ndarray) -> np.ndarray:
    return np.asarray(theta / max(1.0, float(np.linalg.norm(theta))))


@pytest.mark.parametrize("before", [0, 1, 30])
def test_either_share_is_what_the_other_part_leaves(before: int) -> None:
    """The split of the last observation is where the turns stand still."""
    lists = [(shown[:1], 0 if click is not None else None) for shown, click in draw_lists(3, before + 1)]
    earlier, earlier_buffer = observe(lists[:-1])
    personal, buffer = observe(lists)
    x, y = lists[-1][0][0].astype(float), float(lists[-1][1] is not None)
    at = int(np.abs(x).argmax())
    share = (buffer.moment - earlier_buffer.moment)[at] / x[at]
    own_share = (personal.statistics.moment - earlier.statistics.moment)[at] / x[at]
    estimate_g = limit(Ridge(buffer, LAMBDA).theta)
    estimate_u = limit(Ridge(personal.statistics, LAMBDA).theta)
    assert own_share == pytest.approx(y - x @ estimate_g, abs=1e-6)
    assert share == pytest.approx(y - x @ estimate_u, abs=1e-6)


def test_both_parts_see_every_item_and_count_every_round() -> None:
    lists = draw_lists(1)
    personal, buffer = observe(lists)
    seen = Statistics.zero(D)
    for shown, click in lists:
        seen = seen.observe(shown, click)
    for part in (personal.statistics, buffer):
        np.testing.assert_array_equal(part.gram, seen.gram)
        assert (part.count, part.clicks, part.rounds) == (seen.count, seen.clicks, seen.rounds)


@pytest.mark.parametrize("seed", range(5))
def test_widths_add_up_and_no_theta_is_longer_than_one(seed: int) -> None:
    (one, _), (other, _) = observe(draw_lists(seed)), observe(draw_lists(seed + 100, 7))
    shared, own = Ridge(one.statistics, LAMBDA), Ridge(other.statistics, LAMBDA)
    pair = PersonalEstimate(other.statistics, LAMBDA).join(shared)
    x = round_to_grid(np.random.default_rng(seed).uniform(-0.4, 0.4, (20, D)))
    np.testing.assert_array_equal(pair.width(x), shared.width(x) + own.width(x))
    np.testing.assert_allclose(pair.theta, limit(shared.theta) + limit(own.theta), rtol=1e-12)
    expected = np.minimum(x.astype(float) @ pair.theta + 0.3 * pair.width(x), 1.0)
    np.testing.assert_allclose(pair.scores(x, 0.3), expected, rtol=1e-12)
    assert pair.log_det == shared.log_det


def test_a_long_theta_is_shortened() -> None:
    axis = Statistics(np.diag([9.0, 0, 0, 0, 0]), np.array([18.0, 0, 0, 0, 0]), 9, 9, 9)
    pair = PersonalEstimate(Statistics.zero(D), LAMBDA).join(Ridge(axis, LAMBDA))
    assert pair.theta.tolist() == [1.0, 0, 0, 0, 0]
