"""Find faults in .github/workflows that a schema misses: names that do not exist in this repository.

Usage: python tools/check_workflows.py. It prints one line per fault, and exits with 1 if there is one.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from run_workflows import EXPRESSION, ROOT, read_workflows

CONTEXTS = {"github", "matrix", "vars", "secrets", "steps", "needs", "env", "runner"}
PERMISSIONS = {"contents", "id-token", "attestations", "packages", "pages"}
USES = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+)?@(v\d+(\.\d+)*|release/v\d+|[0-9a-f]{40})")
KEYS = {"name", "id", "if", "uses", "with", "run", "env", "shell", "working-directory"}
SCRIPT = re.compile(r"python ((?:tools|tests|benchmarks)/\S+)|--requirement (\S+)")


def find_faults(workflow: Mapping[str, Any], root: Path = ROOT) -> Iterator[str]:
    """Yield the faults of a workflow."""
    if not workflow.get("name") or not workflow.get("on"):
        yield "has no name, or nothing that starts it"
    if workflow.get("permissions") != {"contents": "read"}:
        yield "may do more than read: give permissions to the job that needs them"
    for name, job in workflow["jobs"].items():
        yield from (f"{name}: {fault}" for fault in find_job_faults(job, workflow["jobs"], root))


def find_job_faults(job: Mapping[str, Any], jobs: Mapping[str, Any], root: Path) -> Iterator[str]:
    """Yield the faults of a job."""
    if "timeout-minutes" not in job:
        yield "may run for six hours: give timeout-minutes"
    unknown = set(job.get("permissions", {})) - PERMISSIONS
    if unknown:
        yield f"asks for permissions that do not exist: {sorted(unknown)}"
    needs = job.get("needs", [])
    for needed in [needs] if isinstance(needs, str) else needs:
        if needed not in jobs:
            yield f"needs '{needed}', which is no job"
    axes = job.get("strategy", {}).get("matrix", {})
    for expression in EXPRESSION.findall(str(job)):
        context, _, rest = expression.partition(".")
        if context not in CONTEXTS or (context == "matrix" and rest not in axes):
            yield f"'{expression}' names nothing"
    for number, step in enumerate(job["steps"], 1):
        yield from (f"step {number}: {fault}" for fault in find_step_faults(step, root))


def find_step_faults(step: Mapping[str, Any], root: Path) -> Iterator[str]:
    """Yield the faults of a step."""
    if set(step) - KEYS:
        yield f"has unknown keys: {sorted(set(step) - KEYS)}"
    if ("uses" in step) == ("run" in step):
        yield "must have either uses or run"
    elif "uses" in step and not USES.fullmatch(step["uses"]):
        yield f"'{step['uses']}' names no version"
    command = step.get("run", "")
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE))
    for target in re.findall(r"^make ([\w-]+)", command, re.MULTILINE):
        if target not in targets:
            yield f"'make {target}' has no rule"
    for named in SCRIPT.findall(command):
        if not (root / "".join(named)).exists():
            yield f"'{''.join(named)}' is not there"


def main() -> None:
    """Print all faults."""
    faults = [f"{file}.yml: {fault}" for file, workflow in read_workflows().items() for fault in find_faults(workflow)]
    print(*faults, f"{len(faults)} faults in {len(read_workflows())} workflows", sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
