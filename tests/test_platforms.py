"""What other systems lack is simulated here by taking it away; a fallback takes its place."""

import ctypes
import os
from pathlib import Path

import pytest

from fedcascade import platforms
from fedcascade.federation.grouping.graph import complete
from fedcascade.platforms import write_atomically

fcntl = pytest.importorskip("fcntl", reason="this system is one of the others")


def test_the_memory_of_this_machine_is_known() -> None:
    memory = platforms.measure_memory()
    assert memory is not None
    assert memory > 1 << 28


def test_without_sysconf_nobody_says_how_much_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert platforms.measure_memory() is None
    complete.require_memory(10**9)  # what is not known forbids nothing


def test_windows_is_asked_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        def GetPhysicallyInstalledSystemMemory(self, kilobytes: object) -> int:  # noqa: N802 (the name that Windows has)
            kilobytes._obj.value = 1 << 20  # type: ignore[attr-defined]
            return 1

    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setattr(ctypes, "windll", type("Dlls", (), {"kernel32": Kernel()})(), raising=False)
    assert platforms.measure_memory() == 1 << 30


def test_a_folder_that_cannot_be_opened_keeps_its_names_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def open_no_folder(path: Path, flags: int, *more: int) -> int:
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied")  # as Windows says
        return really_open(path, flags, *more)

    monkeypatch.setattr(os, "open", open_no_folder)
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("works", [True, False])
def test_on_macos_a_file_is_forced_beyond_the_cache_of_the_drive(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def full_sync(descriptor: int, command: int) -> int:
        asked.append(command)
        if not works:
            raise OSError(45, "Operation not supported")
        return 0

    synced: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", synced.append)
    with (tmp_path / "file").open("wb") as file:
        platforms.sync_file(file.fileno())
    assert asked == [51]
    assert len(synced) == (0 if works else 1), "where the drive cannot, fsync does what it can"
