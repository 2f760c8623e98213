"""A file appears whole or not at all, and is on the disk before anybody relies on it."""

import os
from pathlib import Path

import pytest

from fedcascade.platforms import write_atomically


def test_a_file_and_its_folder_reach_the_disk_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    path = tmp_path / "folder" / "file"
    write_atomically(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert synced == [path.stat().st_ino, path.parent.stat().st_ino]


def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
