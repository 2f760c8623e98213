"""`fedcascade experiment --engine cuda` from the command to the results, with the kernels in numba's simulator."""

import json
import os
import subprocess
import sys
from pathlib import Path

from fedcascade.experiments.jobs import list_planned_jobs, run_job
from fedcascade.experiments.plan_reader import read_plan
from fedcascade.experiments.results import read_results

# Agents of fedind decide anew in every round: their runs come last, in a phase of their own.
TINY = """\
name = "tiny"
rounds = 3
checkpoints = 1
list_length = 2
seeds = 1

[[environments]]
name = "two users"
kind = "synthetic"
users = 2
clusters = 2
dimension = 4
items = 5

[[policies]]
name = ["fedc3ucb-h", "fedind"]
"""


def test_an_experiment_on_the_gpu_ends_with_the_records_of_the_exact_engine(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    command = ["experiment", "tiny.toml", "--engine", "cuda", "--jobs", "1", "--json"]
    process = subprocess.run(
        [sys.executable, "-m", "fedcascade", *command],
        cwd=tmp_path,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},  # to be chosen before numba is imported
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    records = [json.loads(line) for line in process.stdout.splitlines()]
    assert [record["engine"] for record in records] == ["cuda", "cuda"]
    differing = {"engine", "seconds"}
    for planned, record in zip(list_planned_jobs([read_plan(TINY)]), records, strict=True):
        expected = run_job(planned.job)
        assert {name: record[name] for name in expected if name not in differing} == {
            name: value for name, value in json.loads(json.dumps(expected)).items() if name not in differing
        }
    assert len(read_results(tmp_path / "results" / "tiny").runs) == 2
