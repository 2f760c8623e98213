"""The engine's functions mean the same whether numba compiles them or Python interprets them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedcascade.federation.policies import POLICIES

from .interpreted import hash_runs

ROOT = Path(__file__).parents[2]
NAMES = list(POLICIES)


@pytest.mark.parametrize("policies", [NAMES[0::3], NAMES[1::3], NAMES[2::3]], ids=" ".join)
def test_the_exact_engine_leaves_the_same_trace_with_compilation_off(policies: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.simulation.interpreted", *policies],
        cwd=ROOT,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == dict(hash_runs(policies))
