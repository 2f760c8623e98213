"""One way to compile a function, so that every engine does the same arithmetic to the last bit."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import config
from numba.extending import intrinsic, overload, register_jitable

from fedcascade.numerics.fragments import FragmentCompiler, FragmentDispatcher

Function = TypeVar("Function", bound=Callable[..., Any])

# Every function says whether it counts references (_nrt): else it would be compiled as its first caller happened to be.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def jit(function: Function) -> Function:
    """Compile with numba: cached on disk, no fastmath, free of the interpreter lock.

    Without fastmath nothing is contracted or reassociated, so results do not depend on the vector
    width of the processor or on which engine calls the function. Where a product and a sum are to be
    rounded once, the code says so with ``fma``.
    """
    return _compile(function, _nrt=True)


def jit_brief(function: Function) -> Function:
    """Compile like ``jit``, but keep the interpreter lock: for a pass over some arrays, in whatever dimension.

    To let go of the lock wakes a thread that waits for it, which finds it taken again. In a server, whose event loop
    nearly always waits, that costs both threads more than such a pass.
    """
    return _compile(function, _nrt=True, nogil=False)


def jit_inline(function: Function) -> Function:
    """Compile with numba, inlined wherever it is called, and without counting references to arrays.

    A call and the counting would take longer than a short function does: a call hands over every word of every array.
    Such a function neither makes arrays nor returns them, and calls nothing that returns them. Compiling it fails if it
    makes one; the rest is up to its author.
    """
    return _compile(function, _nrt=False, forceinline=True)


def jit_no_refcount(function: Function) -> Function:
    """Compile without counting references, as a call: for functions too long to be inlined wherever they are called."""
    return _compile(function, _nrt=False)


def _compile(function: Function, **options: bool) -> Function:
    if getattr(config, "DISABLE_JIT"):  # noqa: B009 (it is made when numba is imported)
        return function
    dispatcher = FragmentDispatcher(function, targetoptions={"nopython": True, **_OPTIONS, **options})
    dispatcher.enable_caching()
    return cast(Function, dispatcher)


def jit_within(function: Function) -> Function:
    """Compile for callers that are compiled; Python calls it as it is. For what takes longer to compile than to do."""
    options = _OPTIONS | {"_nrt": True, "no_cfunc_wrapper": True, "pipeline_class": FragmentCompiler}
    return register_jitable(**options)(function)


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """a b + c rounded once: one instruction where the processor has it, the same bits where it has not.

    >>> e = np.float32(2.0**-12)
    >>> float(fma(1 + e, 1 + e, np.float32(-1))) == 2.0**-11 + 2.0**-24, float((1 + e) * (1 + e) - 1) == 2.0**-11
    (True, True)
    """
    product, addend = np.float64(a) * np.float64(b), np.float64(c)  # the product is exact
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    # Rounding to odd: a total that lost something never lies halfway between two float32.
    if lost != 0.0 and total.view(np.int64) & 1 == 0:
        total = np.nextafter(total, np.copysign(np.inf, lost))
    return np.float32(total)


def _emit_fma(typing: Any, a: Any, b: Any, c: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


_fused: Any = intrinsic(_emit_fma)


@overload(fma, strict=False)  # so that compiled code may call it
def _compiled_fma(a: Any, b: Any, c: Any) -> Any:
    if a == b == c == types.float32:
        return lambda a, b, c: _fused(a, b, c)
    return None


def _emit_increment(typing: Any, counter: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        return builder.atomic_rmw("add", address, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), generate


# fetch_and_increment(counter): counter[0] before one was added to it; no two threads get the same.
fetch_and_increment: Any = intrinsic(_emit_increment)
