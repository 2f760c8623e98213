"""Fused multiply-adds are rounded once, in plain Python and compiled; threads that share a counter share no number."""

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcascade.numerics.jit import fetch_and_increment, fma, jit

SINGLES = st.floats(-(2.0**40), 2.0**40, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-40)
HALFWAY = 1.0 + 2.0**-12  # its square is 1 + 2^-11 + 2^-24, halfway between two float32


@jit
def fused(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    return fma(a, b, c)


def nearest(value: Fraction) -> float:
    """The float32 nearest to an exact value, of two the one with the even last bit."""
    guess = np.float32(float(value))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return float(min(around, key=lambda one: (abs(Fraction(float(one)) - value), int(one.view(np.int32)) & 1)))


@settings(deadline=None, max_examples=300)  # the first example compiles
@given(a=SINGLES, b=SINGLES, c=SINGLES)
@example(a=HALFWAY, b=HALFWAY, c=2.0**-40)  # rounding twice would lose that the sum is above the middle
@example(a=HALFWAY, b=HALFWAY, c=-(2.0**-40))
@example(a=HALFWAY, b=HALFWAY, c=0.0)
@example(a=HALFWAY, b=HALFWAY, c=-1.0)
def test_a_sum_is_rounded_once(a: float, b: float, c: float) -> None:
    singles = np.float32(a), np.float32(b), np.float32(c)
    exact = nearest(Fraction(a) * Fraction(b) + Fraction(c))
    assert math.isclose(fma(*singles), exact, rel_tol=0, abs_tol=0)
    assert math.isclose(fused(*singles), exact, rel_tol=0, abs_tol=0)


@jit
def take_many(counter: NDArray[np.int64], taken: NDArray[np.int64]) -> None:
    for i in range(taken.size):
        taken[i] = fetch_and_increment(counter)


def test_no_two_threads_get_the_same_number() -> None:
    counter, taken = np.zeros(1, np.int64), np.zeros((4, 50_000), np.int64)
    take_many(counter, taken[0, :0])  # compile
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda row: take_many(counter, row), taken))
    np.testing.assert_array_equal(np.sort(taken.ravel()), np.arange(taken.size))
