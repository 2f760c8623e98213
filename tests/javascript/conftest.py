"""Node, npm and the conformance vectors, for tests of the agent in JavaScript. They skip where Node is missing."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from vectors.__main__ import write_vectors

from ..service.conftest import browser_page

__all__ = ["browser_page"]  # a fixture

PACKAGE = Path(__file__).parents[2] / "packages" / "agent"
LEAST_NODE = 20

RunNode = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    assert sum(write_vectors(folder, seed=1).values()) >= 500
    return folder


@pytest.fixture(scope="session")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is not installed")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").partition(".")[0]) < LEAST_NODE:
        pytest.skip(f"Node {LEAST_NODE} or newer is needed, this is {version.strip()}")
    return found


@pytest.fixture(scope="session")
def run_node(node: str, vectors: Path) -> RunNode:
    """Runs Node in the package's folder; what it prints is shown if it fails."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"FEDCASCADE_VECTORS": str(vectors), "NODE_NO_WARNINGS": "1"}
        done = subprocess.run([node, *arguments], cwd=PACKAGE, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
