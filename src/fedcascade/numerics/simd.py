"""SIMD operations on sixteen single-precision or eight double-precision numbers, where LLVM does not vectorise loops.

``Float32x16`` exists in compiled code only. LLVM maps it to one register of 512 bits, two of 256 or four of 128. No
function rounds more than once, so results are the same on every processor.

Eight computations in double precision are interleaved: eight neighbours of an array are one number of each. LLVM cannot
prove that such neighbours do not overlap.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import overload, register_model
from numpy.typing import NDArray

from fedcascade.numerics.jit import Function, jit_within, make_intrinsic

LANES = 16  # numbers in a Float32x16
DOUBLES = 8  # interleaved computations in double precision
MASK_BITS = 64  # numbers that ``mask_at_least`` compares
_LINE = 64  # bytes in a cache line

_SINGLE, _WORD, _INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR, _INDICES = ir.VectorType(_SINGLE, LANES), ir.VectorType(_INDEX, LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), DOUBLES)
_LOWEST = ir.Constant(_VECTOR, [float("-inf")] * LANES)


class Float32x16(types.Type):
    """The type of sixteen float32."""

    def __init__(self) -> None:
        super().__init__("Float32x16")


@register_model(Float32x16)
class _Float32x16Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call]


_PACK, _ROW, _AT, _ONE = Float32x16(), types.Array(types.float32, 1, "C"), types.intp, types.float32


def call_llvm(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Emit a call of an LLVM intrinsic."""
    kind = ir.FunctionType(result, [value.type for value in values])
    function: Any = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(function, values)


def _broadcast(builder: Any, value: Any, kind: Any = _VECTOR) -> Any:
    nothing, nowhere = ir.Constant(kind, ir.Undefined), ir.Constant(_INDICES, [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(nothing, value, ir.Constant(_INDEX, 0)), nothing, nowhere)


def _point_at(builder: Any, row: Any, at: Any) -> Any:
    return builder.bitcast(builder.gep(row, [at]), _VECTOR.as_pointer())


def _load(builder: Any, row: Any, at: Any) -> Any:
    return builder.load(_point_at(builder, row, at), align=4)


def _keep_first(builder: Any, lanes: Any, count: Any) -> Any:
    counts = _broadcast(builder, builder.trunc(count, _INDEX), _INDICES)
    return builder.select(builder.icmp_signed("<", ir.Constant(_INDICES, list(range(LANES))), counts), lanes, _LOWEST)


def _reduce_max(builder: Any, lanes: Any) -> Any:
    largest = call_llvm(builder, "llvm.vector.reduce.fmax.v16f32", _SINGLE, lanes)
    largest.fastmath.add("nnan")  # assuming no NaN takes fewer instructions
    return largest


def _count_at_least(builder: Any, lanes: Any, number: Any) -> Any:
    reached = builder.fcmp_ordered(">=", lanes, _broadcast(builder, number))
    return builder.zext(builder.ctpop(builder.bitcast(reached, ir.IntType(LANES))), _WORD)


def _mask_at_least(builder: Any, row: Any, at: Any, floor: Any) -> Any:
    floors, bits = _broadcast(builder, floor), ir.Constant(_WORD, 0)
    for skip in range(0, MASK_BITS, LANES):
        lanes = _load(builder, row, builder.add(at, ir.Constant(at.type, skip)))
        reached = builder.bitcast(builder.fcmp_ordered(">=", lanes, floors), ir.IntType(LANES))
        bits = builder.or_(bits, builder.shl(builder.zext(reached, _WORD), ir.Constant(_WORD, skip)))
    return bits


# load(row, at): read sixteen neighbours of a row. store(row, at, lanes): write them.
load = make_intrinsic(_PACK(_ROW, _AT), _load)
store = make_intrinsic(
    types.void(_ROW, _AT, _PACK),
    lambda builder, row, at, lanes: builder.store(lanes, _point_at(builder, row, at), align=4),
)
# broadcast(number): sixteen copies of a number. load_broadcast(row, at): sixteen copies of one number of a row.
broadcast = make_intrinsic(_PACK(_ONE), _broadcast)
load_broadcast = make_intrinsic(
    _PACK(_ROW, _AT), lambda builder, row, at: _broadcast(builder, builder.load(builder.gep(row, [at])))
)
# multiply_add(a, b, c): a b + c, rounded once.
multiply_add = make_intrinsic(
    _PACK(_PACK, _PACK, _PACK), lambda builder, a, b, c: call_llvm(builder, "llvm.fma.v16f32", _VECTOR, a, b, c)
)
add = make_intrinsic(_PACK(_PACK, _PACK), lambda builder, a, b: builder.fadd(a, b))
sqrt = make_intrinsic(_PACK(_PACK), lambda builder, a: call_llvm(builder, "llvm.sqrt.v16f32", _VECTOR, a))
maximum = make_intrinsic(
    _PACK(_PACK, _PACK), lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b)
)
# keep_first(lanes, count): keep the first ``count``; keep_below(lanes, number): keep those below. Others become -inf.
keep_first = make_intrinsic(_PACK(_PACK, _AT), _keep_first)
keep_below = make_intrinsic(
    _PACK(_PACK, _ONE),
    lambda builder, a, number: builder.select(builder.fcmp_ordered("<", a, _broadcast(builder, number)), a, _LOWEST),
)
# reduce_max(lanes): the largest.
reduce_max = make_intrinsic(_ONE(_PACK), _reduce_max)
# count_at_least(lanes, number): the number of lanes with at least that value.
count_at_least = make_intrinsic(types.int64(_PACK, _ONE), _count_at_least)
# mask_at_least(row, at, floor): 64 bits, set where a neighbour in the row is at least the floor.
mask_at_least = make_intrinsic(types.uint64(_ROW, _AT, _ONE), _mask_at_least)
# find_lowest_bit(bits): the index of the lowest set bit; there must be one.
find_lowest_bit = make_intrinsic(
    types.int64(types.uint64), lambda builder, bits: builder.cttz(bits, ir.Constant(ir.IntType(1), 1))
)


