"""A disk that fills up or turns read-only: the server answers 503, keeps what it had, and recovers with the disk.

The disk is a small file system in memory, mounted in a namespace of its own, so that no rights are needed; where the
kernel does not allow that, the test is skipped.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.state import replay_log
from fedcascade.service.store.open import open_store

from ..helpers import ServerProcess, build_unit_upload

DIMENSION = 3


def may_mount() -> bool:
    try:
        tried = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
        )
    except FileNotFoundError:
        return False
    return tried.returncode == 0


pytestmark = pytest.mark.skipif(not may_mount(), reason="this kernel does not let us mount a disk in a namespace")


class Disk(ServerProcess):
    """A server in a namespace where its folder's ``disk`` is a file system of two megabytes."""

    def command(self) -> list[str]:
        script = 'mount -t tmpfs -o size=2m none disk && exec "$@"'
        return ["unshare", "-rm", "sh", "-c", script, "sh", *super().command()]

    def inside(self, *command: str) -> None:
        """Run a command where the server sees the disk."""
        assert self.process is not None
        enter = ["nsenter", "-t", str(self.process.pid), "-U", "-m", "--preserve-credentials"]
        subprocess.run([*enter, *command], check=True, capture_output=True, cwd=self.folder)


@pytest.fixture
def disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "disk").mkdir()
    process = Disk(tmp_path, "sqlite:///disk/store.db", dimension=DIMENSION).start()
    yield process
    process.stop()


def fill(agent, first: int, most: int) -> int:  # type: ignore[no-untyped-def]
    """Upload until the disk refuses; how many were acknowledged."""
    for sequence in range(first, first + most):
        try:
            agent.exchange(build_unit_upload(sequence, sequence % DIMENSION, DIMENSION))
        except Refused as refusal:
            if refusal.status != 503 or refusal.retry_after is None:
                raise
            return sequence - first
    return most


@pytest.mark.parametrize("ballast", [1_400, 1_404])  # what room is left over when an upload does not fit
def test_a_full_disk_and_a_read_only_disk_lose_nothing(disk: Disk, ballast: int) -> None:
    running = disk.connect()
    agent = running.enrol()
    folder = disk.folder / "disk"
    assert fill(agent, 1, 5) == 5

    disk.inside("dd", "if=/dev/zero", f"of={folder}/ballast", "bs=1024", f"count={ballast}")
    done = 5 + fill(agent, 6, 3_000)
    assert 5 <= done < 3_000
    assert running.transport.send("GET", "/readyz", b"", {}).status_code == 503
    assert running.transport.send("GET", "/healthz", b"", {}).status_code == 200

    disk.inside("mount", "-o", "remount,ro", str(folder))  # the server has let go of its files
    assert fill(agent, done + 1, 3) == 0
    assert running.transport.send("GET", "/readyz", b"", {}).status_code == 503
    disk.inside("mount", "-o", "remount,rw", str(folder))
    assert fill(agent, done + 1, 3) == 0

    disk.inside("rm", f"{folder}/ballast")
    assert fill(agent, done + 1, 10) == 10
    done += 10
    assert running.transport.send("GET", "/readyz", b"", {}).status_code == 200

    assert running.operator.fetch_overview().rounds == done
    assert agent.fetch_standing().uploads == done
    running.transport.close()
    disk.inside("cp", "-r", str(folder), str(disk.folder / "copy"))  # the copy lies outside of the small disk
    store = open_store(f"sqlite:///{disk.folder}/copy/store.db")
    state = replay_log(store, POLICIES["fedc3ucb-h"], DIMENSION)
    expected = np.bincount([sequence % DIMENSION for sequence in range(1, done + 1)], minlength=DIMENSION)
    assert np.diag(state.sum_statistics().gram).tolist() == expected.tolist()
    store.close()
