"""The CUDA engine without a GPU: its kernels in numba's simulator, its arithmetic and decisions on the host."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedcascade.cli import main
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.confidence import Oful
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.cuda import device
from fedcascade.simulation.cuda import engine as cuda
from fedcascade.simulation.cuda.items import draw_item, make_tie_key
from fedcascade.simulation.cuda.runs import Run, lucky
from fedcascade.simulation.exact import kernels
from fedcascade.simulation.scenario import Scenario

SIMULATED = """
import sys
from dataclasses import replace
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.cuda import engine as cuda
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.scenario import Scenario

cuda.THREADS = cuda.THREADS_ANEW = 64
cuda.ROUNDS_PER_LAUNCH = 4
d, items, features, length, rounds = {shape}
world = Synthetic(users=3, clusters=2, dimension=d, items=items, features=features, directions="random", seed=5)
names = {names}
cases = [Scenario(world, POLICIES[name], rounds, TopK(length=length), 3, True) for name in names]
for number, trace in cuda.simulate_all(cases):
    other = exact.simulate(cases[number], threads=1)
    assert replace(trace, engine="", seconds=0.0) == replace(other, engine="", seconds=0.0), names[number]
    assert (trace.lists == other.lists).all(), names[number]
print("equal")
"""


def simulated(names: list[str], shape: tuple[object, ...]) -> str:
    """What a run in the simulator prints; it must be chosen before numba is imported, so in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED.format(names=names, shape=shape)],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        (["fedc3ucb-h", "force-comm", "fedlinucb"], (5, (6, 13), "lifted", 3, 12)),
        (["no-auxiliary", "fedind", "fedc3ucb-e"], (4, 40, "gaussian", 2, 6)),  # more candidates than lanes
    ],
)
def test_the_kernels_leave_the_same_trace_in_the_simulator(names, shape):
    assert simulated(names, shape).endswith("equal\n")


@pytest.mark.parametrize(("d", "lifted"), [(2, True), (5, False), (20, True), (21, True), (64, False)])
def test_an_item_drawn_alone_has_the_bits_of_one_drawn_among_others(d, lifted):
    features = "lifted" if lifted else "gaussian"
    among = Synthetic(users=1, clusters=1, dimension=d, items=50, features=features, seed=7).items(3)
    alone = np.empty((d, 1), np.float32)
    for item in range(50):
        draw_item(np.uint64(7), 3, item, lifted, alone)
        np.testing.assert_array_equal(alone[:, 0].view(np.uint32), among[item].copy().view(np.uint32))


def test_ties_go_by_the_larger_word_and_then_by_the_lower_index():
    keys = [make_tie_key(np.uint32(tie), item) for tie, item in [(0, 1), (0, 0), (1, 9), (2**32 - 1, 3)]]
    assert keys == sorted(keys)


def test_lucky_rounds_are_those_in_which_the_trigger_fires():
    world = Synthetic(users=2, clusters=1, dimension=3, items=5, seed=3)
    case = Scenario(world, POLICIES["fedc3ucb-h"], 400, TopK(length=2))
    run = Run(case, _Now())
    fleet, rules = run.desk.states, run.desk.compiled_policy
    fleet.numbers[:, kernels.SQUARED_WIDTHS] = -np.inf  # the determinant is not looked at
    rounds = np.arange(1, 401)
    fired = [
        t
        for t in rounds.tolist()
        if kernels.find_trigger_of(world.seed, rules, fleet, 0, run.scratch, t) == kernels.AUXILIARY
    ]
    assert rounds[lucky(world.seed, 3.0, rounds)].tolist() == fired
    assert 10 < len(fired) < 200


def test_an_agent_is_silent_for_as_long_as_no_items_can_teach_it_enough():
    rng = np.random.default_rng(1)
    world = Synthetic(users=2, clusters=1, dimension=6, items=9, seed=3)
    run = Run(Scenario(world, POLICIES["no-auxiliary"], 100, TopK(length=3)), _Now())
    run.queue.append((1, 1, kernels.DETERMINANT))
    data = rng.standard_normal((400, 6)) * [5, 3, 1, 1, 1, 0.2]
    ridge = Ridge(Statistics(data.T @ data, np.zeros(6), 400, 0, 400), 4.0)
    run.desk.load_ridge(0, ridge)
    silent = run._silent(0)
    worst = np.linalg.eigh(data.T @ data)[1][:, 0]  # the direction of which least is known
    buffer = Statistics(3 * silent * np.outer(worst, worst), np.zeros(6), 0, 0, 0)
    assert silent > 0
    assert ridge.growth(buffer) < run.level


def test_parts_that_the_device_does_not_know_are_named():
    world, oracle = Synthetic(users=2, clusters=1, dimension=3, items=5), TopK(length=2)
    narrow = replace(POLICIES["fedind"], confidence=Oful())
    assert cuda.find_unsupported(Scenario(world, POLICIES["fedc3ucb-h"], 10, oracle)) is None
    assert cuda.find_unsupported(Scenario(world, POLICIES["dislinucb"], 10, oracle)) == "reply rule Everybody"
    drifting = Synthetic(users=4, clusters=2, dimension=6, items=9, drift=5)
    assert (
        cuda.find_unsupported(Scenario(drifting, POLICIES["fedind"], 10, oracle))
        == "environment whose users drift apart"
    )
    assert cuda.find_unsupported(Scenario(world, narrow, 10, oracle)) == "confidence Oful in every round"


def test_runs_that_decide_anew_come_last_and_together():
    world, oracle = Synthetic(users=2, clusters=1, dimension=3, items=5), TopK(length=2)
    cases = [Scenario(world, POLICIES[name], 10, oracle) for name in ["fedind", "fedlinucb", "fedc3ucb-h", "fedind"]]
    assert cuda.shares(cases, 2) == [[[1], [2]], [[0, 3]]]
    assert cuda.shares(cases[1:3], 8) == [[[0], [1]]]
    assert cuda.shares(cases[:1], 1) == [[[0]]]


@pytest.mark.skipif(device.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["run", "--rounds", "10"], ["reproduce", "--quick"]])
def test_without_a_gpu_one_line_says_what_to_install(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([*command, "--engine", "cuda"])
    assert end.value.code == 2
    assert "pip install 'fedcascade[gpu]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class _Now:
    """An executor that does it at once."""

    def submit(self, function, *arguments):
        return _Done(function(*arguments))


class _Done:
    def __init__(self, value):
        self.result = lambda: value
