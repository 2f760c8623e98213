"""Arrays of float64 in MessagePack, made and read whole: one number at a time takes ten times as long."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

FLOAT64 = 0xCB
ELEMENT = np.dtype([("tag", "u1"), ("value", ">f8")])


def said(numbers: NDArray[np.float64], first: int) -> tuple[msgspec.Raw, msgspec.Raw]:
    """So many of the numbers, and the others, as they travel.

    >>> [msgspec.msgpack.decode(part) for part in said(np.array([0.5, -2.0, 1.0]), 2)]
    [[0.5, -2.0], [1.0]]
    """
    elements = np.empty(numbers.size, ELEMENT)
    elements["tag"] = FLOAT64
    elements["value"] = numbers
    body, end = elements.tobytes(), first * ELEMENT.itemsize
    return msgspec.Raw(_head(first) + body[:end]), msgspec.Raw(_head(numbers.size - first) + body[end:])


def heard(raw: msgspec.Raw, size: int) -> bytes | None:
    """What is said of so many numbers, if it may be in just this form; None if not, for there are others.

    >>> len(heard(said(np.array([0.5, -2.0]), 2)[0], 2)), heard(msgspec.Raw(msgspec.msgpack.encode([1, 2])), 2)
    (18, None)
    """
    head, body = _head(size), bytes(raw)
    fits = len(body) == len(head) + size * ELEMENT.itemsize and body.startswith(head)
    return body[len(head) :] if fits else None


def rows(heard: Sequence[bytes]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The numbers, one row for each of those of one length; and which rows were in this form after all.

    >>> numbers, good = rows([heard(said(np.array([0.5, -2.0]), 2)[0], 2), bytes(18)])
    >>> numbers[0].tolist(), good.tolist()
    ([0.5, -2.0], [True, False])
    """
    elements = np.frombuffer(b"".join(heard), ELEMENT).reshape(len(heard), -1)
    return elements["value"].astype(np.float64), (elements["tag"] == FLOAT64).all(axis=1)


def _head(size: int) -> bytes:
    """The shortest head of an array of so many elements."""
    if size < 16:
        return bytes((0x90 | size,))
    return b"\xdc" + size.to_bytes(2) if size < 1 << 16 else b"\xdd" + size.to_bytes(4)
