"""A state comes back from its bytes with every bit, whether encoded at once, in parts, or from a copy."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedcascade.learning.statistics import Statistics
from fedcascade.service.store.snapshot import CHUNK_BYTES, copy_state, encode_state, gather_chunks, read_state
from fedcascade.testing.stores import make_unit_upload


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
        "nested": {7: {"statistics": make_unit_upload(1, 1, axis=1).statistics}},
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
    assert_equal(read_state([encode_state(make_state())]), make_state())


def cut(state: Any) -> Iterator[bytes]:
    """Cut a state into chunks; none of its arrays is tracked."""
    return (chunk for chunk in gather_chunks(state) if isinstance(chunk, bytes))


def test_chunks_are_the_same_bytes() -> None:
    chunks = list(cut(make_state()))
    assert b"".join(chunks) == encode_state(make_state())
    assert len(chunks) > 100
    assert all(len(chunk) < 2 * CHUNK_BYTES for chunk in chunks)


def test_a_change_in_one_row_changes_few_chunks() -> None:
    state = make_state()
    before = set(cut(state))
    state["large"][17] += 1.0
    assert len(set(cut(state)) - before) == 1


def test_an_array_of_more_than_four_gibibytes_can_be_encoded() -> None:
    """The length of its bytes does not fit into the four that MessagePack has for it; nothing is allocated here."""
    huge = np.broadcast_to(np.zeros((1, 20, 20)), (2_000_000, 20, 20))
    assert huge.nbytes > 2**32
    first, second = itertools.islice(cut({"huge": huge}), 2)
    assert len(first) < 100 < len(second) < 2 * CHUNK_BYTES


def test_a_copy_does_not_change_with_the_state_and_uses_memory_again() -> None:
    state = make_state()
    first = copy_state(state)
    state["large"][:] = 0.0
    state["bits"][:] = True
    assert_equal(read_state([encode_state(first)]), make_state())
    second = copy_state(state, first)
    assert second["large"] is first["large"]
    assert second["bits"].packed is first["bits"].packed
    assert_equal(read_state([encode_state(second)]), state)
    grown = copy_state({"large": np.ones(3), "bits": np.ones(9, np.bool_)}, second)
    assert_equal(read_state([encode_state(grown)]), {"large": np.ones(3), "bits": np.ones(9, np.bool_)})


def test_a_value_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="a snapshot cannot hold a object"):
        encode_state({"thing": object()})
