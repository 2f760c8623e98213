"""Drawing and scoring of single items on the device, equal to the processor to the bit.

Numba compiles these functions for both targets. The features of an item have the shape (dimension, 1), as
``ranking.compute_attraction`` expects.
"""

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from fedcascade.environments.draws import LENGTH, LIFTED_LENGTH, LIFTING
from fedcascade.numerics import streams
from fedcascade.numerics.grid import truncate_steps
from fedcascade.numerics.jit import fma, jit
from fedcascade_cuda.layout import AgentMemory, TeamRound

Column = NDArray[np.float32]
_BELOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_ZERO, _TINY = np.float32(0.0), np.float32(1e-30)  # as in ``draws``
UNROLLED = 32  # dimensions; more take minutes to compile


@jit
def draw_item(seed: np.uint64, round_: int, item: int, lifted: bool, column: Column) -> None:
    """Fill ``column`` with the features of one item, equal to ``draws.draw_unit_items_into`` to the bit."""
    d = column.shape[0]
    free = d - 1 if lifted else d
    square = _ZERO
    for first in range(0, free, 4):
        a, b, c, e = streams.philox(seed, streams.ITEMS, round_, item, first // 4)
        x, y = streams.normal_pair(a, b)
        square = _store_normal(column, first, free, x, square)
        square = _store_normal(column, first + 1, free, y, square)
        x, y = streams.normal_pair(c, e)
        square = _store_normal(column, first + 2, free, x, square)
        square = _store_normal(column, first + 3, free, y, square)
    length = LIFTED_LENGTH if lifted else LENGTH
    scale = np.float32(length / np.sqrt(max(square, _TINY)))
    for k in range(free):
        column[k, 0] = truncate_steps(column[k, 0] * scale)
    if lifted:
        column[free, 0] = LIFTING


@jit
def _store_normal(column: Column, k: int, free: int, value: np.float32, square: np.float32) -> np.float32:
    """Store a free coordinate; return the sum of squares with it."""
    if k >= free:
        return square
    column[k, 0] = value
    return fma(value, value, square)


@jit
def make_tie_key(tie: np.uint32, item: int) -> np.uint64:
    """Return a key that orders items of equal scores: the larger tie-break first, then the lower index."""
    return np.uint64((np.uint64(tie) << _32) | (_BELOW - np.uint64(item)))


def make_score_item(d: int, lifted: bool) -> Any:
    """Build the device function that draws an item and scores it in single precision, unclipped.

    It returns the score, the true weight and the squared width. Its last argument is a buffer for d features.
    """
    return _make_unrolled_score(d, lifted) if d <= UNROLLED else _make_looping_score(d, lifted)


def _make_looping_score(d: int, lifted: bool) -> Any:
    @cuda.jit(device=True)
    def score(round_: TeamRound, item: int, agent: AgentMemory, beta: Any, x: Any) -> Any:
        theta, truth, root = agent.theta32, agent.truth32, agent.root32
        draw_item(round_.seed, round_.t, item, lifted, x)
        mean, true_mean, total, at = _ZERO, _ZERO, _ZERO, 0
        for k in range(d):
            mean, true_mean = fma(theta[k], x[k, 0], mean), fma(truth[k], x[k, 0], true_mean)
        for j in range(d):
            part = _ZERO
            for k in range(j + 1):
                part = fma(root[at], x[k, 0], part)
                at += 1
            total = fma(part, part, total)
        return mean + beta * math.sqrt(total), true_mean, total

    return score


def _make_unrolled_score(d: int, lifted: bool) -> Any:
    """Build the score from one function per step, since features stay in registers only without loops over them."""
    free = d - lifted
    draw_normals, add_squares = _make_draw_normals((free + 3) // 4), _make_add_squares(free)
    scale, dot, add_widths = _make_scale(free), _make_dot(d), _make_add_widths(d)
    length = LIFTED_LENGTH if lifted else LENGTH
    lifting = (LIFTING,) * (d - free)

    @cuda.jit(device=True)
    def score(round_: TeamRound, item: int, agent: AgentMemory, beta: Any, x: Any) -> Any:  # noqa: ARG001
        # Always 0. It keeps the compiler from loading the root once for all items, into too many registers.
        zero = np.uint64(item) >> np.uint64(30) << np.uint64(2)
        normals = draw_normals(round_.seed, round_.t, item)
        features = scale(normals, length / math.sqrt(max(add_squares(normals), _TINY))) + lifting
        total = add_widths(agent.root32, zero, features)
        mean, true_mean = dot(agent.theta32, zero, features), dot(agent.truth32, zero, features)
        return mean + beta * math.sqrt(total), true_mean, total

    return score


@cache
def _make_draw_normals(groups: int) -> Any:
    """Build the function that draws four normals per group."""
    last = groups - 1

    @cuda.jit(device=True)
    def draw_group(seed: Any, round_: int, item: int) -> Any:
        a, b, c, e = streams.philox(seed, streams.ITEMS, round_, item, last)
        return streams.normal_pair(a, b) + streams.normal_pair(c, e)

    if groups == 1:
        return draw_group
    draw_earlier = _make_draw_normals(last)

    @cuda.jit(device=True)
    def draw_normals(seed: Any, round_: int, item: int) -> Any:
        return draw_earlier(seed, round_, item) + draw_group(seed, round_, item)

    return draw_normals


@cache
def _make_add_squares(terms: int) -> Any:
    """Build the function that sums the squares of the first elements of a tuple, in order."""
    if terms == 0:
        return cuda.jit(device=True)(lambda x: _ZERO)  # noqa: ARG005
    add_earlier, last = _make_add_squares(terms - 1), terms - 1
    return cuda.jit(device=True)(lambda x: fma(x[last], x[last], add_earlier(x)))


@cache
def _make_scale(terms: int) -> Any:
    """Build the function that scales the first elements of a tuple and rounds them to the grid."""
    if terms == 1:
        return cuda.jit(device=True)(lambda x, factor: (truncate_steps(x[0] * factor),))
    scale_earlier, last = _make_scale(terms - 1), terms - 1

    @cuda.jit(device=True)
    def scale(x: Any, factor: Any) -> Any:
        return scale_earlier(x, factor) + (truncate_steps(x[last] * factor),)  # noqa: RUF005

    return scale


@cache
def _make_dot(terms: int) -> Any:
    """Build the function that multiplies an array, from ``at`` on, with the first elements of a tuple."""
    if terms == 1:
        return cuda.jit(device=True)(lambda factors, at, x: factors[at] * x[0])
    dot_earlier, last = _make_dot(terms - 1), terms - 1
    return cuda.jit(device=True)(
        lambda factors, at, x: fma(factors[at + np.uint64(last)], x[last], dot_earlier(factors, at, x))
    )


@cache
def _make_add_widths(rows: int) -> Any:
    """Build the function that computes the squared width from the first rows of the root."""
    if rows == 0:
        return cuda.jit(device=True)(lambda root, at, x: _ZERO)  # noqa: ARG005
    add_earlier, dot, begin = _make_add_widths(rows - 1), _make_dot(rows), rows * (rows - 1) // 2

    @cuda.jit(device=True)
    def add_widths(root: Any, at: Any, x: Any) -> Any:
        part = dot(root, at + np.uint64(begin), x)
        return fma(part, part, add_earlier(root, at, x))

    return add_widths
