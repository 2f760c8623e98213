"""The CUDA engine without a GPU: its kernels in numba's simulator, and what users without a device are told."""

import os
import subprocess
import sys

import numpy as np
import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.scenario import Scenario
from fedcascade_cuda import device, engine
from fedcascade_cuda.engine import split_scenarios

SIMULATED = """
from dataclasses import replace
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade_cuda import batches, engine, items
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.scenario import Scenario

batches.ROUNDS_PER_LAUNCH = 4
d, shelf, features, length, rounds, items.UNROLLED = {shape}
world = Synthetic(users=3, clusters=2, dimension=d, items=shelf, features=features, directions="random", seed=5)
names = {names}
scenarios = [Scenario(world, POLICIES[name], rounds, TopK(length=length), 3, True) for name in names]
for number, trace in engine.simulate_all(scenarios):
    expected = exact.simulate(scenarios[number], threads=1)
    assert replace(trace, engine="", seconds=0.0) == replace(expected, engine="", seconds=0.0), names[number]
    assert (trace.lists == expected.lists).all(), names[number]
print("equal")
"""


def run_simulator(names: list[str], shape: tuple[object, ...]) -> str:
    """Compare runs in a process of their own, because the simulator must be chosen before numba is imported."""
    process = subprocess.run(
        [sys.executable, "-c", SIMULATED.format(names=names, shape=shape)],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return process.stdout + process.stderr


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        (["fedc3ucb-h", "force-comm", "fedlinucb"], (5, (6, 13), "lifted", 3, 12, 32)),
        # More candidates than lanes, and features that stay in an array.
        (["no-auxiliary", "fedind", "known-clusters"], (4, 40, "gaussian", 2, 6, 0)),
    ],
)
def test_the_kernels_leave_the_same_trace_in_the_simulator(names: list[str], shape: tuple[object, ...]) -> None:
    assert run_simulator(names, shape).endswith("equal\n")


def test_a_policy_with_trust_runs_on_the_processor_after_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "check_device", lambda: None)
    monkeypatch.setattr(engine, "simulate_all", lambda scenarios, _: iter(enumerate(scenarios)))  # there must be none
    world = Synthetic(users=3, clusters=2, dimension=4, items=8)
    words = "^the cuda engine does not support the part Trust of population: using the processor$"
    with pytest.warns(UserWarning, match=words):
        trace = simulate(world, POLICIES["population"], rounds=40, engine="cuda")
    assert trace.engine == "exact"


def test_runs_that_decide_anew_come_last_and_together() -> None:
    world, oracle = Synthetic(users=2, clusters=1, dimension=3, items=5), TopK(length=2)
    names = ["fedind", "fedlinucb", "fedc3ucb-h", "fedind"]
    scenarios = [Scenario(world, POLICIES[name], 10, oracle) for name in names]
    assert split_scenarios(scenarios, 2) == [[[1], [2]], [[0, 3]]]
    assert split_scenarios(scenarios[1:3], 8) == [[[0], [1]]]
    assert split_scenarios(scenarios[:1], 1) == [[[0]]]


def test_numpy_has_its_dropped_alias_back_only_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(np, "row_stack", raising=False)
    with device.forbid_contraction():
        assert vars(np)["row_stack"] is np.vstack
    assert "row_stack" not in vars(np)
