"""Agents in JavaScript over HTTP make the very exchanges, lists and regret of the simulator."""

from pathlib import Path

import numpy as np
import pytest

from fedcascade.demo.options import SwarmOptions
from fedcascade.demo.swarm import run_swarm
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.trace import Trace

from ..service.helpers import ServerProcess
from .node_agents import connect_in_node

CONSTANTS: dict[str, float | str] = {"alpha_d": 1.5, "beta": 5.0, "alpha_c": 1.0}


def play(
    tmp_path: Path, name: str, world: Synthetic, rounds: int, folder: Path | None, **more: float | str
) -> tuple[Trace, Trace]:
    """The trace of agents in Node, and that of the simulator."""
    constants = CONSTANTS | more
    policy = POLICIES[name].with_known_constants(constants)
    simulated = simulate(
        world, policy, rounds=rounds, oracle=TopK(length=4), checkpoints=5, engine="exact", keep_lists=True
    )
    options = [word for key in constants if key in policy.constants() for word in ("--set", f"{key}={constants[key]}")]
    process = ServerProcess(
        tmp_path, "sqlite:///store.db", "--policy", name, *options, dimension=world.dimension
    ).start()
    try:
        running = process.connect()
        trace = run_swarm(
            world,
            SwarmOptions(rounds=rounds, checkpoints=5, lockstep=True, log=tmp_path / "log.jsonl"),
            operator=running.operator,
            transport=HttpTransport(process.url),
            connect_agents=lambda tokens, problem: connect_in_node(process.url, folder, 0, tokens, problem),
        )
        running.transport.close()
    finally:
        process.stop()
    return trace, simulated


def assert_same(trace: Trace, simulated: Trace) -> None:
    assert trace.ledger == simulated.ledger
    assert [point.regret for point in trace.curve] == [point.regret for point in simulated.curve]
    assert (trace.reward, trace.observations) == (simulated.reward, simulated.observations)
    assert trace.lists is not None
    assert simulated.lists is not None
    assert np.array_equal(trace.lists, simulated.lists)
    assert np.array_equal(trace.partition, simulated.partition)


@pytest.mark.usefixtures("node")
def test_agents_in_node_make_the_exchanges_of_the_simulator(tmp_path: Path) -> None:
    world = Synthetic(users=8, clusters=2, dimension=6, items=20, seed=3)
    trace, simulated = play(tmp_path, "population", world, 300, folder=tmp_path)
    assert len(trace.ledger) > 20
    assert_same(trace, simulated)


@pytest.mark.usefixtures("node")
def test_agents_in_node_find_the_changed_users_of_the_simulator(tmp_path: Path) -> None:
    world = Synthetic(users=4, clusters=1, dimension=6, items=20, seed=3, drift=200)
    trace, simulated = play(
        tmp_path, "population", world, 400, folder=tmp_path, drift="restart", beta=1.5, threshold=5.0
    )
    assert Cause.CHANGE in {exchange.cause for exchange in trace.ledger}
    assert_same(trace, simulated)


@pytest.mark.long
@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("name", ["fedc3ucb-h", "population", "fedlinucb", "force-comm"])
def test_forty_agents_in_node_make_the_exchanges_of_the_simulator(tmp_path: Path, name: str) -> None:
    world = Synthetic(users=40, clusters=5, dimension=20, items=200, seed=1)
    trace, simulated = play(tmp_path, name, world, 5_000, folder=None)
    assert len(trace.ledger) > 100
    assert_same(trace, simulated)
