"""The workflows are without faults that can be found here; planted ones are found; their commands can be listed."""

import copy
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from check_workflows import find_faults
from run_workflows import ROOT, find_python, list_jobs, read_workflows

WORKFLOWS = read_workflows()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_have_no_faults(name: str) -> None:
    assert list(find_faults(WORKFLOWS[name])) == []


def plant(change: Callable[[dict[str, Any]], object]) -> list[str]:
    workflow = copy.deepcopy(WORKFLOWS["tests"])
    change(workflow)
    return list(find_faults(workflow))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda flow: flow.update(permissions="write-all"), "may do more than read"),
        (lambda flow: flow["jobs"]["check"].pop("timeout-minutes"), "check: may run for six hours"),
        (lambda flow: flow["jobs"]["check"].update(needs="nobody"), "check: needs 'nobody', which is no job"),
        (lambda flow: flow["jobs"]["check"].update(permissions={"id_token": "write"}), "permissions that do not exist"),
        (lambda flow: flow["jobs"]["check"]["steps"].append({"run": "make nothing"}), "'make nothing' has no rule"),
        (lambda flow: flow["jobs"]["check"]["steps"].append({"uses": "actions/cache"}), "names no version"),
        (lambda flow: flow["jobs"]["check"]["steps"].append({"name": "empty"}), "must have either uses or run"),
        (lambda flow: flow["jobs"]["check"]["steps"].append({"run": "x", "whith": {}}), "unknown keys"),
        (
            lambda flow: flow["jobs"]["test"].update({"runs-on": "${{ matrix.system }}"}),
            "'matrix.system' names nothing",
        ),
        (lambda flow: flow["jobs"]["check"]["steps"].append({"run": "python tools/gone.py"}), "is not there"),
    ],
)
def test_a_planted_fault_is_found(change: Callable[[dict[str, Any]], object], fault: str) -> None:
    [found] = plant(change)
    assert fault in found


def test_every_supported_python_is_tested_on_three_systems() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    supported = re.findall(r"Python :: (3\.\d+)", " ".join(classifiers))
    matrix = WORKFLOWS["tests"]["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == supported
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_releases_use_no_stored_password_and_carry_attestations() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert "secrets." not in str(jobs)
    for name in ("pypi", "npm", "container"):
        assert jobs[name]["permissions"]["id-token"] == "write"
        assert "build" in jobs[name]["needs"]
        assert jobs[name]["environment"]


def test_linux_rows_are_run_here_with_the_python_that_they_name() -> None:
    jobs = [job for job in list_jobs(WORKFLOWS) if job.name == "tests/test"]
    assert [job.matrix["python"] for job in jobs] == ["3.11", "3.12", "3.13", "3.14"]
    assert [find_python(job, {"3.12": "/python3.12"}) for job in jobs] == [None, "/python3.12", None, None]
