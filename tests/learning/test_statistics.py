"""Statistics add and subtract, and a round adds exactly what the user examined."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.learning.cascade import examine, follow_cascade, round_reward
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid


def rows(seed: int, count: int, dimension: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).normal(size=(count, dimension))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), np.float32)


def snapshot(statistics: Statistics) -> tuple[bytes, bytes, int, int, int]:
    return (
        statistics.gram.tobytes(),
        statistics.moment.tobytes(),
        statistics.count,
        statistics.clicks,
        statistics.rounds,
    )


@st.composite
def some_statistics(draw: st.DrawFn, dimension: int = 3) -> Statistics:
    total = Statistics.zero(dimension)
    for seed in draw(st.lists(st.integers(0, 2**32), max_size=4)):
        length = draw(st.integers(1, 5))
        total = total.observe(rows(seed, length, dimension), draw(st.none() | st.integers(0, length - 1)))
    return total


counts = st.tuples(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62))


@settings(deadline=None, max_examples=60)
@given(counts, counts)
def test_counts_add_and_subtract_exactly(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    first = Statistics(np.eye(2), np.ones(2), *one)
    second = Statistics(np.eye(2), np.ones(2), *other)
    both = first + second
    assert (both.count, both.clicks, both.rounds) == tuple(a + b for a, b in zip(one, other, strict=True))
    back = both - second
    assert (back.count, back.clicks, back.rounds) == one


@settings(deadline=None, max_examples=60)
@given(some_statistics(), some_statistics())
def test_sums_are_sums_and_leave_their_operands_alone(one: Statistics, other: Statistics) -> None:
    before = snapshot(one), snapshot(other)
    both, gap = one + other, one - other
    np.testing.assert_array_equal(both.gram, one.gram + other.gram)
    np.testing.assert_array_equal(both.moment, one.moment + other.moment)
    np.testing.assert_array_equal(gap.gram, one.gram - other.gram)
    np.testing.assert_array_equal(gap.moment, one.moment - other.moment)
    assert (snapshot(one), snapshot(other)) == before


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 24), st.data())
def test_a_round_adds_the_outer_products_of_what_was_examined(
    seed: int, length: int, dimension: int, data: st.DataObject
) -> None:
    click = data.draw(st.none() | st.integers(0, length - 1))
    listed = rows(seed, length, dimension)
    seen = Statistics.zero(dimension).observe(listed, click)
    looked_at = listed[: length if click is None else click + 1].astype(np.float64)
    np.testing.assert_allclose(seen.gram, sum(np.outer(x, x) for x in looked_at), rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(seen.moment, np.zeros(dimension) if click is None else looked_at[-1])
    assert seen.count == len(looked_at)
    assert seen.clicks == (click is not None)
    assert seen.rounds == 1
    np.testing.assert_array_equal(seen.gram, seen.gram.T)


@settings(deadline=None, max_examples=40)
@given(some_statistics(), st.integers(0, 2**32), st.none() | st.integers(0, 2))
def test_observing_changes_neither_the_operand_nor_the_list(before: Statistics, seed: int, click: int | None) -> None:
    listed = rows(seed, 3, 3)
    old, old_list = snapshot(before), listed.copy()
    after = before.observe(listed, click)
    assert snapshot(before) == old
    np.testing.assert_array_equal(listed, old_list)
    assert not np.shares_memory(after.gram, before.gram)
    assert not np.shares_memory(after.moment, before.moment)


def test_the_memory_layout_of_a_list_does_not_matter() -> None:
    listed = rows(1, 5, 4)
    wide = np.zeros((5, 8), np.float32)
    wide[:, ::2] = listed
    plain = Statistics.zero(4).observe(listed, 3)
    others: list[NDArray[Any]] = [np.asfortranarray(listed), wide[:, ::2], listed.astype(np.float64)]
    for other in others:
        assert snapshot(Statistics.zero(4).observe(other, 3)) == snapshot(plain)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (4, 2), (1, 2, 3)])
def test_lists_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="listed must have shape"):
        Statistics.zero(3).observe(np.zeros(shape, np.float32), None)


@pytest.mark.parametrize("click", [-1, 3, 100])
def test_clicks_outside_the_list_are_refused(click: int) -> None:
    with pytest.raises(ValueError, match="click must be None or in"):
        Statistics.zero(3).observe(np.zeros((3, 3), np.float32), click)


@pytest.mark.parametrize(("one", "other"), [(2, 3), (3, 2), (1, 3), (3, 1)])
def test_statistics_of_different_dimensions_do_not_add(one: int, other: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (any one-line refusal will do)
        Statistics.zero(one) + Statistics.zero(other)
    with pytest.raises(ValueError):  # noqa: PT011
        Statistics.zero(one) - Statistics.zero(other)


def test_rewards_scale_the_clicked_items_and_stay_exact() -> None:
    listed = round_to_grid(rows(3, 6, 4))
    seen = examine(6, [4, 1], looked_until=4, reward=[0.3, 0.7])  # in the order of the clicks
    assert seen.rewards == (round_reward(0.7), round_reward(0.3))
    found = Statistics.zero(4).observe(listed, seen)
    rewards = np.array([0.0, seen.rewards[0], 0.0, 0.0, seen.rewards[1]])
    np.testing.assert_array_equal(found.moment, listed[:5].astype(np.float64).T @ rewards)
    assert (found.count, found.clicks, found.rounds, found.reward) == (5, 2, 2, sum(seen.rewards))


@pytest.mark.parametrize("reward", [None, 1, 1.0, [1]])
def test_a_click_worth_one_is_a_click_without_a_value(reward: float | list[float] | None) -> None:
    assert examine(4, [2], reward=reward) == follow_cascade(4, 2)


def test_several_clicks_share_one_reward_in_equal_parts() -> None:
    assert examine(4, [2, 0], reward=0.5).rewards == (0.25, 0.25)


@pytest.mark.parametrize("wrong", [-0.1, 1.01, math.nan, math.inf, True, "0.5", [0.5, 0.5], [], [2.0]])
def test_a_wrong_reward_is_refused_in_one_line(wrong: Any) -> None:
    with pytest.raises(ValueError, match="reward") as caught:
        examine(4, [2], reward=wrong)
    assert "\n" not in str(caught.value)


def test_a_reward_without_a_click_is_refused() -> None:
    with pytest.raises(ValueError, match="a reward needs a click"):
        examine(4, [], reward=0.5)


def test_a_correction_turns_expected_rewards_into_late_ones() -> None:
    listed = round_to_grid(rows(5, 5, 3))
    expected, late = examine(5, [0, 3], reward=[0.5, 0.5]), examine(5, [0, 3], reward=[0.125, 1.0])
    before, after = (Statistics.zero(3).observe(listed, seen) for seen in (expected, late))
    corrected = before + Statistics.correct(listed, expected, late.values)
    np.testing.assert_array_equal(corrected.moment, after.moment)
    assert (corrected.reward, corrected.count, corrected.rounds) == (after.reward, after.count, after.rounds)
