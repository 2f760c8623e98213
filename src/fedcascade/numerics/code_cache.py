"""The cache of compiled code on disk. Without a folder, every process compiles again and warns once."""

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

COMPILED = ("numerics", "learning", "federation", "environments", "simulation", "evaluation", "service/protocol")


class CacheNotWritable(UserWarning):
    """A warning that compiled code could not be written to disk."""


@cache
def _warn_once() -> None:
    message = "compiled code cannot be cached: every process compiles again, for some seconds"
    remedy = "set NUMBA_CACHE_DIR to a writable folder"
    warnings.warn(f"{message}; {remedy}", CacheNotWritable, stacklevel=2)


@cache
def digest_sources() -> str:
    """Compute a digest of all sources with compiled code: their functions are inlined into one another."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in COMPILED:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _make_folder(kind: Any, *, is_read_only: bool = False) -> Any:
    """Make a kind of folder with a stamp of all sources: numba's own covers only the file of the function itself.

    A folder that ``is_read_only`` need not be writable, as in a container image.
    """

    class Folder(kind):  # type: ignore[misc]
        def get_source_stamp(self) -> Any:
            return super().get_source_stamp(), digest_sources()

        def ensure_cache_path(self) -> None:
            """Raise an OSError if the folder cannot be used."""
            if is_read_only:
                os.scandir(self.get_cache_path()).close()
            else:
                super().ensure_cache_path()

    return Folder


FOLDERS: list[Any] = [
    _make_folder(UserProvidedCacheLocator),  # of NUMBA_CACHE_DIR
    _make_folder(UserProvidedCacheLocator, is_read_only=True),
    _make_folder(InTreeCacheLocator),  # of the sources
    _make_folder(UserWideCacheLocator),
    _make_folder(InTreeCacheLocator, is_read_only=True),
]


class CodeCacheFiles(CompileResultCacheImpl):
    """The cache files of a function, in the first folder that exists."""

    _locator_classes = FOLDERS


class CodeCache(FunctionCache):
    """The compiled code of a function on disk. Damaged files or a full disk cause recompilation, not errors."""

    _impl_class = CodeCacheFiles

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the code for argument types, or return None; damaged files are removed."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a truncated or overwritten pickle may raise anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code for argument types, or warn."""
        try:
            super().save_overload(sig, data)
        except OSError:
            _warn_once()


class NoCache(NullCache):
    """A cache without a folder: a write warns."""

    def save_overload(self, sig: Any, cres: Any) -> None:  # noqa: ARG002
        _warn_once()


def open_cache(function: Callable[..., Any]) -> CodeCache | NoCache:
    """Open the cache of a function, or a ``NoCache`` if there is no folder for it."""
    try:
        return CodeCache(function)
    except RuntimeError:  # numba's 'no locator available'
        return NoCache()


def find_code_folder() -> tuple[str | None, bool]:
    """Return the folder of compiled code or None, and whether it is writable."""
    opened = open_cache(open_cache)
    if isinstance(opened, NoCache):
        return None, False
    folder = str(opened.cache_path)
    return folder, os.access(folder, os.W_OK)


class _Announcement(event.Listener):
    """A listener that calls back once, when the first function is compiled."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def on_start(self, event: Any) -> None:  # noqa: ARG002
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def announce_compilation(callback: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` once if a function has to be compiled inside the block."""
    with event.install_listener("numba:compile", _Announcement(callback)):
        yield
