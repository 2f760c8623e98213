"""The npm package: it agrees with the Python agent, its types hold, and it contains what it should."""

import json
import re
import shutil
import subprocess
from importlib.resources import files

import pytest
from vectors.arithmetic import SERVED

from fedcascade.federation.policies import POLICIES
from fedcascade.service.server.serve import ServerSettings

from .conftest import PACKAGE, RunNode


def test_the_agent_in_javascript_agrees_with_every_vector_in_node(run_node: RunNode) -> None:
    printed = run_node("--test", "test/").stdout
    assert sum(map(int, re.findall(r": (\d+) cases", printed))) >= 500


def test_there_are_vectors_of_every_policy_that_a_server_runs() -> None:
    served = set[str]()
    for name, policy in POLICIES.items():
        try:
            ServerSettings(store="sqlite://", policy=policy, dimension=20)
        except ValueError:
            continue
        served.add(name)
    assert served == set(SERVED)


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


def test_the_package_contains_modules_and_types_and_nothing_else(node: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    command = [npm, "pack", "--dry-run", "--json", "--ignore-scripts"]
    packed = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, check=True).stdout
    [content] = json.loads(packed)
    names = {file["path"] for file in content["files"]}
    modules = {f"src/{path.name}" for path in (PACKAGE / "src").glob("*.js")}
    assert {name for name in names if not name.startswith("types/")} == {"README.md", "package.json"} | modules
    assert content["unpackedSize"] < 300_000


def test_the_wheel_has_the_modules() -> None:
    assets = files("fedcascade.service.agent") / "assets"
    assert (assets / "index.js").read_bytes() == (PACKAGE / "src" / "index.js").read_bytes()


def test_the_lock_file_has_versions_and_hashes_and_no_address() -> None:
    text = (PACKAGE / "package-lock.json").read_text(encoding="utf-8")
    assert "://" not in text
    packages = [package for name, package in json.loads(text)["packages"].items() if name]
    assert packages
    assert all({"version", "integrity"} <= package.keys() for package in packages)
