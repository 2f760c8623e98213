"""Install a wheel into a bare environment of every Python on this machine, and use it from an empty folder.

Usage: python tools/try_wheel.py dist/fedcascade-*.whl

Each environment gets what locks/demo.txt lists, checked against its hashes, and the wheel; nothing from the checkout.
It prints one line per Python: seconds for the installation, and for the first and the second simulation.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PLAY = ["run", "--users", "12", "--clusters", "3", "--dimension", "6", "--items", "20", "--rounds", "2000",
        "--policy", "fedc3ucb-h", "--json"]  # fmt: skip
ASSETS = (
    "from importlib.resources import files; "
    "print((files('fedcascade') / 'service' / 'agent' / 'assets' / 'index.js').is_file())"
)


def find_pythons() -> dict[str, str]:
    """Find the supported Pythons of this machine by version, on the path or in pyenv."""
    found = {}
    for version in VERSIONS:
        managed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        for candidate in (*map(str, managed), shutil.which(f"python{version}"), sys.executable):
            if candidate and version not in found and ask_version(candidate) == version:
                found[version] = candidate
    return found


def ask_version(python: str) -> str | None:
    """Return the version of an interpreter, or None if it does not start."""
    try:
        asked = subprocess.run([python, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    named = re.search(r"(\d+\.\d+)\.", asked)
    return named[1] if named else None


def try_wheel(wheel: Path, python: str) -> str:
    """Install and use the wheel, and return a line of measurements; raise CalledProcessError on failure."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        folder = Path(name)
        environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "NUMBA_CACHE_DIR"}}

        def run(*command: str) -> tuple[str, float]:
            started = time.monotonic()
            done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
            return done.stdout, time.monotonic() - started

        run(python, "-m", "venv", "bare")
        own, pip = str(folder / "bare/bin/python"), ("-m", "pip", "install", "--quiet", "--no-deps")
        _, locked = run(own, *pip, "--require-hashes", "--requirement", str(ROOT / "locks/demo.txt"))
        _, itself = run(own, *pip, str(wheel.resolve()))
        version, _ = run(own, "-m", "fedcascade", "--version")
        run(own, "-m", "fedcascade", "doctor")
        assert run(own, "-c", ASSETS)[0].strip() == "True", "the agent in JavaScript is not in the wheel"
        first, cold = run(own, "-m", "fedcascade", *PLAY)
        again, warm = run(own, "-m", "fedcascade", *PLAY)
        regrets = [re.findall(r'"regret": ([\d.]+)', text)[0] for text in (first, again)]
        assert regrets[0] == regrets[1], f"two equal runs differ: {regrets}"
        return f"{version.strip()}: installed in {locked + itself:.0f} s, first run {cold:.0f} s, second {warm:.1f} s"


def main() -> None:
    """Try the wheel on every Python; exit with 1 if it fails on one."""
    [wheel] = map(Path, sys.argv[1:])
    pythons, failed = find_pythons(), False
    for version in VERSIONS:
        if version not in pythons:
            print(f"Python {version}: not on this machine, NOT RUN")
            continue
        try:
            print(f"Python {version}: {try_wheel(wheel, pythons[version])}", flush=True)
        except (subprocess.CalledProcessError, AssertionError) as error:
            failed = True
            print(f"Python {version}: FAILED: {error}\n{getattr(error, 'stderr', '')}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
