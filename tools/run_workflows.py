"""Run the commands of .github/workflows locally, each job in a fresh clone, and list the steps that cannot run.

Usage: python tools/run_workflows.py [workflow/job ...] [--python 3.12] [--list]

A job's steps with ``run`` are executed with bash, as Linux would. Of a matrix, the Linux rows run, with the Pythons
that this machine has. Steps with ``uses`` are other people's programs: a checkout is a clone of the last commit, a
set-up of Python puts that Python on the path, and all others are named and left out. Nothing is published: ``npm
publish`` gets --dry-run.
"""

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from try_wheel import find_pythons

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
STANDS_FOR = {
    "actions/checkout": "a clone",
    "actions/setup-python": "the Python that is here",
    "actions/setup-node": "node",
}


@dataclass(frozen=True)
class Job:
    """A job of a workflow, for one row of its matrix."""

    name: str
    steps: list[dict[str, Any]]
    folder: str
    matrix: Mapping[str, str]


def read_workflows(folder: Path = WORKFLOWS) -> dict[str, dict[str, Any]]:
    """Read all workflows by file name, with the key ``on``, which YAML reads as true."""
    found = {}
    for path in sorted(folder.glob("*.yml")):
        content = yaml.safe_load(path.read_text("utf-8"))
        content["on"] = content.pop(True, content.get("on"))
        found[path.stem] = content
    return found


def list_jobs(workflows: Mapping[str, Mapping[str, Any]]) -> Iterator[Job]:
    """List every job, once for each row of its matrix that runs on Linux."""
    for file, workflow in workflows.items():
        for name, job in workflow["jobs"].items():
            axes = job.get("strategy", {}).get("matrix", {})
            for values in itertools.product(*axes.values()):
                row = dict(zip(axes, values, strict=True))
                if "ubuntu" in substitute(job["runs-on"], row):
                    where = job.get("defaults", {}).get("run", {}).get("working-directory", ".")
                    yield Job(f"{file}/{name}", job["steps"], where, row)


def substitute(text: str, matrix: Mapping[str, str]) -> str:
    """Replace expressions by the values of a matrix; keep other expressions."""
    return EXPRESSION.sub(lambda hit: matrix.get(hit[1].removeprefix("matrix."), hit[0]), text)


def find_python(job: Job, pythons: Mapping[str, str]) -> str | None:
    """Return the interpreter of a job, the first one by default, or None if it is not installed."""
    for step in job.steps:
        wanted = step.get("with", {}).get("python-version")
        if wanted:
            return pythons.get(substitute(str(wanted), job.matrix))
    return next(iter(pythons.values()))


def run_job(job: Job, python: str) -> bool:
    """Run the commands of a job in a fresh clone, and return whether all succeed."""
    print(f"== {job.name} {dict(job.matrix) or ''}", flush=True)
    with tempfile.TemporaryDirectory(prefix="workflow-") as name:
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--local", str(ROOT), str(clone)], check=True)
        subprocess.run([python, "-m", "venv", f"{name}/python"], check=True)
        path = f"{name}/python/bin{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "CI": "true"}
        environment.pop("PYTHONPATH", None)
        return all(run_step(step, job, clone, environment) for step in job.steps)


def run_step(step: Mapping[str, Any], job: Job, clone: Path, environment: dict[str, str]) -> bool:
    """Run one step, or print its replacement."""
    if "uses" in step:
        instead = STANDS_FOR.get(step["uses"].partition("@")[0])
        print(f"   {step['uses']}: {instead or 'NOT RUN here'}", flush=True)
        return True
    command = substitute(step["run"], job.matrix)
    if command.startswith("npm publish"):
        command += " --dry-run --provenance=false"
    started = time.monotonic()
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=clone / job.folder, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    verdict = "ok" if done.returncode == 0 else f"FAILED with {done.returncode}"
    print(f"   $ {command.strip().splitlines()[0]}: {verdict}, {time.monotonic() - started:.0f} s", flush=True)
    if done.returncode:
        print(*done.stdout.splitlines()[-30:], sep="\n")
    return done.returncode == 0


def main() -> None:
    """Run the requested jobs, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", help="such as tests/check")
    parser.add_argument("--python", action="append", help="of a matrix, only these versions")
    parser.add_argument("--list", action="store_true", help="only name the jobs")
    asked = parser.parse_args()
    pythons = find_pythons()
    failed = 0
    for job in list_jobs(read_workflows()):
        python = find_python(job, pythons)
        is_asked = not asked.jobs or job.name in asked.jobs
        if not is_asked or (asked.python and job.matrix.get("python", asked.python[0]) not in asked.python):
            continue
        if asked.list or python is None:
            print(job.name, dict(job.matrix) or "", "" if python else "NOT RUN: no such Python here")
        elif shutil.which("bash"):
            failed += not run_job(job, python)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
