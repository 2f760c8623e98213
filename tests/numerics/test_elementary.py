"""Logarithm and exponential are good to two units of the last place, and their bits never change."""

import hashlib
import math

import numpy as np
import pytest

from fedcascade.numerics import elementary


def telling_numbers() -> np.ndarray:
    random = np.random.default_rng(0)
    near_one = 1.0 + random.uniform(-1e-3, 1e-3, 5_000)
    return np.concatenate([near_one, random.uniform(0.5, 2.0, 5_000), np.exp2(random.uniform(-1022, 1023, 5_000))])


def test_log_agrees_with_the_c_library() -> None:
    numbers = telling_numbers()
    expected = np.log(numbers)
    found = np.array([elementary.log(number) for number in numbers.tolist()])
    assert np.all(np.abs(found - expected) <= 2 * np.spacing(np.abs(expected)))


def test_exp_agrees_with_the_c_library() -> None:
    numbers = np.random.default_rng(1).uniform(-707, 709, 10_000)
    expected = np.exp(numbers)
    found = np.array([elementary.exp(number) for number in numbers.tolist()])
    assert np.all(np.abs(found - expected) <= 2 * np.spacing(expected))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (elementary.log(1.0), 0.0),
        (elementary.log(0.0), -math.inf),
        (elementary.log(math.inf), math.inf),
        (elementary.log(-1.0), math.nan),
        (elementary.log(math.nan), math.nan),
        (elementary.exp(0.0), 1.0),
        (elementary.exp(-math.inf), 0.0),
        (elementary.exp(-800.0), 0.0),
        (elementary.exp(math.inf), math.inf),
        (elementary.exp(math.nan), math.nan),
    ],
)
def test_the_ends_are_what_they_should_be(found: float, expected: float) -> None:
    np.testing.assert_equal(found, expected)


def test_the_bits_are_pinned() -> None:
    """If this fails, the arithmetic has changed, and with it every published run."""
    logs = [elementary.log(number) for number in range(1, 5_000)]
    powers = [elementary.exp(-0.01 * number) for number in range(5_000)]
    content = np.array(logs + powers, "<f8").tobytes()
    assert hashlib.sha256(content).hexdigest() == "d4ce9d650b705b589fdbac1ed1e39e013e41faf6f9432b0708ac0040d17c8cd1"