@jit_within
def align_to_cache_line(memory: NDArray[Any]) -> NDArray[Any]:
    """Return the part of an array that starts at a cache line; it is 64 bytes shorter."""
    skip = -memory.ctypes.data % _LINE // memory.itemsize
    return memory[skip : memory.size - _LINE // memory.itemsize + skip]


def _compile_as(compute: Callable[..., Any], places: int) -> Callable[[Function], Function]:
    """Let compiled code write ``compute`` of the eight numbers at all places to the first, instead of the function."""

    def emit(builder: Any, data: Any, *indices: Any) -> Any:
        pointers = [builder.bitcast(builder.gep(data, [at]), _DOUBLES.as_pointer()) for at in indices]
        result = compute(builder, *(builder.load(pointer, align=8) for pointer in pointers))
        return builder.store(result, pointers[0], align=8)

    operate = make_intrinsic(types.void(types.Array(types.float64, 1, "C"), *[types.intp] * places), emit)
    by_places: Any = {
        2: lambda _values, _a, _b: lambda values, a, b: operate(values, a, b),
        3: lambda _values, _a, _b, _c: lambda values, a, b, c: operate(values, a, b, c),
    }

    def register(function: Function) -> Function:
        overload(function, strict=False)(by_places[places])
        return function

    return register


@_compile_as(lambda builder, a, b: builder.fdiv(a, b), 2)
def divide(values: NDArray[np.float64], at: int, by: int) -> None:
    """Divide the eight numbers at one place by the eight at another."""
    values[at : at + DOUBLES] /= values[by : by + DOUBLES]


@_compile_as(lambda builder, a, b, c: builder.fsub(a, builder.fmul(b, c)), 3)
def subtract_product(values: NDArray[np.float64], at: int, left: int, right: int) -> None:
    """Subtract from the eight numbers at one place the products of those at two others."""
    values[at : at + DOUBLES] -= values[left : left + DOUBLES] * values[right : right + DOUBLES]


@_compile_as(lambda builder, _, a: call_llvm(builder, "llvm.sqrt.v8f64", _DOUBLES, a), 2)
def take_root(values: NDArray[np.float64], at: int, of: int) -> None:
    """Write the square roots of the eight numbers at ``of`` to ``at``."""
    values[at : at + DOUBLES] = np.sqrt(values[of : of + DOUBLES])
