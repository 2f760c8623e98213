"""Numba's CUDA target, adapted to the arithmetic of the processor."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numba.extending
import numpy as np
from numba import cuda
from numba.cuda import config, extending

from fedcascade.numerics.jit import fma

config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a single run has few agents

NO_DEVICE = (
    "the cuda engine needs an NVIDIA GPU, its driver, and CUDA's compiler library: pip install 'fedcascade[gpu]'; "
    "--engine exact gives the same result on the processor"
)


# NVIDIA's package numba-cuda has its own registry. The CUDA target in numba uses that of numba, and supports neither
# np.sqrt nor max and min of two numbers (0.68).
overload: Any = getattr(extending, "overload", None) or partial(numba.extending.overload, target="cuda")

overload(fma, strict=False)(lambda a, b, c: lambda a, b, c: cuda.fma(a, b, c))  # noqa: ARG005
overload(np.sqrt, strict=False)(lambda value: lambda value: math.sqrt(value))  # noqa: ARG005
overload(max, strict=False)(lambda a, b: lambda a, b: b if b > a else a)  # noqa: ARG005
overload(min, strict=False)(lambda a, b: lambda a, b: b if b < a else a)  # noqa: ARG005


def check_device() -> None:
    """Raise a ValueError without a GPU."""
    if not cuda.is_available():
        raise ValueError(NO_DEVICE)


def describe_device() -> str:
    """Return the name of the GPU; raise a ValueError if there is none."""
    check_device()
    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)


def jit_kernel(*, registers: int | None = None) -> Any:
    """Return a decorator for kernels with at most ``registers`` registers per thread.

    Link-time optimisation of NVIDIA's package is disabled, because it fuses products with sums.
    """
    if config.ENABLE_CUDASIM:
        return cuda.jit
    options = {"max_registers": registers, **({"lto": False} if cuda.implementation == "NVIDIA" else {})}
    return lambda function: cuda.jit(function, **options)  # the decorator form ignores lto


@contextmanager
def forbid_contraction() -> Iterator[None]:
    """Compile kernels inside the block without fused products and sums, except for explicit fma.

    Numba has no such option, so this patches the call of NVVM. It also restores an alias that numpy 2.5 removed and
    numba-cuda 0.30 needs to compile its first kernel.
    """
    if config.ENABLE_CUDASIM:
        yield
        return
    from numba.cuda.cudadrv import nvvm

    compile_ir, lacks_alias = nvvm.compile_ir, "row_stack" not in vars(np)
    nvvm.compile_ir = lambda modules, **options: compile_ir(modules, **{**options, "fma": 0})
    if lacks_alias:
        setattr(np, "row_stack", np.vstack)  # noqa: B010 (mypy knows no such name)
    try:
        yield
    finally:
        nvvm.compile_ir = compile_ir
        if lacks_alias:
            delattr(np, "row_stack")


@cache
def check_arithmetic() -> None:
    """Raise a ValueError if the device fuses products with sums, which changes results."""
    a, b, c = np.random.default_rng(0).random((3, 1_024))
    out = cuda.device_array(a.size, np.float64)
    with forbid_contraction():
        _multiply_and_add[1, a.size](cuda.to_device(a), cuda.to_device(b), cuda.to_device(c), out)
    if not np.array_equal(out.copy_to_host(), a * b + c):
        raise ValueError("numba fuses products with sums on this GPU, so results would differ: use --engine exact")


@jit_kernel()
def _multiply_and_add(a: Any, b: Any, c: Any, out: Any) -> None:
    i = cuda.threadIdx.x
    out[i] = a[i] * b[i] + c[i]
