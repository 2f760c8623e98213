"""Warm starts: a log is summed up, resumed and loaded to the bit, and halves the regret of the first rounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade import POLICIES, Policy, Synthetic, simulate
from fedcascade.data.logs import read_log
from fedcascade.evaluation.fit import fit_log
from fedcascade.evaluation.simulated import learn_from_random_lists
from fedcascade.federation.agent import Agent
from fedcascade.federation.server import Server
from fedcascade.federation.warm_start import sum_history, warm_server, warm_up
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import TopK
from fedcascade.saved import WarmState, save_warm

ROWS = [f"{user},{a} {b},{click},{x} 0 0 {x}" for user, a, b, click, x in
        [("ann", 1, 2, 0, 0.5), ("bob", 2, 1, "", 0.25), ("ann", 3, 1, 1, 0.125), ("eve", 1, 3, 0, 0.5)]]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("user,items,clicks,features\n" + "\n".join(ROWS) + "\n")
    return path


def test_an_interrupted_fit_goes_on_to_the_same_bits(log: Path) -> None:
    whole = fit_log(read_log(log), "fedind", log.with_name("whole.npz"))
    half = LogSums(2)
    opened = read_log(log)
    half.add(opened.read().select(slice(0, 2)), None)
    part = log.with_name("part.npz")
    save_warm(
        part, WarmState(sums=half, users=("ann", "bob"), policy="fedind", log=str(log), lists=2, is_complete=False)
    )
    resumed = fit_log(read_log(log), "fedind", part)
    assert resumed.users == whole.users
    assert (resumed.sums.gram[:3] == whole.sums.gram[:3]).all()
    assert (resumed.sums.counts[:3] == whole.sums.counts[:3]).all()


def test_agents_begin_with_what_the_log_taught(log: Path) -> None:
    sums = fit_log(read_log(log), "fedind", log.with_name("warm.npz")).sums
    problem = ProblemSize(users=3, dimension=2, list_length=2, rounds=10)
    for name in ("fedind", "population", "oful"):
        policy = POLICIES[name]
        server = Server(policy=policy, agents=3, dimension=2)
        agents = [Agent(id=user, policy=policy, problem=problem, oracle=TopK(length=2)) for user in range(3)]
        warm_up(server, agents, sums)
        cold = Agent(id=0, policy=policy, problem=problem, oracle=TopK(length=2))
        if agents[0].state.own is None:
            assert agents[0].state.decision.log_det > cold.state.decision.log_det
        else:  # a prior of few others may be wider than that of a cold start
            assert (agents[0].state.own_total.gram == sums[0].gram).all()
            assert agents[0].state.own_total.clicks == sums[0].clicks
    assert (warm_server(POLICIES["fedind"], sums)[0].holdings[1].gram == sums[1].gram).all()
    with pytest.raises(ValueError, match="personal part"):
        warm_server(POLICIES["async-linucb-am"], sums)


def test_the_history_of_its_user_is_an_agents_own_data(log: Path) -> None:
    history = read_log(log).read()
    problem = ProblemSize(users=3, dimension=2, list_length=2, rounds=10)
    policy = POLICIES["fedind"].with_constants(drift="restart")
    agent = Agent(id=0, policy=policy, problem=problem, oracle=TopK(length=2))
    seen = sum_history(history.select(history.users == 0), None, 2)
    agent.learn_before(seen)
    upload = agent.take_back(seen, least=1)
    assert upload is not None
    assert agent.state.own is not None
    assert (agent.state.own_total.gram == upload.statistics.gram).all()


def test_fifty_logged_rounds_halve_the_regret_of_the_first_thousand() -> None:
    ratios = []
    for seed in (11, 12):
        world = Synthetic(users=10, clusters=2, dimension=10, items=20, seed=seed)
        sums = learn_from_random_lists(world, 50)
        cold, warm = (simulate(world, POLICIES["population"], rounds=1_000, warm=start) for start in (None, sums))
        ratios.append(warm.regret / cold.regret)
    assert np.mean(ratios) <= 0.5


TEACHABLE = [row for row in POLICIES.values() if row.personal is None]
TEACHABLE += [POLICIES[name].with_constants(drift="restart") for name in ("population", "fedind")]


@pytest.mark.parametrize("policy", TEACHABLE, ids=lambda policy: f"{policy.name}-{policy.drift}")
def test_both_engines_start_warm_to_the_bit(policy: Policy) -> None:
    world = Synthetic(users=6, clusters=2, dimension=4, items=8, seed=3)
    sums = learn_from_random_lists(world, 20, list_length=2)
    options: dict[str, Any] = {"rounds": 120, "oracle": TopK(length=2), "keep_lists": True, "warm": sums}
    exact = simulate(world, policy, **options)
    reference = simulate(world, policy, **options, engine="reference")
    assert replace(exact, engine="reference") == reference
    assert np.array_equal(exact.lists, reference.lists)  # type: ignore[arg-type]


def test_a_log_that_does_not_fit_is_refused_by_both_engines() -> None:
    world, sums = Synthetic(users=3, clusters=2, dimension=4, items=8), LogSums(4)
    for engine in ("exact", "reference"):
        for policy, warm, words in (
            ("async-linucb-am", sums, "personal part"),
            ("fedind", LogSums(5), "dimension 5"),
        ):
            with pytest.raises(ValueError, match=words):
                simulate(world, POLICIES[policy], rounds=10, warm=warm, engine=engine)
