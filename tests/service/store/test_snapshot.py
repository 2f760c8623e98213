"""A state comes back from its bytes with every bit, whether encoded at once, in parts, or from a copy."""

from typing import Any

import numpy as np
import pytest

from fedcascade.learning.statistics import Statistics
from fedcascade.service.store.snapshot import PART_BYTES, copy_state, decode_state, encode_in_parts, encode_state
from fedcascade.testing.stores import make_unit_statistics


def make_state() -> dict[str, Any]:
    """Every kind of value, and arrays that are larger than a chunk and than a part."""
    random = np.random.default_rng(7)
    return {
        "plain": [None, True, 3, 0.1, "text", b"bytes"],
        "numpy": np.float64(0.1),
        "large": random.random((300, 20, 40)),
        "slice": random.random((400, 400))[::2, 1:],
        "whole numbers": np.arange(5),
        "bits": random.random((1_001, 37)) < 0.5,
        "nested": {7: {"statistics": make_unit_statistics(1)}},
    }


def assert_equal(value: Any, expected: Any) -> None:
    match expected:
        case np.ndarray():
            assert value.dtype == expected.dtype
            assert value.flags.writeable
            np.testing.assert_array_equal(value, expected)
        case Statistics():
            assert_equal(vars(value), vars(expected))
        case dict():
            assert list(value) == list(expected)
            for key in expected:
                assert_equal(value[key], expected[key])
        case _:
            assert value == expected


def test_a_state_comes_back_as_it_was() -> None:
    assert_equal(decode_state(encode_state(make_state())), make_state())


def test_parts_are_the_same_bytes() -> None:
    parts = list(encode_in_parts(make_state()))
    assert b"".join(parts) == encode_state(make_state())
    assert len(parts) > 1
    assert all(PART_BYTES <= len(part) < 2 * PART_BYTES for part in parts[:-1])


def test_a_copy_does_not_change_with_the_state_and_uses_memory_again() -> None:
    state = make_state()
    first = copy_state(state)
    state["large"][:] = 0.0
    state["bits"][:] = True
    assert_equal(decode_state(encode_state(first)), make_state())
    second = copy_state(state, first)
    assert second["large"] is first["large"]
    assert second["bits"].packed is first["bits"].packed
    assert_equal(decode_state(encode_state(second)), state)
    grown = copy_state({"large": np.ones(3), "bits": np.ones(9, np.bool_)}, second)
    assert_equal(decode_state(encode_state(grown)), {"large": np.ones(3), "bits": np.ones(9, np.bool_)})


def test_a_value_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="a snapshot cannot hold a object"):
        encode_state({"thing": object()})
