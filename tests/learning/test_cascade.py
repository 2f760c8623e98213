"""The cascade: first click, what was examined, the chance of any click."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.learning.cascade import (
    Examination,
    compute_expected_reward,
    examine,
    find_first_click,
    follow_cascade,
)

WEIGHTS = st.lists(st.floats(0.0, 1.0), max_size=6)


def chance(weights: list[float], pattern: tuple[bool, ...]) -> float:
    total = 1.0
    for weight, hit in zip(weights, pattern, strict=True):
        total *= weight if hit else 1.0 - weight
    return total


@settings(deadline=None, max_examples=100)
@given(WEIGHTS)
def test_expected_reward_is_the_sum_over_all_click_patterns(weights: list[float]) -> None:
    patterns = product([False, True], repeat=len(weights))
    expected = sum(chance(weights, pattern) for pattern in patterns if find_first_click(list(pattern)) is not None)
    assert compute_expected_reward(weights) == pytest.approx(expected, abs=1e-12)


def test_expected_reward_by_hand() -> None:
    assert compute_expected_reward([0.5, 0.2]) == pytest.approx(0.6)
    assert compute_expected_reward([0.3, 1.0, 0.2]) == 1.0
    assert compute_expected_reward([0.0, 0.0]) == 0.0
    assert compute_expected_reward([]) == 0.0


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_the_first_attractive_item_is_clicked_and_nothing_after_it_is_examined(pattern: list[bool]) -> None:
    click = find_first_click(pattern)
    if True in pattern:
        assert click == pattern.index(True)
        assert follow_cascade(len(pattern), click).examined == pattern.index(True) + 1
    else:
        assert click is None
        assert follow_cascade(len(pattern), click).examined == len(pattern)


@pytest.mark.parametrize(("length", "click"), [(4, 4), (4, -1), (0, 0), (1, 7)])
def test_clicks_outside_a_list_are_refused(length: int, click: int) -> None:
    with pytest.raises(ValueError, match="click"):
        follow_cascade(length, click)


CLICKS = st.integers(1, 8).flatmap(
    lambda length: st.tuples(st.just(length), st.lists(st.integers(0, length - 1), max_size=8))
)


@settings(deadline=None)
@given(CLICKS, st.integers(-2, 9))
def test_what_is_examined_ends_at_the_last_click_or_where_the_user_stopped(
    shown: tuple[int, list[int]], until: int
) -> None:
    length, clicks = shown
    seen = examine(length, clicks)
    assert seen == Examination(max(clicks) + 1 if clicks else length, tuple(sorted(set(clicks))))
    assert len(seen.clicks) <= seen.rounds <= seen.examined  # what a server checks of every upload
    if max(clicks, default=0) <= until < length:
        assert examine(length, clicks, until) == Examination(until + 1, seen.clicks)
    else:
        with pytest.raises(ValueError, match="looked_until must be a position"):
            examine(length, clicks, until)


def test_one_click_is_examined_as_the_cascade_says() -> None:
    for click in (None, 0, 3):
        assert examine(4, [] if click is None else [click]) == follow_cascade(4, click)
    with pytest.raises(ValueError, match="a click must be a position"):
        examine(4, [1, 4])
