"""States as bytes: arrays, statistics and plain values, to the last bit. No code is ever loaded from a snapshot."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics

PART_BYTES = 1 << 20
PIECE_BYTES = 1 << 18
ROWS = 256  # a multiple of 8, so that a piece fills whole bytes


@dataclass(frozen=True)
class Bits:
    """An array of truth values, eight to a byte."""

    shape: tuple[int, ...]
    packed: NDArray[np.uint8]


def dumped(value: Any) -> bytes:
    """The bytes of a value; a kind of value that is not known here is refused.

    >>> import numpy as np
    >>> loaded(dumped({3: np.array([True, False])}))
    {3: array([ True, False])}
    """
    return b"".join(_pieces(value))


def frozen(value: Any, before: Any = None) -> Any:
    """A copy that shares nothing which changes, made quickly: it can be dumped later, beside whoever goes on.

    Args:
        value: what to copy.
        before: an earlier copy that is not needed any more. Its memory is used again where it fits: to get so much
            from the system takes longer than to fill it.

    >>> import numpy as np
    >>> seen = np.array([True, False])
    >>> kept = frozen({"seen": seen})
    >>> seen[1] = True
    >>> loaded(dumped(kept))
    {'seen': array([ True, False])}
    """
    match value:
        case np.ndarray() if value.dtype == np.bool_:
            room = before.packed if isinstance(before, Bits) and before.shape == value.shape else None
            return Bits(value.shape, _packed(value, room))
        case np.ndarray():
            fits = isinstance(before, np.ndarray) and (before.shape, before.dtype) == (value.shape, value.dtype)
            copy = before if fits else np.empty_like(value)
            np.copyto(copy, value)
            return copy
        case dict():
            known = before if isinstance(before, dict) else {}
            return {key: frozen(item, known.get(key)) for key, item in value.items()}
        case list() | tuple():
            return [frozen(item) for item in value]
    return value


def loaded(body: bytes) -> Any:
    """The value of these bytes."""
    return _rich(msgspec.msgpack.decode(body))


def parts(value: Any) -> Iterator[bytes]:
    """The same bytes in parts, which are made and written one at a time, so that nobody waits for a large snapshot."""
    gathered: list[bytes | memoryview] = []
    for piece in _pieces(value):
        gathered.append(piece)
        if sum(map(len, gathered)) >= PART_BYTES:
            yield b"".join(gathered)
            gathered = []
    if gathered:
        yield b"".join(gathered)


def _pieces(value: Any) -> Iterator[bytes | memoryview]:
    """MessagePack, a large array in pieces that view it: whoever copies one holds up the other threads for so long."""
    match value:
        case np.ndarray() if value.nbytes > PIECE_BYTES and value.dtype != np.bool_:
            yield b"\x94" + b"".join(map(msgspec.msgpack.encode, ("array", value.dtype.str, list(value.shape))))
            yield b"\xc6" + value.nbytes.to_bytes(4)
            seen = np.ascontiguousarray(value).data.cast("B")
            yield from (seen[start : start + PIECE_BYTES] for start in range(0, value.nbytes, PIECE_BYTES))
        case dict() if any(isinstance(item, dict | np.ndarray) for item in value.values()):
            yield b"\x92" + msgspec.msgpack.encode("map") + b"\xdd" + len(value).to_bytes(4)
            for key, item in value.items():
                yield b"\x92" + msgspec.msgpack.encode(_plain(key))
                yield from _pieces(item)
        case _:
            yield msgspec.msgpack.encode(_plain(value))


def _packed(array: NDArray[np.bool_], room: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Eight truth values to a byte, some rows at a time: packing a large view at once would copy all of it first."""
    packed = np.empty((array.size + 7) // 8, np.uint8) if room is None else room
    at = 0
    for start in range(0, len(array), ROWS):
        piece = np.packbits(array[start : start + ROWS])
        packed[at : at + piece.size] = piece
        at += piece.size
    return packed


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case Bits(shape, packed):
            return ["array", np.dtype(np.bool_).str, list(shape), zlib.compress(packed.data, 1)]
        case np.ndarray() if value.dtype == np.bool_:
            return _plain(frozen(value))
        case np.ndarray():
            return ["array", value.dtype.str, list(value.shape), value.tobytes()]
        case Statistics():
            counts = [value.count, value.clicks, value.rounds]
            return ["statistics", _plain(value.gram), _plain(value.moment), counts]
        case dict():
            return ["map", [[_plain(key), _plain(item)] for key, item in value.items()]]
        case list() | tuple():
            return ["list", [_plain(item) for item in value]]
        case np.generic():
            return _plain(value.item())
    raise TypeError(f"a snapshot cannot hold a {type(value).__name__}")


def _rich(value: Any) -> Any:
    match value:
        case ["array", str(dtype), list(shape), bytes(body)]:
            return _array(np.dtype(dtype), shape, body)
        case ["statistics", gram, moment, [int(count), int(clicks), int(rounds)]]:
            return Statistics(_rich(gram), _rich(moment), count, clicks, rounds)
        case ["map", list(items)]:
            return {_rich(key): _rich(item) for key, item in items}
        case ["list", list(items)]:
            return [_rich(item) for item in items]
    return value


def _array(dtype: np.dtype[Any], shape: list[int], body: bytes) -> NDArray[Any]:
    if dtype == np.bool_:
        bits = np.frombuffer(zlib.decompress(body), np.uint8)
        size = int(np.prod(shape))
        return np.unpackbits(bits, count=size).view(np.bool_).reshape(shape).copy()  # one that owns its memory
    return np.frombuffer(body, dtype).reshape(shape).copy()
