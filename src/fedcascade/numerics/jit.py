"""Decorators that compile functions, with the same arithmetic in every engine to the last bit."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import config
from numba.extending import intrinsic, overload, register_jitable

from fedcascade.numerics.fragments import FragmentCompiler, FragmentDispatcher

Function = TypeVar("Function", bound=Callable[..., Any])

# Every function sets _nrt (reference counts): otherwise it would take the setting of its first caller.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def jit(function: Function) -> Function:
    """Compile with numba: cached on disk, no fastmath, without the interpreter lock.

    Without fastmath nothing is contracted or reassociated, so results do not depend on the processor's vector width or
    the calling engine. Use ``fma`` for a product and a sum that are rounded once.
    """
    return _compile(function, _nrt=True)


def jit_brief(function: Function) -> Function:
    """Compile like ``jit``, but hold the interpreter lock: for short passes over arrays.

    Releasing the lock wakes a waiting thread, which soon finds it taken again. In a server, that costs both threads
    more than such a pass.
    """
    return _compile(function, _nrt=True, nogil=False)


def jit_inline(function: Function) -> Function:
    """Compile with numba, inlined into all callers, without counting references to arrays.

    For short functions, a call and the counting would take longer than the body. Such a function must neither create
    nor return arrays, nor call functions that do. Only the creation of an array fails at compilation.
    """
    return _compile(function, _nrt=False, forceinline=True)


def jit_no_refcount(function: Function) -> Function:
    """Compile without counting references, for functions too long to be inlined into all callers."""
    return _compile(function, _nrt=False)


def _compile(function: Function, **options: bool) -> Function:
    if getattr(config, "DISABLE_JIT"):  # noqa: B009 (it is made when numba is imported)
        return function
    dispatcher = FragmentDispatcher(function, targetoptions={"nopython": True, **_OPTIONS, **options})
    dispatcher.enable_caching()
    return cast(Function, dispatcher)


def jit_within(function: Function) -> Function:
    """Compile for compiled callers only; Python runs the function uncompiled, which saves compilation time."""
    options = _OPTIONS | {"_nrt": True, "no_cfunc_wrapper": True, "pipeline_class": FragmentCompiler}
    return register_jitable(**options)(function)


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """Compute a b + c with one rounding, with the same bits on processors without that instruction.

    >>> e = np.float32(2.0**-12)
    >>> float(fma(1 + e, 1 + e, np.float32(-1))) == 2.0**-11 + 2.0**-24, float((1 + e) * (1 + e) - 1) == 2.0**-11
    (True, True)
    """
    product, addend = np.float64(a) * np.float64(b), np.float64(c)  # the product is exact
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    # Round to odd: an inexact total never lies halfway between two float32.
    if lost != 0.0 and total.view(np.int64) & 1 == 0:
        total = np.nextafter(total, np.copysign(np.inf, lost))
    return np.float32(total)


def make_intrinsic(signature: Any, emit: Callable[..., Any]) -> Any:
    """Make a function for compiled code from one that emits its instructions; arrays arrive as pointers."""

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        values = [
            context.make_array(kind)(context, builder, value=value).data if isinstance(kind, types.Array) else value
            for value, kind in zip(values, signature.args, strict=True)
        ]
        result = emit(builder, *values)
        return context.get_dummy_value() if signature.return_type == types.void else result

    typed = signature, generate
    by_arity: Any = {
        1: lambda _, a: typed,  # noqa: ARG005
        2: lambda _, a, b: typed,  # noqa: ARG005
        3: lambda _, a, b, c: typed,  # noqa: ARG005
        4: lambda _, a, b, c, d: typed,  # noqa: ARG005
    }
    return intrinsic(by_arity[len(signature.args)])


_fused = make_intrinsic(types.float32(*[types.float32] * 3), lambda builder, *factors: builder.fma(*factors))


@overload(fma, strict=False)  # so that compiled code may call it
def _compiled_fma(a: Any, b: Any, c: Any) -> Any:
    if a == b == c == types.float32:
        return lambda a, b, c: _fused(a, b, c)
    return None


# fetch_and_increment(counter): atomically adds 1 to counter[0], and returns its value before.
fetch_and_increment = make_intrinsic(
    types.int64(types.Array(types.int64, 1, "C")),
    lambda builder, counter: builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "monotonic"),
)
