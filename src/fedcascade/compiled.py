"""One way to compile a function, so that every engine does the same arithmetic to the last bit."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile with numba: cached on disk, no fastmath, free of the interpreter lock.

    Without fastmath nothing is contracted or reassociated, so results do not depend on the vector
    width of the processor or on which engine calls the function.
    """
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def approximate(function: Function) -> Function:
    """Compile with contraction and reassociation: faster, but the last bits depend on the processor.

    Only for filters whose result is used with a margin and then computed again by ``compiled`` code.
    """
    loose = {"contract", "reassoc", "nsz"}
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=loose)(function))
