"""One item at a time, as a thread of a GPU meets it: the same arithmetic as on the processor, to the bit.

Numba compiles these functions for both, from this one source. An item's features come as a column of one:
shape (dimension, 1), as ``lists.weight`` reads them.
"""

import math
from typing import Any

import numpy as np
from numba import cuda, float32
from numpy.typing import NDArray

from fedcascade.numerics import streams
from fedcascade.numerics.jit import fma, jit

Column = NDArray[np.float32]
_BELOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_ZERO = np.float32(0.0)
WRITTEN_OUT = 32  # dimensions; more take minutes to compile


@jit
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


@jit
def _put(column: Column, k: int, free: int, value: np.float32, square: np.float32) -> np.float32:
    if k >= free:
        return square
    column[k, 0] = value
    return fma(value, value, square)


@jit
def second_key(tie: np.uint32, item: int) -> np.uint64:
    """What orders items of equal scores: the larger tie-break first, then the lower index."""
    return np.uint64((np.uint64(tie) << _32) | (_BELOW - np.uint64(item)))


def score_item(d: int, lifted: bool) -> Any:
    """A device function that draws an item and filters it: score and true weight in single precision, not clipped.

    It also gives the squared width. ``root`` is the lower triangle of the inverse root, row by row.
    """
    return _written_out(d, lifted) if d <= WRITTEN_OUT else _in_loops(d, lifted)


def _in_loops(d: int, lifted: bool) -> Any:
    @cuda.jit(device=True)
    def score(seed: Any, round_: int, item: int, theta: Any, truth: Any, root: Any, beta: Any) -> Any:
        x = cuda.local.array((d, 1), float32)
        draw_item(seed, round_, item, lifted, x)
        mean, true_mean, total, at = _ZERO, _ZERO, _ZERO, 0
        for k in range(d):
            mean, true_mean = cuda.fma(theta[k], x[k, 0], mean), cuda.fma(truth[k], x[k, 0], true_mean)
        for j in range(d):
            part = _ZERO
            for k in range(j + 1):
                part = cuda.fma(root[at], x[k, 0], part)
                at += 1
            total = cuda.fma(part, part, total)
        return mean + beta * math.sqrt(total), true_mean, total

    return score


def _written_out(d: int, lifted: bool) -> Any:
    """The same without loops, one line for each step, because only then do the features stay in registers."""
    free = d - lifted
    lines = ["def score(seed, round_, item, theta, truth, root, beta):", "square = zero"]
    # Always 0, but the compiler cannot know: else it would load the root once for all items, into more registers
    # than there are.
    lines.append("o = u(item) >> u(30) << u(2)")
    for first in range(0, free, 4):
        lines.append(f"a, b, c, e = philox(seed, ITEMS, round_, item, {first // 4})")
        lines.append(f"x{first}, x{first + 1} = normal_pair(a, b)")
        lines.append(f"x{first + 2}, x{first + 3} = normal_pair(c, e)")
    lines += [f"square = fma(x{k}, x{k}, square)" for k in range(free)]
    lines.append("scale = length / sqrt(square if square > tiny else tiny)")
    lines += [f"x{k} = x{k} * scale" for k in range(free)]
    lines += [f"x{k} = root_half" for k in range(free, d)]
    lines.append("mean, true_mean, total = theta[o] * x0, truth[o] * x0, zero")
    for k in range(1, d):
        lines.append(f"mean, true_mean = fma(theta[o + u({k})], x{k}, mean), fma(truth[o + u({k})], x{k}, true_mean)")
    for j in range(d):
        lines.append(f"part = root[o + u({j * (j + 1) // 2})] * x0")
        lines += [f"part = fma(root[o + u({j * (j + 1) // 2 + k})], x{k}, part)" for k in range(1, j + 1)]
        lines.append("total = fma(part, part, total)")
    lines.append("return mean + beta * sqrt(total), true_mean, total")
    names: dict[str, Any] = {
        "philox": streams.philox,
        "normal_pair": streams.normal_pair,
        "ITEMS": streams.ITEMS,
        "fma": fma,
        "u": np.uint64,
        "sqrt": math.sqrt,
        "zero": streams._ZERO,
        "tiny": streams._TINY,
        "root_half": streams._ROOT_HALF,
        "length": streams._ROOT_HALF if lifted else streams._ONE,
    }
    exec("\n    ".join(lines), names)
    return cuda.jit(device=True)(names["score"])
