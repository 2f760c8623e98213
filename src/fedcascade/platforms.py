"""Functions that differ between Linux, macOS and Windows: sync files, count memory and cores."""

import ctypes
import importlib
import os
from contextlib import suppress
from pathlib import Path


def sync_file(descriptor: int) -> None:
    """Force a file to the disk; on macOS also past the drive's cache, where fsync stops."""
    with suppress(ImportError, AttributeError, OSError):  # Windows; Linux; a file system without it
        fcntl = importlib.import_module("fcntl")
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        return
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Force the names of a folder's files to the disk; Windows needs no sync and refuses to open folders."""
    with suppress(PermissionError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_atomically(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Write a file completely or not at all, also after a power cut; only its owner can read a private one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as stream:
            draft.chmod(0o600 if is_private else draft.stat().st_mode)
            stream.write(content)
            stream.flush()
            sync_file(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def is_running(process: int) -> bool:
    """Return whether a process of this machine runs, or may run."""
    try:
        if os.name != "nt":  # where signal 0 ends a process
            os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_memory() -> int | None:
    """Return the machine's memory in bytes, or None if it is unknown."""
    if hasattr(os, "sysconf"):
        with suppress(ValueError, OSError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kernel = getattr(getattr(ctypes, "windll", None), "kernel32", None)
    kilobytes = ctypes.c_ulonglong(0)
    if kernel is not None and kernel.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes)):
        return kilobytes.value * 1024
    return None
