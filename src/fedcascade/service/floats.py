"""Arrays of float64 in MessagePack, made and read whole: one number at a time takes ten times as long."""

import msgspec
import numpy as np
from numpy.typing import NDArray

FLOAT64 = 0xCB
ELEMENT = np.dtype([("tag", "u1"), ("value", ">f8")])


def said(numbers: NDArray[np.float64]) -> msgspec.Raw:
    """Numbers as they travel.

    >>> msgspec.msgpack.decode(said(np.array([0.5, -2.0])))
    [0.5, -2.0]
    """
    elements = np.empty(numbers.size, ELEMENT)
    elements["tag"] = FLOAT64
    elements["value"] = numbers
    return msgspec.Raw(_head(numbers.size) + elements.tobytes())


def heard(raw: msgspec.Raw, size: int) -> NDArray[np.float64] | None:
    """So many numbers, if they travelled in just this form; None if not, for there are others.

    >>> heard(said(np.array([0.5, -2.0])), 2).tolist(), heard(msgspec.Raw(msgspec.msgpack.encode([1, 2])), 2)
    ([0.5, -2.0], None)
    """
    head, body = _head(size), bytes(raw)
    if not body.startswith(head) or len(body) != len(head) + size * ELEMENT.itemsize:
        return None
    elements = np.frombuffer(body, ELEMENT, offset=len(head))
    tags = elements["tag"].tobytes()
    return elements["value"].astype(np.float64) if tags.count(FLOAT64) == size else None


def _head(size: int) -> bytes:
    """The shortest head of an array of so many elements."""
    if size < 16:
        return bytes((0x90 | size,))
    return b"\xdc" + size.to_bytes(2) if size < 1 << 16 else b"\xdd" + size.to_bytes(4)
