"""One item at a time, as a lane of a GPU meets it: the same arithmetic as on the processor, to the bit.

Numba compiles these functions for both, from this one source. An item's features come as a column of one:
shape (dimension, 1), as ``lists.weight`` reads them.
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.compiled import compiled, fma
from fedcascade.environments import streams

Column = NDArray[np.float32]
_BELOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@compiled
def draw_item(seed: np.uint64, round_: int, item: int, lifted: bool, column: Column) -> None:
    """Fill ``column`` with the features of one item, as ``streams.unit_items_into`` does for all of them."""
    d = column.shape[0]
    free = d - 1 if lifted else d
    square = streams._ZERO
    for first in range(0, free, 4):
        a, b, c, e = streams.philox(seed, streams.ITEMS, round_, item, first // 4)
        x, y = streams.normal_pair(a, b)
        square = _put(column, first, free, x, square)
        square = _put(column, first + 1, free, y, square)
        x, y = streams.normal_pair(c, e)
        square = _put(column, first + 2, free, x, square)
        square = _put(column, first + 3, free, y, square)
    length = streams._ROOT_HALF if lifted else streams._ONE
    scale = np.float32(length / np.sqrt(max(square, streams._TINY)))
    for k in range(free):
        column[k, 0] *= scale
    if lifted:
        column[free, 0] = streams._ROOT_HALF


@compiled
def _put(column: Column, k: int, free: int, value: np.float32, square: np.float32) -> np.float32:
    if k >= free:
        return square
    column[k, 0] = value
    return fma(value, value, square)


@compiled
def second_key(tie: np.uint32, item: int) -> np.uint64:
    """What orders items of equal scores: the larger tie-break first, then the lower index."""
    return np.uint64((np.uint64(tie) << _32) | (_BELOW - np.uint64(item)))
