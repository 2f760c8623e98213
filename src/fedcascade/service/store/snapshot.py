"""Encoding of states as bytes: arrays, statistics and plain values, exact to the bit. Decoding never runs code.

The format is MessagePack. Other kinds of values are arrays whose first element names the kind, such as
``["array", dtype, shape, [bytes, bytes, ...]]``. The bytes of an array are cut into pieces of some rows, so that
unchanged rows give the same pieces in the next snapshot, and no piece exceeds MessagePack's limit.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics

CHUNK_BYTES = 1 << 14
DIGEST_BYTES = 32
PACKED_BYTES = 1 << 16
# Tags of MessagePack: the number of bytes that follow, as the value or as the length of bytes, text or an array.
SIZES = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4}
LARGE = 1024  # rows from which a decoded array has spare capacity
PACKED_ROWS = 256  # rows packed at once; a multiple of 8, so that they fill whole bytes


@dataclass(frozen=True)
class PackedBits:
    """An array of booleans, eight to a byte."""

    shape: tuple[int, ...]
    packed: NDArray[np.uint8]


@dataclass(frozen=True)
class ChangedRows:
    """The changed pieces of an array, by number, and the digests of all pieces.

    A digest is b"" if it is not computed yet, or if the piece is too small to be a chunk.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: dict[int, NDArray[Any]]
    digests: list[bytes]


@dataclass(frozen=True)
class Piece:
    """A piece of an array whose changes are tracked; ``body`` is None if it did not change."""

    rows: ChangedRows
    number: int
    body: bytes | None


