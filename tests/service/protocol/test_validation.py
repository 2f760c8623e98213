"""Uploads that data can produce pass the server's checks."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.learning.cascade import examine
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import GRID, round_to_grid
from fedcascade.service.protocol.validation import can_exist, check_upload, corrects

from ...learning.test_statistics import rows


def test_several_clicks_add_what_was_examined_once_and_every_click() -> None:
    listed = round_to_grid(rows(5, 6, 3))
    seen = Statistics.zero(3).observe(listed, examine(6, [1, 3], looked_until=4))
    examined = listed[:5].astype(np.float64)
    np.testing.assert_array_equal(seen.gram, examined.T @ examined)
    np.testing.assert_array_equal(seen.moment, examined.T @ np.array([0.0, 1.0, 0.0, 1.0, 0.0]))
    assert (seen.count, seen.clicks, seen.rounds) == (5, 2, 2)
    check_upload(seen, 3)


def draw_lists(random: np.random.Generator, lists: int, dimension: int) -> list[tuple[np.ndarray, int | None, float]]:
    """Draw the features, the click and the reward of some lists."""
    drawn = []
    for seed in random.integers(2**31, size=lists).tolist():
        listed = round_to_grid(rows(seed, 4, dimension))
        drawn.append((listed, None if random.random() < 0.3 else int(random.integers(4)), float(random.random())))
    return drawn


def learn(lists: list[tuple[np.ndarray, int | None, float]], dimension: int, expected: float | None) -> Statistics:
    """Sum lists with their rewards, or with the expected reward of each click."""
    total = Statistics.zero(dimension)
    for listed, click, reward in lists:
        value = reward if expected is None else expected
        seen = examine(4, [] if click is None else [click], reward=None if click is None else value)
        total = total.observe(listed, seen)
    return total


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 6))
def test_lists_with_rewards_pass(seed: int, lists: int, dimension: int) -> None:
    check_upload(learn(draw_lists(np.random.default_rng(seed), lists, dimension), dimension, None), dimension)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 6))
def test_uploads_that_correct_earlier_ones_pass_with_them(seed: int, lists: int, dimension: int) -> None:
    random = np.random.default_rng(seed)
    before, after = draw_lists(random, lists, dimension), draw_lists(random, 2, dimension)
    expected, late = learn(before, dimension, 0.5), learn(before, dimension, None)
    upload = learn(after, dimension, None) + (late - expected)  # the counts of the difference are 0
    assert (upload.count, upload.rounds) == (learn(after, dimension, None).count, 2)
    assert corrects(upload, expected)


def test_a_correction_that_no_reward_explains_is_refused() -> None:
    listed = round_to_grid(np.eye(3))
    one = Statistics.zero(3).observe(listed, examine(3, [0], reward=0.5))  # has examined the first item alone
    for moment, shortfall in (
        ([0.5 + GRID, 0, 0], -0.5),  # more than 1 for the click
        ([-0.5 - GRID, 0, 0], 0.5 + GRID),  # less than 0
        ([0, 0.5, 0], 0.0),  # an item that was not examined
        ([0.5, 0, 0], 0.5),  # rewards whose sum is smaller than the moment says
        ([0, 0, 0], -0.75),  # a sum of rewards above the clicks
    ):
        later = Statistics.zero(3).observe(listed[2:], None)
        lie = replace(later, moment=np.array(moment, float), shortfall=shortfall)
        assert not corrects(lie, one)
        assert not can_exist(lie) or shortfall == 0.0 == sum(moment)
    honest = replace(Statistics.zero(3).observe(listed[2:], None), moment=np.array([0.5, 0, 0]), shortfall=-0.5)
    assert corrects(honest, one)
    assert not can_exist(honest)  # alone
