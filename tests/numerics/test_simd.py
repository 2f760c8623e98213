"""Sixteen numbers at a time are what NumPy makes of sixteen numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.numerics import simd
from fedcascade.numerics.jit import jit, jit_inline

ROWS = st.lists(st.floats(-100, 100, width=32), min_size=64, max_size=64)
Row = NDArray[np.float32]


@jit_inline
def products(row: Row, out: Row) -> None:
    total = simd.multiply_add(simd.load(row, 3), simd.load_broadcast(row, 5), simd.load(row, 30))
    simd.store(out, 0, simd.add(total, simd.broadcast(np.float32(0.5))))


@jit_inline
def choices(row: Row, count: int, number: np.float32, out: Row) -> None:
    simd.store(out, 0, simd.maximum(simd.load(row, 0), simd.load(row, 16)))
    simd.store(out, 16, simd.keep_first(simd.load(row, 0), count))
    simd.store(out, 32, simd.keep_below(simd.load(row, 0), number))
    simd.store(out, 48, simd.sqrt(simd.load(row, 0)))


@jit_inline
def facts(row: Row, number: np.float32) -> tuple[float, int, np.uint64]:
    head = simd.load(row, 0)
    return simd.reduce_max(head), simd.count_at_least(head, number), simd.mask_at_least(row, 0, number)


@jit_inline
def lowest(bits: np.uint64) -> int:
    place: int = simd.find_lowest_bit(bits)
    return place


@jit
def beginning(count: int) -> int:
    part = simd.align_to_cache_line(np.empty(count + 16, np.float32))
    return part.ctypes.data % 64 + 1000 * part.size


@settings(deadline=None, max_examples=60)  # the first example compiles
@given(numbers=ROWS)
def test_products_are_rounded_once(numbers: list[float]) -> None:
    row, out = np.array(numbers, np.float32), np.empty(16, np.float32)
    products(row, out)
    wide = row.astype(np.float64)
    exact = (wide[3:19] * wide[5] + wide[30:46]).astype(np.float32) + np.float32(0.5)
    np.testing.assert_allclose(out, exact, rtol=2e-7, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(numbers=ROWS, count=st.integers(-3, 40), number=st.floats(-100, 100, width=32))
def test_choices_are_made_lane_by_lane(numbers: list[float], count: int, number: float) -> None:
    row, out = np.abs(np.array(numbers, np.float32)), np.empty(64, np.float32)
    choices(row, count, np.float32(number), out)
    head = row[:16]
    np.testing.assert_array_equal(out[:16], np.maximum(head, row[16:32]))
    np.testing.assert_array_equal(out[16:32], np.where(np.arange(16) < count, head, -np.inf))
    np.testing.assert_array_equal(out[32:48], np.where(head < number, head, -np.inf))
    np.testing.assert_array_equal(out[48:], np.sqrt(head))


@settings(deadline=None, max_examples=60)
@given(numbers=ROWS, number=st.floats(-100, 100, width=32))
def test_facts_about_rows(numbers: list[float], number: float) -> None:
    row = np.array(numbers, np.float32)
    highest, how_many, bits = facts(row, np.float32(number))
    assert highest == row[:16].max()
    assert how_many == (row[:16] >= number).sum()
    assert int(bits) == sum(1 << i for i in range(64) if row[i] >= number)


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 63])
def test_the_lowest_bit_is_found(bit: int) -> None:
    assert lowest(np.uint64((1 << 63) | (1 << bit))) == bit


def test_rows_begin_where_memory_begins_a_line() -> None:
    assert {beginning(count) for count in (16, 48, 208)} == {16_000, 48_000, 208_000}
