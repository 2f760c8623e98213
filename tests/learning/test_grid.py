"""Sums of features on the grid are exact: no order of adding and no subtraction changes a bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import GRID, PER_UNIT, round_to_grid, truncate_steps

D = 4
FEATURES = st.floats(-1.0, 1.0, width=32)
LARGEST = 2.0**29


@st.composite
def rounds(draw: st.DrawFn) -> tuple[NDArray[np.float32], int | None]:
    """A list of features on the grid, each of norm at most 1, and a click."""
    length = draw(st.integers(1, 4))
    rows = np.array([draw(st.lists(FEATURES, min_size=D, max_size=D)) for _ in range(length)])
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    return round_to_grid(rows), draw(st.none() | st.integers(0, length - 1))


def observe(played: tuple[NDArray[np.float32], int | None]) -> Statistics:
    return Statistics.zero(D).observe(*played)


def add_up(statistics: list[Statistics]) -> Statistics:
    return sum(statistics, Statistics.zero(D))


def equal(one: Statistics, other: Statistics) -> bool:
    same = one.gram.tobytes() == other.gram.tobytes() and one.moment.tobytes() == other.moment.tobytes()
    return same and (one.count, one.clicks, one.rounds) == (other.count, other.clicks, other.rounds)


def make_history(limit: float) -> Statistics:
    """What someone may hold whose entries are all but as large as an exact sum may be."""
    return Statistics(np.full((D, D), limit), np.full(D, limit), 2**29, 2**28, 2**28)


@settings(deadline=None, max_examples=100)
@given(data=st.data(), played=st.lists(rounds(), min_size=1, max_size=12), early=st.booleans())
def test_sums_on_the_grid_have_the_same_bits_in_any_order_and_after_forgetting(
    data: st.DataObject, played: list[tuple[NDArray[np.float32], int | None]], early: bool
) -> None:
    seen = [observe(each) for each in played]
    seen.insert(0 if early else len(seen), make_history(LARGEST / 2 - 64))
    order, cut = data.draw(st.permutations(range(len(seen)))), data.draw(st.integers(0, len(seen)))
    shuffled = [seen[place] for place in order]
    assert equal(add_up(shuffled), add_up(seen))
    assert equal(add_up(shuffled[:cut]) + add_up(shuffled[cut:]), add_up(seen))
    assert equal(add_up(seen) - add_up(shuffled[:cut]), add_up(shuffled[cut:]))
    # Integers of unlimited size say the same.
    units = np.sum([(each.gram / GRID**2).astype(np.int64).astype(object) for each in seen], axis=0)
    np.testing.assert_array_equal(add_up(seen).gram / GRID**2, units.astype(float))


def test_beyond_the_largest_exact_sum_rounding_returns() -> None:
    """The bound that the documentation names is the right one."""
    least = Statistics(np.full((D, D), GRID**2), np.zeros(D), 1, 0, 1)
    held, beyond = make_history(LARGEST - 1.0), make_history(LARGEST)
    assert equal(held + least - held, least)
    assert not equal(beyond + least - beyond, least)


@settings(deadline=None, max_examples=200)
@given(st.lists(FEATURES, min_size=1, max_size=9))
def test_rounding_goes_toward_zero_to_the_next_multiple_and_only_once(values: list[float]) -> None:
    rounded = round_to_grid(values)
    assert rounded.dtype == np.float32
    lost = np.abs(values) - np.abs(rounded.astype(np.float64))
    assert np.all((lost >= 0) & (lost < GRID))
    assert np.all(rounded.astype(np.float64) / GRID == np.rint(rounded.astype(np.float64) / GRID))
    assert np.all(rounded * np.asarray(values) >= 0)
    np.testing.assert_array_equal(round_to_grid(rounded).view(np.uint32), rounded.view(np.uint32))
    compiled = [truncate_steps(np.float32(value) * PER_UNIT) for value in values]
    np.testing.assert_array_equal(np.array(compiled, np.float32).view(np.uint32), rounded.view(np.uint32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    np.testing.assert_array_equal(round_to_grid([bad, 0.5]), np.array([bad, 0.5], np.float32))
