"""Time the first commands of the README in a fresh clone and a fresh environment.

Usage: python tools/time_first_minute.py [--extra server]

Clones the last commit, makes a virtual environment, installs the checkout into it, runs the README's first Python block
and its first command from an empty folder, and prints how long each took by the clock and on the processor. Packages
come from wherever pip is set up to take them, so that downloads count in the second line.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_BLOCK = re.compile(r"```python\n(.+?)```", re.DOTALL)
COMMAND = re.compile(r"`fedcascade (run)`")


def read_readme(text: str) -> tuple[str, list[str]]:
    """Read the first Python block of a README, and the arguments of the command that it names."""
    block, command = PYTHON_BLOCK.search(text), COMMAND.search(text)
    if block is None or command is None:
        raise ValueError("the README must have a Python block and name the command `fedcascade run`")
    return block[1], command[1].split()


def measure(what: str, command: list[str], folder: Path) -> float:
    """Run a command, print its duration, and return the seconds."""
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "NUMBA_CACHE_DIR"}}
    before, started = os.times(), time.monotonic()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.monotonic() - started, os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{what:<44}{seconds:6.1f} s by the clock{processor:6.1f} s on the processor", flush=True)
    return seconds


def main() -> None:
    """Time every step and print the sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", default="", help="such as service; none by default")
    extra = parser.parse_args().extra
    with tempfile.TemporaryDirectory(prefix="first-minute-") as name:
        clone, empty, environment = (Path(name) / part for part in ("clone", "empty", "environment"))
        empty.mkdir()
        python, what = str(environment / "bin" / "python"), f".[{extra}]" if extra else "."
        seconds = measure("git clone", ["git", "clone", "--quiet", str(ROOT), str(clone)], empty)
        block, arguments = read_readme((clone / "README.md").read_text("utf-8"))
        seconds += measure("python -m venv", [sys.executable, "-m", "venv", str(environment)], empty)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what]
        seconds += measure(f"pip install {what}", install, clone)
        seconds += measure("ten lines of Python (compiles)", [python, "-c", block], empty)
        command = [python, "-m", "fedcascade", *arguments]
        seconds += measure(f"fedcascade {' '.join(arguments)} (compiles)", command, empty)
        measure(f"fedcascade {' '.join(arguments)}, once more", command, empty)
    print(f"from nothing to the first table: {seconds:.0f} s")


if __name__ == "__main__":
    main()
