"""Sixteen single-precision numbers at a time, for loops that LLVM would not vectorise by itself.

``Float32x16`` exists in compiled code alone. LLVM makes of it what the processor has: one register of 512 bits, two
of 256 or four of 128. Each function emits the instructions that its comment names; but for ``reduce_sum`` none rounds
more than once, so the numbers are the same everywhere.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model
from numpy.typing import NDArray

from fedcascade.numerics.jit import jit_within

LANES, MASK_BITS = 16, 64  # numbers in a Float32x16; numbers that ``mask_at_least`` compares
_LINE = 64  # bytes that the processor's memory hands out at once

_SINGLE, _WORD, _INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR, _INDICES = ir.VectorType(_SINGLE, LANES), ir.VectorType(_INDEX, LANES)
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


def _make_intrinsic(signature: Any, emit: Callable[..., Any]) -> Any:
    """Make a function for compiled code out of one that emits its instructions."""

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        values = [
            context.make_array(_ROW)(context, builder, value=value).data if kind == _ROW else value
            for value, kind in zip(values, signature.args, strict=True)
        ]
        result = emit(builder, *values)
        return context.get_dummy_value() if signature.return_type == types.void else result

    typed = signature, generate
    by_arity: Any = (lambda _, a: typed, lambda _, a, b: typed, lambda _, a, b, c: typed)  # noqa: ARG005
    return intrinsic(by_arity[len(signature.args) - 1])


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
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
    largest = _call(builder, "llvm.vector.reduce.fmax.v16f32", _SINGLE, lanes)
    largest.fastmath.add("nnan")  # without NaN in mind, LLVM needs fewer instructions
    return largest


def _reduce_sum(builder: Any, lanes: Any) -> Any:
    total = _call(builder, "llvm.vector.reduce.fadd.v16f32", _SINGLE, ir.Constant(_SINGLE, 0.0), lanes)
    total.fastmath.add("reassoc")  # in whatever order is fastest
    return total


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


# load(row, at): sixteen neighbours of a row. store(row, at, lanes) writes them.
load = _make_intrinsic(_PACK(_ROW, _AT), _load)
store = _make_intrinsic(
    types.void(_ROW, _AT, _PACK),
    lambda builder, row, at, lanes: builder.store(lanes, _point_at(builder, row, at), align=4),
)
# broadcast(number): sixteen times the number. load_broadcast(row, at): sixteen times one number of a row.
broadcast = _make_intrinsic(_PACK(_ONE), _broadcast)
load_broadcast = _make_intrinsic(
    _PACK(_ROW, _AT), lambda builder, row, at: _broadcast(builder, builder.load(builder.gep(row, [at])))
)
# multiply_add(a, b, c): a b + c, rounded once.
multiply_add = _make_intrinsic(
    _PACK(_PACK, _PACK, _PACK), lambda builder, a, b, c: _call(builder, "llvm.fma.v16f32", _VECTOR, a, b, c)
)
add = _make_intrinsic(_PACK(_PACK, _PACK), lambda builder, a, b: builder.fadd(a, b))
sqrt = _make_intrinsic(_PACK(_PACK), lambda builder, a: _call(builder, "llvm.sqrt.v16f32", _VECTOR, a))
maximum = _make_intrinsic(
    _PACK(_PACK, _PACK), lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b)
)
# keep_first(lanes, count): the first ``count``; keep_below(lanes, number): those below. The others become -inf.
keep_first = _make_intrinsic(_PACK(_PACK, _AT), _keep_first)
keep_below = _make_intrinsic(
    _PACK(_PACK, _ONE),
    lambda builder, a, number: builder.select(builder.fcmp_ordered("<", a, _broadcast(builder, number)), a, _LOWEST),
)
# reduce_max(lanes): the largest. reduce_sum(lanes): the sum in no certain order; its last bits depend on the processor.
reduce_max = _make_intrinsic(_ONE(_PACK), _reduce_max)
reduce_sum = _make_intrinsic(_ONE(_PACK), _reduce_sum)
# count_at_least(lanes, number): how many of them are at least the number.
count_at_least = _make_intrinsic(types.int64(_PACK, _ONE), _count_at_least)
# mask_at_least(row, at, floor): 64 neighbours of a row as bits, set where the number is at least the floor.
mask_at_least = _make_intrinsic(types.uint64(_ROW, _AT, _ONE), _mask_at_least)
# find_lowest_bit(bits): the place of the lowest bit that is set; there must be one.
find_lowest_bit = _make_intrinsic(
    types.int64(types.uint64), lambda builder, bits: builder.cttz(bits, ir.Constant(ir.IntType(1), 1))
)


@jit_within
def align_to_cache_line(memory: NDArray[Any]) -> NDArray[Any]:
    """The part of an array that begins where a cache line begins; it is 64 bytes shorter."""
    skip = -memory.ctypes.data % _LINE // memory.itemsize
    return memory[skip : memory.size - _LINE // memory.itemsize + skip]
