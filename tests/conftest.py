"""What all tests share: a cache of compiled code, which processes that tests start inherit, and a browser."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LONG_TIMEOUT = 3600  # seconds that a test marked long may take, unless it says otherwise

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-background-networking"]


os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".cache" / "numba"))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For processes that tests start, and not for the tests themselves, which compare with scipy.
collect_ignore = ["without_scipy"]
WITHOUT_SCIPY = str(ROOT / "tests" / "without_scipy")
sys.path[:] = [folder for folder in sys.path if folder != WITHOUT_SCIPY]
if WITHOUT_SCIPY not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [WITHOUT_SCIPY, os.environ.get("PYTHONPATH")]))


HAS_SIGNALS, HAS_PROC = hasattr(signal, "SIGSTOP"), Path("/proc/self").exists()
NEEDS = {  # what the tests of a file cannot do without, and whether it is here
    "service/agent/test_endings.py": ("forks", hasattr(os, "fork")),
    "service/agent/test_pool.py": ("/proc", HAS_PROC),
    "service/agent/test_remote.py": ("the signals of POSIX", HAS_SIGNALS),
    "service/server/test_verifier.py": ("the signals of POSIX", HAS_SIGNALS),
    "service/test_chaos.py": ("forks and /proc", HAS_PROC),
    "service/test_patroni.py": ("/proc", HAS_PROC),
    "experiments/test_runner.py": ("the signals of POSIX", HAS_SIGNALS),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than cores: tests of servers often wait for something, and a core would be idle meanwhile."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lines = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()
    slow = tuple(line for line in lines if line and not line.startswith("#"))
    for item in items:
        if item.nodeid.startswith(slow):
            item.add_marker(pytest.mark.slow)
        what, is_here = NEEDS.get(item.nodeid.partition("::")[0].removeprefix("tests/"), ("", True))
        if not is_here:
            item.add_marker(pytest.mark.skip(reason=f"this system lacks {what}"))
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright. Tests that need one skip where either is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()
