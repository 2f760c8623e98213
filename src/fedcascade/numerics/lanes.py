"""SIMD operations on eight double-precision numbers, for loops that LLVM does not vectorise.

Eight computations are interleaved: eight neighbours of an array are one number of each. LLVM cannot prove that such
neighbours do not overlap, so it does not vectorise these loops. Each number is rounded as in scalar code, so the bits
are the same on every processor.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit_inline
from fedcascade.numerics.linear import Vector
from fedcascade.numerics.simd import call_llvm, make_intrinsic

LANES = 8
_VECTOR, _ARRAY = ir.VectorType(ir.DoubleType(), LANES), types.Array(types.float64, 1, "C")


def divide(values: Vector, at: int, by: int) -> None:
    """Divide the eight numbers at one place by the eight at another."""
    values[at : at + LANES] /= values[by : by + LANES]


def subtract_product(values: Vector, at: int, left: int, right: int) -> None:
    """Subtract from the eight numbers at one place the products of those at two others."""
    values[at : at + LANES] -= values[left : left + LANES] * values[right : right + LANES]


def take_root(values: Vector, at: int, of: int) -> None:
    """Write the square roots of the eight numbers at ``of`` to ``at``."""
    values[at : at + LANES] = np.sqrt(values[of : of + LANES])


def _make_lane_intrinsic(compute: Callable[..., Any], places: int) -> Any:
    """Make a function for compiled code that writes ``compute`` of the numbers at all places to the first."""

    def emit(builder: Any, data: Any, *indices: Any) -> Any:
        pointers = [builder.bitcast(builder.gep(data, [at]), _VECTOR.as_pointer()) for at in indices]
        result = compute(builder, *(builder.load(pointer, align=8) for pointer in pointers))
        return builder.store(result, pointers[0], align=8)

    return make_intrinsic(types.void(_ARRAY, *[types.intp] * places), emit)


_divide = _make_lane_intrinsic(lambda builder, a, b: builder.fdiv(a, b), 2)
_subtract_product = _make_lane_intrinsic(lambda builder, a, b, c: builder.fsub(a, builder.fmul(b, c)), 3)
_take_root = _make_lane_intrinsic(lambda builder, _, a: call_llvm(builder, "llvm.sqrt.v8f64", _VECTOR, a), 2)


@overload(divide, strict=False)  # so that compiled code may call it
def _compiled_divide(values: Any, at: Any, by: Any) -> Any:  # noqa: ARG001
    return lambda values, at, by: _divide(values, at, by)


@overload(subtract_product, strict=False)
def _compiled_subtract_product(values: Any, at: Any, left: Any, right: Any) -> Any:  # noqa: ARG001
    return lambda values, at, left, right: _subtract_product(values, at, left, right)


@overload(take_root, strict=False)
def _compiled_take_root(values: Any, at: Any, of: Any) -> Any:  # noqa: ARG001
    return lambda values, at, of: _take_root(values, at, of)


@jit_inline
def factorise_lanes(workspace: Vector, d: int) -> None:
    """Overwrite eight matrices with their upper factors U, as ``linear.factorise``, and the last column c with U^-T c.

    ``workspace`` holds matrices of shape (d, d + 1), interleaved, and a pivot of each.
    """
    row, pivot = (d + 1) * LANES, d * (d + 1) * LANES
    for k in range(d):
        top, diagonal = k * row, k * row + k * LANES
        take_root(workspace, pivot, diagonal)
        for j in range(k, d):
            divide(workspace, top + j * LANES, pivot)
        divide(workspace, top + d * LANES, diagonal)
        for i in range(k + 1, d):
            for j in range(i, d + 1):
                subtract_product(workspace, i * row + j * LANES, top + i * LANES, top + j * LANES)


@jit_inline
def measure_lane(lane: Vector, d: int) -> tuple[float, float]:
    """Return the squared length of a factorised lane's last column, and ln det of its matrix; ``lane`` is its slice."""
    square, log_det = 0.0, 0.0
    for k in range(d):
        solved = lane[(k * (d + 1) + d) * LANES]
        square += solved * solved
        log_det += log(lane[k * (d + 2) * LANES])
    return square, 2.0 * log_det
