"""Encodes states as bytes: arrays, statistics and plain values, to the last bit. Decoding never runs code.

The format is MessagePack. Values that it lacks are arrays whose first element names their kind, such as
``["array", dtype, shape, bytes]``.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics

PART_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18
ROWS = 256  # a multiple of 8, so that a chunk of rows fills whole bytes


@dataclass(frozen=True)
class PackedBits:
    """An array of truth values, eight to a byte."""

    shape: tuple[int, ...]
    packed: NDArray[np.uint8]


def encode_state(state: Any) -> bytes:
    """Encode a state; raise TypeError for a kind of value that a snapshot cannot hold.

    >>> import numpy as np
    >>> decode_state(encode_state({3: np.array([True, False])}))
    {3: array([ True, False])}
    """
    return b"".join(_encode_chunks(state))


def encode_in_parts(state: Any) -> Iterator[bytes]:
    """Encode a state as parts of about ``PART_BYTES``, each made when it is asked for.

    A snapshot is written one part per transaction, so that no upload waits for all of a large one.
    """
    gathered: list[bytes | memoryview] = []
    for chunk in _encode_chunks(state):
        gathered.append(chunk)
        if sum(map(len, gathered)) >= PART_BYTES:
            yield b"".join(gathered)
            gathered = []
    if gathered:
        yield b"".join(gathered)


def decode_state(body: bytes) -> Any:
    """Decode the bytes of a state."""
    return _from_plain(msgspec.msgpack.decode(body))


def copy_state(state: Any, previous: Any = None) -> Any:
    """Copy a state quickly, so that another thread can encode the copy while the state goes on changing.

    The memory of ``previous``, an earlier copy that is not needed any more, is used again where it fits: to get so much
    from the system takes longer than to fill it.

    >>> import numpy as np
    >>> seen = np.array([True, False])
    >>> copy = copy_state({"seen": seen})
    >>> seen[1] = True
    >>> decode_state(encode_state(copy))
    {'seen': array([ True, False])}
    """
    match state:
        case np.ndarray() if state.dtype == np.bool_:
            fits = isinstance(previous, PackedBits) and previous.shape == state.shape
            return PackedBits(state.shape, _pack_bits(state, previous.packed if fits else None))
        case np.ndarray():
            fits = isinstance(previous, np.ndarray) and (previous.shape, previous.dtype) == (state.shape, state.dtype)
            copy = previous if fits else np.empty_like(state)
            np.copyto(copy, state)
            return copy
        case dict():
            earlier = previous if isinstance(previous, dict) else {}
            return {key: copy_state(value, earlier.get(key)) for key, value in state.items()}
        case list() | tuple():
            return [copy_state(value) for value in state]
    return state


def _encode_chunks(value: Any) -> Iterator[bytes | memoryview]:
    """Encode as MessagePack, a large array as chunks that view it: other threads stand still while one is copied."""
    match value:
        case np.ndarray() if value.nbytes > CHUNK_BYTES and value.dtype != np.bool_:
            yield b"\x94" + b"".join(map(msgspec.msgpack.encode, ("array", value.dtype.str, list(value.shape))))
            yield b"\xc6" + value.nbytes.to_bytes(4)
            view = np.ascontiguousarray(value).data.cast("B")
            yield from (view[start : start + CHUNK_BYTES] for start in range(0, value.nbytes, CHUNK_BYTES))
        case dict() if any(isinstance(item, dict | np.ndarray) for item in value.values()):
            yield b"\x92" + msgspec.msgpack.encode("map") + b"\xdd" + len(value).to_bytes(4)
            for key, item in value.items():
                yield b"\x92" + msgspec.msgpack.encode(_to_plain(key))
                yield from _encode_chunks(item)
        case _:
            yield msgspec.msgpack.encode(_to_plain(value))


def _pack_bits(array: NDArray[np.bool_], memory: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Pack eight truth values to a byte, some rows at a time: packing a large view at once would copy it first."""
    packed = np.empty((array.size + 7) // 8, np.uint8) if memory is None else memory
    end = 0
    for start in range(0, len(array), ROWS):
        bits = np.packbits(array[start : start + ROWS])
        packed[end : end + bits.size] = bits
        end += bits.size
    return packed


def _to_plain(value: Any) -> Any:
    """Turn a value into one of those that MessagePack has."""
    match value:
        case np.generic():  # before float, of which numpy.float64 is one that MessagePack does not know
            return _to_plain(value.item())
        case None | bool() | int() | float() | str() | bytes():
            return value
        case PackedBits(shape, packed):
            return ["array", np.dtype(np.bool_).str, list(shape), zlib.compress(packed.data, 1)]
        case np.ndarray() if value.dtype == np.bool_:
            return _to_plain(copy_state(value))
        case np.ndarray():
            return ["array", value.dtype.str, list(value.shape), value.tobytes()]
        case Statistics():
            gram, moment = _to_plain(value.gram), _to_plain(value.moment)
            return ["statistics", gram, moment, [value.count, value.clicks, value.rounds]]
        case dict():
            return ["map", [[_to_plain(key), _to_plain(item)] for key, item in value.items()]]
        case list() | tuple():
            return ["list", [_to_plain(item) for item in value]]
    raise TypeError(f"a snapshot cannot hold a {type(value).__name__}")


def _from_plain(value: Any) -> Any:
    """Turn a value that ``_to_plain`` made into what it was."""
    match value:
        case ["array", str(dtype), list(shape), bytes(body)]:
            return _decode_array(np.dtype(dtype), shape, body)
        case ["statistics", gram, moment, [int(count), int(clicks), int(rounds)]]:
            return Statistics(_from_plain(gram), _from_plain(moment), count, clicks, rounds)
        case ["map", list(items)]:
            return {_from_plain(key): _from_plain(item) for key, item in items}
        case ["list", list(items)]:
            return [_from_plain(item) for item in items]
    return value


def _decode_array(dtype: np.dtype[Any], shape: list[int], body: bytes) -> NDArray[Any]:
    """Decode an array that owns its memory and may be changed."""
    if dtype == np.bool_:
        bits = np.frombuffer(zlib.decompress(body), np.uint8)
        return np.unpackbits(bits, count=int(np.prod(shape))).view(np.bool_).reshape(shape).copy()
    return np.frombuffer(body, dtype).reshape(shape).copy()
