"""Where compiled code is kept: where numba keeps it, in a folder that can only be read, or nowhere.

Nothing fails for want of such a folder: code is then compiled anew in every process, and one warning says so.
"""

# mypy: disable-error-code="no-untyped-call"
# (numba's functions have no types)

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba.core import event
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    NullCache,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

COMPILED = ("numerics", "learning", "federation", "environments", "simulation", "evaluation", "service")


class CodeNotKept(UserWarning):
    """Compiled code could not be written to disk."""


@cache
def _warn_once() -> None:
    message = "compiled code cannot be kept: every process compiles anew, which takes it some seconds"
    remedy = "set NUMBA_CACHE_DIR to a folder that can be written"
    warnings.warn(f"{message}; {remedy}", CodeNotKept, stacklevel=2)


@cache
def digest_sources() -> str:
    """A digest of all sources of the packages with compiled code, whose functions are compiled into one another."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in COMPILED:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class WholeSources:
    """Code is good only for the sources it was compiled from, those of the functions it calls included.

    Numba alone asks for the file of the function itself: a change elsewhere, or another version of the package, would
    go unnoticed.
    """

    def get_source_stamp(self) -> Any:
        """Numba's own stamp, and the digest of all sources."""
        return super().get_source_stamp(), digest_sources()  # type: ignore[misc]


class ProvidedFolder(WholeSources, UserProvidedCacheLocator):
    """The folder that NUMBA_CACHE_DIR names."""


class PackageFolder(WholeSources, InTreeCacheLocator):
    """Beside the sources."""


class UserFolder(WholeSources, UserWideCacheLocator):
    """The user's own folder for such things."""


class _ReadOnly:
    def ensure_cache_path(self) -> None:
        """Raise an OSError where the folder cannot be read."""
        os.scandir(self.get_cache_path()).close()  # type: ignore[attr-defined]


class ReadOnlyProvidedFolder(_ReadOnly, ProvidedFolder):
    """The folder that NUMBA_CACHE_DIR names, such as that of a container's image, which nobody may change."""


class ReadOnlyPackageFolder(_ReadOnly, PackageFolder):
    """A package that was installed with its compiled code, for users who may not change it."""


PLACES: list[Any] = [ProvidedFolder, ReadOnlyProvidedFolder, PackageFolder, UserFolder, ReadOnlyPackageFolder]


class CodeCacheFiles(CompileResultCacheImpl):
    """The places where a function's code is looked for; the first that exists is used."""

    _locator_classes = PLACES


class CodeCache(FunctionCache):
    """A function's compiled code on disk. Damaged files and a full disk cost time, and nothing else."""

    _impl_class = CodeCacheFiles

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for these types of arguments, or None; files that are damaged are given up."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a pickle that is cut off or overwritten may raise anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code for these types of arguments; where that fails, warn."""
        try:
            super().save_overload(sig, data)
        except OSError:
            _warn_once()


class NoCache(NullCache):
    """Keeps nothing, and warns when there is something to keep."""

    def save_overload(self, sig: Any, cres: Any) -> None:  # noqa: ARG002
        """Warn."""
        _warn_once()


def open_cache(function: Callable[..., Any]) -> CodeCache | NoCache:
    """Open the cache of a function's code; one that keeps nothing where there is no folder for it."""
    try:
        return CodeCache(function)
    except RuntimeError:  # numba's 'no locator available'
        return NoCache()


def find_code_folder() -> tuple[str | None, bool]:
    """Find the folder of compiled code, None if there is none, and whether it can be written."""
    opened = open_cache(open_cache)
    if isinstance(opened, NoCache):
        return None, False
    folder = str(opened.cache_path)
    return folder, os.access(folder, os.W_OK)


class _Announcement(event.Listener):
    """Speaks once, when the first function is compiled."""

    def __init__(self, say: Callable[[], None]) -> None:
        self.say: Callable[[], None] | None = say

    def on_start(self, event: Any) -> None:  # noqa: ARG002
        say, self.say = self.say, None
        if say is not None:
            say()

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def announce_compilation(say: Callable[[], None]) -> Iterator[None]:
    """Call ``say`` when a function has to be compiled inside the block; never if all are loaded from disk."""
    with event.install_listener("numba:compile", _Announcement(say)):
        yield
