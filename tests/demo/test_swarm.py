"""A swarm over a transport makes exactly the exchanges of the simulator."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from httpx2 import Response

from fedcascade.data.logs import read_log
from fedcascade.demo.options import SwarmOptions
from fedcascade.demo.swarm import run_swarm
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.agent import Agent
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.learning.confidence import ProblemSize, Theory
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.oracles import TopK
from fedcascade.service.agent.client import fetch_terms
from fedcascade.service.agent.options import build_policy
from fedcascade.service.agent.transport import HttpTransport, Transport
from fedcascade.service.protocol.wire import EXCHANGES, unpack_statistics
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.snapshot import read_state
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.reference import play_round
from fedcascade.simulation.trace import Trace

from ..service.helpers import ServerProcess, serve_in_process
from ..service.in_process import InProcessTransport

WORLD = Synthetic(users=12, clusters=3, dimension=6, items=20, seed=3)
ROUNDS = 3_000


class Borrowed:
    """A transport that many agents share; closing it is its owner's business."""

    def __init__(self, transport: Transport) -> None:
        self.send = transport.send

    def close(self) -> None:
        """Not ours."""


class Lossy:
    """Loses every fifth answer to an upload, which the server has counted by then."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.exchanges = transport, 0

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        reply = self._transport.send(method, path, body, headers)
        self.exchanges += path == EXCHANGES
        if path == EXCHANGES and self.exchanges % 5 == 0:
            raise ConnectionError("the answer is lost")
        return reply

    def close(self) -> None:
        """Not ours."""


def make_policy(name: str) -> Policy:
    return POLICIES[name].with_known_constants({"alpha_d": 1.5, "beta": 5.0})


def assert_same(trace: Trace, simulated: Trace) -> None:
    assert trace.ledger == simulated.ledger
    assert [point.regret for point in trace.curve] == [point.regret for point in simulated.curve]
    assert trace.reward == simulated.reward
    assert trace.observations == simulated.observations


THEORY = replace(make_policy("fedc3ucb-h"), confidence=Theory(noise=0.02, delta=0.2))


def test_the_groups_of_many_agents_come_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcascade.service.protocol.wire.MOST_LABELS", 3)
    monkeypatch.setattr("fedcascade.demo.swarm.MOST_PER_PAGE", 2)
    policy = make_policy("fedlinucb")
    simulated = simulate(WORLD, policy, rounds=400, oracle=TopK(length=3), checkpoints=2)
    with serve_in_process(tmp_path / "store.db", policy=policy, dimension=6) as running:
        trace = run_swarm(
            WORLD,
            SwarmOptions(rounds=400, checkpoints=2, lockstep=True),
            operator=running.operator,
            transport=Borrowed(running.transport),
            oracle=TopK(length=3),
        )
        overview = running.operator.fetch_overview()
    assert trace.partition == simulated.partition
    assert (overview.labels, overview.active, overview.clusters, overview.sizes) == ({}, 12, 1, [12])


@pytest.mark.parametrize("policy", [*map(make_policy, ("fedc3ucb-h", "force-comm", "fedlinucb", "population")), THEORY])
def test_in_process_the_exchanges_are_those_of_the_simulator(policy: Policy, tmp_path: Path) -> None:
    simulated = simulate(WORLD, policy, rounds=ROUNDS, oracle=TopK(length=3), checkpoints=5, engine="reference")
    with serve_in_process(tmp_path / "store.db", policy=policy, dimension=6) as running:
        assert build_policy(fetch_terms(running.transport)) == policy  # an agent is told what it needs to decide alike
        trace = run_swarm(
            WORLD,
            SwarmOptions(rounds=ROUNDS, checkpoints=5, lockstep=True, folder=tmp_path),
            operator=running.operator,
            transport=Borrowed(running.transport),
            oracle=TopK(length=3),
        )
    assert len(trace.ledger) > 30
    assert_same(trace, simulated)
    assert trace.partition == simulated.partition
    assert trace.clustering_error == simulated.clustering_error
    if policy == make_policy("fedc3ucb-h"):
        assert trace.clusters == 3


def test_an_upload_that_is_repeated_gets_the_same_answer(tmp_path: Path) -> None:
    policy = POLICIES["population"]
    simulated = simulate(WORLD, policy, rounds=120, oracle=TopK(length=3), checkpoints=5, engine="reference")
    with serve_in_process(tmp_path / "store.db", policy=policy, dimension=6) as running:
        transport = Lossy(running.transport)
        trace = run_swarm(
            WORLD,
            SwarmOptions(rounds=120, checkpoints=5, lockstep=True),
            operator=running.operator,
            transport=transport,
            oracle=TopK(length=3),
        )
    assert transport.exchanges >= len(trace.ledger) + 10
    assert_same(trace, simulated)


def test_agents_of_a_living_population_are_told_of_groups_as_in_the_simulator(tmp_path: Path) -> None:
    """They find out by themselves, after every click, which of them they are like."""
    policy = make_policy("population").with_constants(beta=0.7)
    simulated = simulate(WORLD, policy, rounds=600, oracle=TopK(length=3), checkpoints=5, engine="reference")
    with serve_in_process(tmp_path / "store.db", policy=policy, dimension=6) as running:
        trace = run_swarm(
            WORLD,
            SwarmOptions(rounds=600, checkpoints=5, lockstep=True),
            operator=running.operator,
            transport=Borrowed(running.transport),
            oracle=TopK(length=3),
        )
    assert trace.ledger == simulated.ledger
    assert [point.regret for point in trace.curve] == [point.regret for point in simulated.curve]


def test_over_http_the_exchanges_are_those_of_the_simulator(tmp_path: Path) -> None:
    policy = make_policy("fedc3ucb-h")
    simulated = simulate(WORLD, policy, rounds=1_000, oracle=TopK(length=3), checkpoints=5, engine="reference")
    process = ServerProcess(tmp_path, "sqlite:///store.db", "--alpha-d", "1.5", "--beta", "5", dimension=6).start()
    try:
        running = process.connect()
        trace = run_swarm(
            WORLD,
            SwarmOptions(rounds=1_000, checkpoints=5, lockstep=True),
            operator=running.operator,
            transport=HttpTransport(process.url),
            oracle=TopK(length=3),
        )
        running.transport.close()
    finally:
        process.stop()
    assert_same(trace, simulated)


def test_newcomers_begin_with_what_the_server_knows_and_play_as_in_the_library(tmp_path: Path) -> None:
    policy, welcomed = make_policy("population"), list[int]()
    others = Synthetic(users=4, clusters=3, dimension=6, items=20, seed=4)
    with serve_in_process(tmp_path / "store.db", policy=policy, dimension=6) as running:

        def play(world: Synthetic, rounds: int) -> Trace:
            return run_swarm(
                world,
                SwarmOptions(rounds=rounds, checkpoints=1, lockstep=True),
                operator=running.operator,
                transport=Borrowed(running.transport),
                on_ready=lambda agents: welcomed.append(sum(agent.memory.has_prior for agent in agents)),
                oracle=TopK(length=3),
            )

        play(WORLD, 2_000)
        assert running.writer is not None
        assert running.writer.state is not None
        running.enrol()  # publishes a prior, if one is due
        state = ServerState.from_state(read_state([running.writer.state.dump()]), policy, 6)
        assert state is not None
        state.publication = running.writer.state.publication
        trace = play(others, 300)
    assert welcomed == [0, 4]
    assert play_newcomers(others, policy, state, 300) == (trace.communications(), trace.curve[-1].regret)


def play_newcomers(world: Synthetic, policy: Policy, state: ServerState, rounds: int) -> tuple[int, float]:
    """The exchanges and the regret of newcomers to a server in this process, which meets them as they first speak."""
    problem = ProblemSize(users=world.users, dimension=6, list_length=3, rounds=rounds)
    agents = [Agent(id=10**6 + user, policy=policy, problem=problem, oracle=TopK(length=3)) for user in range(4)]
    for agent in agents:
        welcome = state.get_prior(agent.id, state.publication.at)
        assert welcome is not None
        agent.receive(unpack_statistics(welcome.numbers, (0, 0, 0), 6))
    exchanges, regret = 0, 0.0
    for t in range(1, rounds + 1):
        agent = agents[world.arrival(t)]
        outcome = play_round(world, TopK(length=3), t, world.arrival(t), agent.recommend, agent.observe)
        regret += outcome.regret
        if outcome.upload is not None:
            exchanges += 1
            answer = state.apply(outcome.upload, state.position + 1)
            agent.receive(answer)
    return exchanges, regret


def test_in_the_background_nothing_is_lost(tmp_path: Path) -> None:
    policy = make_policy("fedc3ucb-h")
    with serve_in_process(tmp_path / "store.db", policy=policy, dimension=6) as running:
        assert isinstance(running.transport, InProcessTransport)
        trace = run_swarm(
            WORLD,
            SwarmOptions(rounds=600, checkpoints=2, min_observations=12),
            operator=running.operator,
            transport=Borrowed(running.transport),
        )
        assert running.operator.fetch_overview().position == len(trace.ledger)


def test_agents_that_choose_by_chance_leave_a_log_with_propensities(tmp_path: Path) -> None:
    policy, oracle = make_policy("population"), EpsilonMixed(length=3, epsilon=0.5)
    simulated = simulate(WORLD, policy, rounds=150, oracle=oracle, checkpoints=1, engine="reference", keep_lists=True)
    with serve_in_process(tmp_path / "store.db", policy=policy, dimension=6) as running:
        trace = run_swarm(
            WORLD,
            SwarmOptions(rounds=150, checkpoints=1, lockstep=True, log=tmp_path / "log.parquet"),
            operator=running.operator,
            transport=Borrowed(running.transport),
            oracle=oracle,
        )
    assert np.array_equal(trace.lists, simulated.lists)  # type: ignore[arg-type]
    assert np.array_equal(trace.propensities, simulated.propensities)  # type: ignore[arg-type]
    assert len(read_log(tmp_path / "log.parquet").read()) == 150