def copy_changed(array: NDArray[Any], changed: NDArray[np.int64] | None, digests: Sequence[bytes]) -> ChangedRows:
    """Copy the pieces of an array with changed rows or without digests; all pieces if ``changed`` is None."""
    step = _find_step(array)
    count = len(range(0, len(array), step))
    wanted = set(range(count)) if changed is None else set((changed // step).tolist())
    wanted |= {count - 1, *range(len(digests), count)}  # the last one may be no chunk
    kept = [*digests[:count], *[b""] * (count - len(digests))]
    for number in wanted:
        kept[number] = b""
    pieces = {number: array[number * step : (number + 1) * step].copy() for number in sorted(wanted)}
    return ChangedRows(array.dtype, array.shape, pieces, kept)


def encode_state(state: Any) -> bytes:
    """Encode a state; raise TypeError for an unsupported kind of value.

    >>> import numpy as np
    >>> read_state([encode_state({3: np.array([True, False])})])
    {3: array([ True, False])}
    """
    return b"".join(piece for piece in _encode_pieces(state) if isinstance(piece, bytes))


def gather_chunks(state: Any) -> Iterator[bytes | Piece]:
    """Encode a state lazily as chunks of about ``CHUNK_BYTES``.

    A large piece of an array is a chunk of its own, so a change in one piece does not affect other chunks. Large pieces
    whose changes are tracked are yielded as ``Piece``.
    """
    gathered: list[bytes] = []
    size = 0
    for piece in _encode_pieces(state):
        body = piece.body if isinstance(piece, Piece) else piece
        is_large = body is None or len(body) > CHUNK_BYTES // 2
        if gathered and (is_large or size >= CHUNK_BYTES):
            yield b"".join(gathered)
            gathered, size = [], 0
        if body is None or is_large:
            yield piece
        else:
            gathered.append(body)
            size += len(body)
    if gathered:
        yield b"".join(gathered)


def digest_chunk(chunk: bytes) -> bytes:
    """Compute the digest that names a chunk."""
    return blake2b(chunk, digest_size=DIGEST_BYTES).digest()


def split_digests(digests: bytes) -> list[bytes]:
    """Split joined digests."""
    return [digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES)]


def read_state(chunks: Iterable[bytes]) -> Any:
    """Decode a state from its chunks, holding no more than the state and a chunk in memory."""
    return _StateReader(chunks).read()


def copy_state(state: Any, previous: Any = None) -> Any:
    """Copy a state quickly, so that another thread can encode the copy.

    The memory of ``previous``, an earlier copy, is reused where it fits, because allocating takes longer than copying.

    >>> import numpy as np
    >>> seen = np.array([True, False])
    >>> copy = copy_state({"seen": seen})
    >>> seen[1] = True
    >>> read_state([encode_state(copy)])
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
        case ChangedRows():
            return state
        case dict():
            earlier = previous if isinstance(previous, dict) else {}
            return {key: copy_state(value, earlier.get(key)) for key, value in state.items()}
        case list() | tuple():
            return [copy_state(value) for value in state]
    return state


def _encode_pieces(value: Any) -> Iterator[bytes | Piece]:
    """Encode as MessagePack in small pieces, because encoding one holds the interpreter lock."""
    match value:
        case np.ndarray() if value.dtype == np.bool_:
            yield from _encode_pieces(copy_state(value))
        case PackedBits():
            yield from _encode_array(np.dtype(np.bool_), value.shape, *_cut_bits(value.packed))
        case np.ndarray():
            yield from _encode_array(value.dtype, value.shape, *_cut_rows(value))
        case ChangedRows():
            yield from _encode_array(value.dtype, value.shape, len(value.digests), ())
            for number in range(len(value.digests)):
                rows = value.pieces.get(number)
                body = None if rows is None else msgspec.msgpack.encode(np.ascontiguousarray(rows).data.cast("B"))
                yield Piece(value, number, body)
        case Statistics():
            counts = [value.count, value.clicks, value.rounds, *([value.shortfall] if value.shortfall else [])]
            yield b"\x94" + msgspec.msgpack.encode("statistics")
            yield from _encode_pieces(value.gram)
            yield from _encode_pieces(value.moment)
            yield msgspec.msgpack.encode(counts)
        case dict():
            yield b"\x92" + msgspec.msgpack.encode("map") + b"\xdd" + len(value).to_bytes(4)
            for key, item in value.items():
                yield b"\x92" + msgspec.msgpack.encode(_to_plain(key))
                yield from _encode_pieces(item)
        case list() | tuple():
            yield b"\x92" + msgspec.msgpack.encode("list") + b"\xdd" + len(value).to_bytes(4)
            for item in value:
                yield from _encode_pieces(item)
        case _:
            yield msgspec.msgpack.encode(_to_plain(value))


def _encode_array(
    dtype: np.dtype[Any], shape: tuple[int, ...], count: int, pieces: Iterable[bytes | memoryview]
) -> Iterator[bytes]:
    yield b"\x94" + b"".join(map(msgspec.msgpack.encode, ("array", dtype.str, list(shape))))
    yield b"\xdd" + count.to_bytes(4)
    yield from map(msgspec.msgpack.encode, pieces)


def _find_step(rows: NDArray[Any]) -> int:
    """Return the number of rows of a piece of about the size of a chunk."""
    return max(1, CHUNK_BYTES // max(1, rows.nbytes // max(1, len(rows))))


def _cut_rows(array: NDArray[Any]) -> tuple[int, Iterable[bytes | memoryview]]:
    """Cut an array into pieces of some rows; return their number and their bytes."""
    rows = array.reshape(1) if array.ndim == 0 else array
    step = _find_step(rows)
    starts = range(0, len(rows) if rows.size else 0, step)
    return len(starts), (np.ascontiguousarray(rows[start : start + step]).data.cast("B") for start in starts)


def _cut_bits(packed: NDArray[np.uint8]) -> tuple[int, Iterable[bytes | memoryview]]:
    """Cut booleans into compressed pieces; return their number and their bytes."""
    starts = range(0, packed.size, PACKED_BYTES)
    return len(starts), (zlib.compress(packed[start : start + PACKED_BYTES].data, 1) for start in starts)


def _pack_bits(array: NDArray[np.bool_], memory: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Pack eight booleans to a byte, some rows at a time because packing a view copies it first."""
    packed = np.empty((array.size + 7) // 8, np.uint8) if memory is None else memory
    end = 0
    for start in range(0, len(array), PACKED_ROWS):
        bits = np.packbits(array[start : start + PACKED_ROWS])
        packed[end : end + bits.size] = bits
        end += bits.size
    return packed


def _to_plain(value: Any) -> Any:
    """Convert a value to a type of MessagePack."""
    match value:
        case np.generic():  # before float, because numpy.float64 is one
            return _to_plain(value.item())
        case None | bool() | int() | float() | str() | bytes():
            return value
    raise TypeError(f"a snapshot cannot hold a {type(value).__name__}")


class _StateReader:
    """Reader of MessagePack values, and of arrays whose first element names another kind."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = memoryview(b"")

    def read(self) -> Any:
        tag = self._take(1)[0]
        if 0x90 <= tag <= 0x9F:
            return self._read_kind(tag & 0x0F)
        if tag in (0xDC, 0xDD):
            return self._read_kind(self._take_number(LENGTHS[tag]))
        if tag in (0xC4, 0xC5, 0xC6):
            return bytes(self._take(self._take_number(LENGTHS[tag])))
        if tag in LENGTHS:
            return bytes(self._take(self._take_number(LENGTHS[tag]))).decode()
        if 0xA0 <= tag <= 0xBF:
            return bytes(self._take(tag & 0x1F)).decode()
        return msgspec.msgpack.decode(bytes([tag]) + self._take(SIZES.get(tag, 0)))

    def _read_kind(self, size: int) -> Any:
        """Read a value that is encoded as an array of ``size`` elements."""
        kind = self.read() if size else None
        match kind, size:
            case "array", 4:
                return self._read_array(np.dtype(self.read()), self.read())
            case "statistics", 4:
                gram, moment, counts = self.read(), self.read(), self.read()
                return Statistics(gram, moment, *counts)
            case "map", 2:
                return dict(self._read_pair() for _ in range(self._read_count()))
            case "list", 2:
                return [self.read() for _ in range(self._read_count())]
        return [kind, *(self.read() for _ in range(size - 1))] if size else []

    def _read_pair(self) -> tuple[Any, Any]:
        self._take(1)
        return self.read(), self.read()

    def _read_count(self) -> int:
        """Read the length of the next array."""
        tag = self._take(1)[0]
        return tag & 0x0F if tag < 0xA0 else self._take_number(LENGTHS[tag])

    def _read_array(self, dtype: np.dtype[Any], shape: list[int]) -> NDArray[Any]:
        """Read a writable array; a large one has spare capacity for as many rows again."""
        pieces = (self.read() for _ in range(self._read_count()))
        if dtype == np.bool_:
            bits = np.frombuffer(b"".join(map(zlib.decompress, pieces)), np.uint8)
            return np.unpackbits(bits, count=int(np.prod(shape))).view(np.bool_).reshape(shape).copy()
        is_large = bool(shape) and shape[0] >= LARGE
        array = np.zeros((2 * shape[0], *shape[1:]), dtype)[: shape[0]] if is_large else np.empty(shape, dtype)
        view, end = array.reshape(-1).view(np.uint8), 0
        for piece in pieces:
            view[end : end + len(piece)] = np.frombuffer(piece, np.uint8)
            end += len(piece)
        return array

    def _take_number(self, size: int) -> int:
        return int.from_bytes(self._take(size))

    def _take(self, size: int) -> memoryview:
        while len(self._buffer) < size:
            chunk = next(self._chunks)
            self._buffer = memoryview(bytes(self._buffer) + chunk if len(self._buffer) else chunk)
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken
