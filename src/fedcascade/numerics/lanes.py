"""Eight double-precision numbers at a time, where LLVM would take one after the other.

Numbers of eight computations lie side by side: eight neighbours of an array are one number of each. LLVM cannot know
that such neighbours do not overlap, so it does not find these loops by itself. Each number is rounded as if it were
alone, and LLVM takes as many registers as the processor needs, so the bits are the same everywhere.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from fedcascade.numerics.linear import Vector

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


def _make_intrinsic(emit: Callable[..., Any], places: int) -> Any:
    """A function for compiled code: ``emit`` gets the eight numbers at each place, the result goes to the first."""
    signature = types.void(_ARRAY, *[types.intp] * places)

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        data = context.make_array(_ARRAY)(context, builder, value=arguments[0]).data
        pointers = [builder.bitcast(builder.gep(data, [at]), _VECTOR.as_pointer()) for at in arguments[1:]]
        result = emit(builder, *(builder.load(pointer, align=8) for pointer in pointers))
        builder.store(result, pointers[0], align=8)
        return context.get_dummy_value()

    typed = signature, generate
    by_places: Any = {2: lambda _, values, a, b: typed, 3: lambda _, values, a, b, c: typed}  # noqa: ARG005
    return intrinsic(by_places[places])


def _emit_root(builder: Any, _: Any, numbers: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR])
    root: Any = cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v8f64")  # type: ignore[no-untyped-call]
    return builder.call(root, [numbers])


_divide = _make_intrinsic(lambda builder, a, b: builder.fdiv(a, b), 2)
_subtract_product = _make_intrinsic(lambda builder, a, b, c: builder.fsub(a, builder.fmul(b, c)), 3)
_take_root = _make_intrinsic(_emit_root, 2)


@overload(divide, strict=False)  # so that compiled code may call it
def _compiled_divide(values: Any, at: Any, by: Any) -> Any:  # noqa: ARG001
    return lambda values, at, by: _divide(values, at, by)


@overload(subtract_product, strict=False)
def _compiled_subtract_product(values: Any, at: Any, left: Any, right: Any) -> Any:  # noqa: ARG001
    return lambda values, at, left, right: _subtract_product(values, at, left, right)


@overload(take_root, strict=False)
def _compiled_take_root(values: Any, at: Any, of: Any) -> Any:  # noqa: ARG001
    return lambda values, at, of: _take_root(values, at, of)
