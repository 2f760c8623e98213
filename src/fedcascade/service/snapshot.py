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
ROWS = 256  # a multiple of 8, so that a piece fills whole bytes


@dataclass(frozen=True)
class Bits:
    """An array of truth values, eight to a byte."""

    shape: tuple[int, ...]
    packed: bytes


def dumped(value: Any) -> bytes:
    """The bytes of a value; a kind of value that is not known here is refused.

    >>> import numpy as np
    >>> loaded(dumped({3: np.array([True, False])}))
    {3: array([ True, False])}
    """
    return msgspec.msgpack.encode(_plain(value))


def frozen(value: Any) -> Any:
    """A copy that shares nothing which changes, made quickly: it can be dumped later, beside whoever goes on.

    >>> import numpy as np
    >>> seen = np.array([True, False])
    >>> kept = frozen({"seen": seen})
    >>> seen[1] = True
    >>> loaded(dumped(kept))
    {'seen': array([ True, False])}
    """
    match value:
        case np.ndarray() if value.dtype == np.bool_:
            return Bits(value.shape, b"".join(_packed(value)))
        case np.ndarray():
            return value.copy()
        case dict():
            return {key: frozen(item) for key, item in value.items()}
        case list() | tuple():
            return [frozen(item) for item in value]
    return value


def loaded(body: bytes) -> Any:
    """The value of these bytes."""
    return _rich(msgspec.msgpack.decode(body))


def parts(body: bytes) -> Iterator[bytes]:
    """Pieces that are written one at a time, so that nobody waits for a large snapshot."""
    for start in range(0, len(body), PART_BYTES):
        yield body[start : start + PART_BYTES]


def _packed(array: NDArray[np.bool_]) -> Iterator[bytes]:
    """Eight truth values to a byte, some rows at a time: packing a large view at once would copy all of it first."""
    for start in range(0, len(array), ROWS):
        yield np.packbits(array[start : start + ROWS]).tobytes()


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case Bits(shape, packed):
            return ["array", np.dtype(np.bool_).str, list(shape), zlib.compress(packed, 1)]
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
        return np.unpackbits(bits, count=size).view(np.bool_).reshape(shape).copy()
    return np.frombuffer(body, dtype).reshape(shape).copy()
