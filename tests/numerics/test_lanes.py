"""Eight numbers at a time are what NumPy makes of eight numbers, to the bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Vector
from fedcascade.numerics.simd import divide, subtract_product, take_root


@jit
def combine(values: Vector) -> None:
    take_root(values, 24, 0)
    divide(values, 0, 24)
    subtract_product(values, 8, 0, 16)


@settings(deadline=None, max_examples=60)  # the first example compiles
@given(st.lists(st.floats(-1e6, 1e6), min_size=32, max_size=32))
def test_lanes_are_rounded_as_numbers_that_are_alone(numbers: list[float]) -> None:
    values = np.array(numbers)
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(values[:8])
        quotient = values[:8] / root
        expected = np.concatenate([quotient, values[8:16] - quotient * values[16:24], values[16:24], root])
        combine(values)
    assert np.array_equal(values, expected, equal_nan=True)
