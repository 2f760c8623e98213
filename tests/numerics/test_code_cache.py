"""Compiled code is kept where that is possible, and compiled anew where it is not."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedcascade
from fedcascade.numerics import code_cache
from fedcascade.numerics.code_cache import announce_compilation
from fedcascade.numerics.jit import jit

PROGRAM = (
    "import numpy as np; from fedcascade.numerics import linear; print(linear.solve_factor_into(np.eye(3), np.ones(3)))"
)


@pytest.fixture
def package() -> Iterator[Path]:
    """A folder with a copy of the package, without compiled code."""
    folder = Path(tempfile.mkdtemp())
    ignored = shutil.ignore_patterns("__pycache__", "assets")
    try:
        shutil.copytree(Path(fedcascade.__file__).parent, folder / "fedcascade", ignore=ignored, symlinks=True)
        yield folder
    finally:
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)
        shutil.rmtree(folder)


def run_without_rights(package: Path, cache: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run the program as somebody who may not write where file permissions forbid it, which root may."""
    subprocess.run(["chmod", "-R", "a-w", package], check=True)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package), "HOME": "/nonexistent/home"}
    environment |= {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-W", "always", "-c", PROGRAM]
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root needs setpriv to give up its rights")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
        environment["HOME"] = str(package)
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.skipif(os.name != "posix", reason="needs users who may not write")
def test_without_a_folder_that_can_be_written_code_is_compiled_with_one_warning(package: Path) -> None:
    """Before, numba's 'no locator available' ended every command."""
    result = run_without_rights(package)
    assert (result.stdout, result.returncode) == ("3.0\n", 0), result.stderr
    assert result.stderr.count("CacheNotWritable: compiled code cannot be cached") == 1
    assert "set NUMBA_CACHE_DIR" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs users who may not write")
def test_code_in_a_folder_that_can_only_be_read_is_used(package: Path) -> None:
    """As in a container whose image was built with compiled code."""
    cache = package / "cache"
    environment = os.environ | {"PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd="/", check=True, capture_output=True)
    result = run_without_rights(package, cache)
    assert (result.stdout, result.stderr, result.returncode) == ("3.0\n", "", 0)


def add_one(x: float) -> float:
    return x + 1


def test_damaged_files_cost_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    assert jit(add_one)(1) == 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:10])
    assert jit(add_one)(1) == 2


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", refuse)
    code_cache._warn_once.cache_clear()
    with pytest.warns(code_cache.CacheNotWritable, match="compiles again"):
        assert jit(add_one)(1) == 2


def test_compilation_is_announced_once_and_loading_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    said: list[str] = []
    with announce_compilation(lambda: said.append("compiling")):
        first = jit(add_one)
        assert (first(1), first(1.5), first(True)) == (2, 2.5, 2)
    assert said == ["compiling"]
    with announce_compilation(lambda: said.append("compiling")):
        jit(add_one)(1)
    assert said == ["compiling"]


def test_code_is_compiled_anew_when_what_it_calls_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba looks at the file of the function alone: what it calls elsewhere was inlined as it had been."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    jit(add_one)(1)
    monkeypatch.setattr(code_cache, "digest_sources", lambda: "of another version")
    said: list[str] = []
    with announce_compilation(lambda: said.append("compiling")):
        jit(add_one)(1)
    assert said == ["compiling"]


def test_the_digest_covers_every_module_with_compiled_code() -> None:
    root = Path(code_cache.__file__).parents[1]
    covered = {path for folder in code_cache.COMPILED for path in (root / folder).rglob("*.py")}
    users = {path for path in root.rglob("*.py") if "numerics.jit import" in path.read_text()}
    assert len(users) > 30
    assert users <= covered
