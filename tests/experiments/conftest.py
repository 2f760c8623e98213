"""A plan that is small enough to run in a test, and its results, made once."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedcascade.experiments.plan import Plan
from fedcascade.experiments.plan_reader import read_plan
from fedcascade.experiments.results import Results, read_results
from fedcascade.experiments.runner import execute, make_local_scheduler

SMALL = """\
name = "small"
title = "A small world"
rounds = 6_000
checkpoints = 12
seeds = 2

[[environments]]
name = "J = 3"
kind = "synthetic"
users = 12
clusters = 3
dimension = 6
items = 20

[[policies]]
name = ["fedc3ucb-h", "fedlinucb", "fedind"]
constants = { beta = 5.0, alpha_d = 1.5 }
"""


def resize_plan(plan: Plan, *, rounds: int | None = None, seeds: Sequence[int] | None = None) -> Plan:
    """Return the plan with other rounds or seeds, in every environment."""
    length = plan.rounds if rounds is None else rounds
    replaced = {"rounds": None, "checkpoints": None} if rounds is not None else {}
    replaced |= {"seeds": None} if seeds is not None else {}
    return replace(
        plan,
        environments=tuple(replace(each, **replaced) for each in plan.environments),
        rounds=length,
        checkpoints=min(plan.checkpoints, length),
        seeds=plan.seeds if seeds is None else tuple(seeds),
    )


@pytest.fixture(scope="session")
def small_plan() -> Plan:
    return read_plan(SMALL)


@pytest.fixture(scope="session")
def small_folder(small_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    execute([small_plan], folder, make_local_scheduler(workers=2), lambda _: None)
    return folder


@pytest.fixture
def small_results(small_folder: Path) -> Results:
    return read_results(small_folder)
