"""The npm package: it agrees with the Python agent, its types hold, and it contains what it should."""

import json
import re
import shutil
import subprocess

import pytest

from .conftest import PACKAGE, RunNode


def test_the_agent_in_javascript_agrees_with_every_vector_in_node(run_node: RunNode) -> None:
    printed = run_node("--test", "test/").stdout
    assert sum(map(int, re.findall(r": (\d+) cases", printed))) >= 500


def test_types_hold(node: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    if not (PACKAGE / "node_modules" / "typescript").exists():
        installed = subprocess.run([npm, "ci", "--ignore-scripts"], cwd=PACKAGE, capture_output=True, timeout=120)
        if installed.returncode != 0:
            pytest.skip("npm cannot install TypeScript here")
    tsc = PACKAGE / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run([node, str(tsc), "--noEmit"], cwd=PACKAGE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_lock_file_has_versions_and_hashes_and_no_address() -> None:
    text = (PACKAGE / "package-lock.json").read_text(encoding="utf-8")
    assert "://" not in text
    packages = [package for name, package in json.loads(text)["packages"].items() if name]
    assert packages
    assert all({"version", "integrity"} <= package.keys() for package in packages)
