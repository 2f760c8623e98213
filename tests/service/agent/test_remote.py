"""The agent as a library: decides offline, survives its own death, keeps a floor on what an upload reveals."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from inspect import unwrap
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import fedcascade
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.learning.confidence import ProblemSize, Theory
from fedcascade.learning.knapsack import Budget
from fedcascade.learning.oracles import PerCategory
from fedcascade.learning.ridge import LinearEstimate
from fedcascade.numerics import linear
from fedcascade.numerics.fragments import FragmentDispatcher
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.client import OperatorClient, compute_pause
from fedcascade.service.agent.connection import COMPILING, AsyncRemoteAgent, connect
from fedcascade.service.agent.ledger import estimate_round, withdraw
from fedcascade.service.agent.options import AgentOptions
from fedcascade.service.agent.pool import RemoteAgent
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused

from ..helpers import CuttableTransport, RunningService, ServerProcess, serve_in_process

D = 3
PAUSES = AgentOptions().pauses
TALKATIVE = replace(POLICIES["fedc3ucb-h"], trigger=Always())


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def connect_agent(
    running: RunningService, path: Path, transport: CuttableTransport | None = None, **options: Any
) -> RemoteAgent:
    [token] = running.operator.create_tokens()
    options = dict[str, Any](policy=TALKATIVE, min_observations=0, pauses=(0.005, 1.0)) | options
    return connect("", store=str(path), token=token, transport=transport or CuttableTransport(running), **options)


def draw_items(random: np.random.Generator, count: int = 6) -> np.ndarray:
    drawn = random.normal(size=(count, D))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), np.float32)


def play_rounds(agent: RemoteAgent, rounds: int, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    for _ in range(rounds):
        shown = agent.recommend(draw_items(random), 2)
        agent.feedback(shown, int(random.integers(0, 2)))


def read_statistics(running: RunningService, agent: int):  # type: ignore[no-untyped-def]
    return running.writer.submit(lambda _, state: state.get_statistics(agent)).result()  # type: ignore[union-attr]


def test_what_an_agent_learns_reaches_the_server_and_the_answer_comes_back(
    running: RunningService, tmp_path: Path
) -> None:
    agent = connect_agent(running, tmp_path / "agent.db")
    play_rounds(agent, 5)
    assert agent.flush(10)
    assert read_statistics(running, agent.id).rounds == 5
    assert np.array_equal(agent.memory.state.local.download.statistics.gram, read_statistics(running, agent.id).gram)
    agent.close()


def test_decisions_do_not_wait_for_a_network_that_is_down_and_nothing_is_lost(
    running: RunningService, tmp_path: Path
) -> None:
    transport = CuttableTransport(running)
    agent = connect_agent(running, tmp_path / "agent.db", transport)
    transport.up = False
    began = time.monotonic()
    play_rounds(agent, 30)
    assert time.monotonic() - began < 5
    assert agent.unsent == 30
    assert not agent.flush(0.05)
    assert "down" in (agent.trouble or "")
    agent.close()
    offline = connect("", store=str(tmp_path / "agent.db"), transport=transport, policy=TALKATIVE, pauses=(0.005, 1.0))
    assert offline.unsent == 30
    play_rounds(offline, 1)
    transport.up = True
    assert offline.flush(10)
    assert offline.trouble is None
    assert read_statistics(running, offline.id).rounds >= 30
    offline.close()


def test_the_network_is_not_hammered_while_it_is_down() -> None:
    longest = [compute_pause(failures, PAUSES, None, lambda: 1.0) for failures in range(1, 20)]
    assert longest[:4] == [0.25, 0.5, 1.0, 2.0]
    assert longest[-1] == PAUSES[1]
    assert compute_pause(3, PAUSES, None, lambda: 0.0) == 0.5  # jitter: half to all of it
    assert compute_pause(1, PAUSES, 7.0) == 7.0  # the server asked for more
    assert compute_pause(10_000, PAUSES, None) <= PAUSES[1]


def test_an_open_list_survives_a_restart_and_is_answered_once(running: RunningService, tmp_path: Path) -> None:
    agent = connect_agent(running, tmp_path / "agent.db")
    shown = agent.recommend(draw_items(np.random.default_rng(1)), 2)
    agent.close()
    again = connect(
        "", store=str(tmp_path / "agent.db"), transport=CuttableTransport(running), policy=TALKATIVE, min_observations=0
    )
    again.feedback(shown.impression, 1)
    with pytest.raises(ValueError, match="no open list"):
        again.feedback(shown.impression, 1)
    assert again.flush(10)
    assert read_statistics(running, again.id).rounds == 1
    assert np.allclose(read_statistics(running, again.id).gram, shown.features.T.astype(float) @ shown.features)
    again.close()


def test_features_of_an_application_are_rounded_to_the_grid(running: RunningService, tmp_path: Path) -> None:
    """So that the server holds exact sums, and takes what the agent sends."""
    agent, items = connect_agent(running, tmp_path / "agent.db"), draw_items(np.random.default_rng(3))
    shown = agent.recommend(items.tolist(), 2)
    assert not np.array_equal(items[shown.items], shown.features)
    np.testing.assert_array_equal(shown.features, round_to_grid(items[shown.items]))
    agent.feedback(shown, None)
    assert agent.flush(10)
    features = shown.features.astype(float)
    np.testing.assert_array_equal(read_statistics(running, agent.id).gram, features.T @ features)
    agent.close()


def test_an_application_says_what_belongs_to_which_category_and_what_it_costs(
    running: RunningService, tmp_path: Path
) -> None:
    items = np.eye(D, dtype=np.float32)
    agent = connect_agent(running, tmp_path / "mixed.db", oracle=PerCategory(length=3, limit=1))
    shown = agent.recommend(items, categories=[7] * (D - 1) + [8])
    assert shown.items.size == 2
    assert D - 1 in shown.items
    agent.close()
    thrifty = connect_agent(running, tmp_path / "thrifty.db", oracle=Budget(length=3, budget=1.0))
    costs = np.array([0.9] * (D - 2) + [0.5, 0.5])
    assert costs[thrifty.recommend(items, costs=costs).items].sum() <= 1.0
    for given, words in (
        (None, "needs costs"),
        ([1.0], "costs must be a finite number >= 0 for each"),
        ([2.0] * D, "no item on offer costs at most the budget"),
    ):
        with pytest.raises(ValueError, match=words):
            thrifty.recommend(items, costs=given)
    thrifty.close()


def test_bad_calls_change_nothing(running: RunningService, tmp_path: Path) -> None:
    agent = connect_agent(running, tmp_path / "agent.db")
    shown = agent.recommend(np.eye(D, dtype=np.float32), 2)
    for attempt in (
        lambda: agent.feedback(shown, 2),
        lambda: agent.feedback(77, 0),
        lambda: agent.recommend(np.ones((2, D + 1)), 1),
        lambda: agent.recommend(np.full((2, D), 9.0), 1),
    ):
        with pytest.raises(ValueError, match=r"must|no open list"):
            attempt()
    agent.feedback(shown, None)
    agent.close()
    with pytest.raises(ValueError, match="closed"):
        agent.recommend(np.eye(D), 1)


def test_no_upload_holds_fewer_observations_than_the_floor(running: RunningService, tmp_path: Path) -> None:
    agent = connect_agent(running, tmp_path / "agent.db", min_observations=None)
    random = np.random.default_rng(2)
    uploads = [agent.feedback(agent.recommend(draw_items(random), 2), None) for _ in range(60)]
    sent = [upload for upload in uploads if upload is not None]
    assert len(sent) > 5
    assert {upload.statistics.count for upload in sent} == {2 * D}
    agent.close()


def test_the_round_is_extrapolated_from_the_servers_count(running: RunningService, tmp_path: Path) -> None:
    with connect_agent(running, tmp_path / "agent.db") as agent:
        state = agent.memory.state
        assert estimate_round(state) == 1
        for rounds, agents, since, arrivals, expected in (
            (1000, 40, 0, 30, 1000), (1000, 40, 5, 35, 1200), (3, 1, 1, 50, 50),
        ):  # fmt: skip
            local = state.local._replace(arrivals=arrivals)
            known = state._replace(local=local, rounds=rounds, agents=agents, since=since)
            assert estimate_round(known) == expected


def test_leaving_is_one_call_and_leaves_nothing(running: RunningService, tmp_path: Path) -> None:
    agent = connect_agent(running, tmp_path / "agent.db")
    play_rounds(agent, 3)
    agent.flush(10)
    number = agent.id
    agent.leave()
    assert running.operator.fetch_overview().labels == {}
    assert read_statistics(running, number).rounds == 0
    with pytest.raises(ValueError, match="enrolment token"):
        connect("", store=str(tmp_path / "agent.db"), transport=CuttableTransport(running))


def test_a_revoked_agent_keeps_what_it_has_and_says_why_it_waits(running: RunningService, tmp_path: Path) -> None:
    agent = connect_agent(running, tmp_path / "agent.db")
    running.operator.revoke(agent.id)
    play_rounds(agent, 2)
    assert not agent.flush(0.3)
    assert "revoked" in (agent.trouble or "")
    assert agent.unsent == 2
    agent.close()


def test_an_agent_that_comes_back_after_months_finds_everything_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left with uploads unsent; meanwhile others spoke, snapshots were taken, and the server was started anew."""
    away = tmp_path / "away.db"
    with serve_in_process(tmp_path / "store.db", snapshot_every=5) as running:
        agent = connect_agent(running, away, transport := CuttableTransport(running))
        play_rounds(agent, 3)
        assert agent.flush(10)
        transport.up = False
        play_rounds(agent, 4, seed=1)
        open_list = agent.recommend(np.eye(D), 2)
        assert not agent.flush(0.05)
        agent.close()
        neighbour = connect_agent(running, tmp_path / "other.db")
        play_rounds(neighbour, 30, seed=2)
        assert neighbour.flush(20)
        neighbour.close()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 200 * 86_400)
    with serve_in_process(tmp_path / "store.db", snapshot_every=5) as running:
        agent = connect("", store=str(away), policy=TALKATIVE, min_observations=0, transport=CuttableTransport(running))
        assert agent.feedback(open_list, 0) is not None
        assert agent.flush(10)
        assert read_statistics(running, agent.id).rounds == 3 + 4 + 1
        assert running.writer is not None
        assert running.writer.submit(lambda _, state: state.sum_statistics()).result().rounds == 8 + 30
        assert (agent.memory.state.rounds, agent.memory.state.agents) == (wire.coarsen(8 + 30), 2)
        agent.close()


def test_a_wrong_clock_is_corrected(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "sqlite:///store.db").start()
    try:
        running = process.connect()
        client = running.enrol()
        client.clock_offset = -5_000.0
        assert client.fetch_standing().uploads == 0
        assert abs(client.clock_offset) < 5
        running.transport.close()
    finally:
        process.stop()


def test_an_agent_decides_with_the_beta_that_the_servers_policy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, radius = list[ProblemSize](), Theory.radius

    def record(self: Theory, estimate: LinearEstimate, problem: ProblemSize) -> float:
        sizes.append(problem)
        return radius(self, estimate, problem)

    monkeypatch.setattr(Theory, "radius", record)
    theory = replace(POLICIES["fedc3ucb-h"], confidence=Theory(alpha_c=0.5, noise=0.1, delta=0.2))
    policy = replace(theory, trigger=Always()).with_constants(alpha_c=0.5)
    with serve_in_process(tmp_path / "store.db", policy=theory.with_constants(alpha_c=0.5)) as running:
        neighbour = connect_agent(running, tmp_path / "other.db", policy=policy)
        play_rounds(neighbour, 7)
        assert neighbour.flush(10)
        agent = connect_agent(running, tmp_path / "agent.db", policy=None)
        assert agent.memory.policy.confidence == theory.confidence
        before = agent.recommend(np.eye(D), 2)
        assert sizes[-1] == ProblemSize(users=1, dimension=D, list_length=2, rounds=1)
        rounds, upload = 8, agent.feedback(before, 0)
        while upload is None:
            rounds, upload = rounds + 1, agent.feedback(agent.recommend(np.eye(D), 2), 0)
        assert agent.flush(10)
        agent.recommend(np.eye(D), 3)
        assert sizes[-1] == ProblemSize(users=2, dimension=D, list_length=3, rounds=rounds)  # as the server answered
        agent.close()
        neighbour.close()


def test_the_asyncio_agent_works_offline_and_goes_on_after_a_restart(running: RunningService, tmp_path: Path) -> None:
    transport = CuttableTransport(running)
    options: dict[str, Any] = {"store": str(tmp_path / "agent.db"), "policy": TALKATIVE, "min_observations": 0,
                               "transport": transport, "pauses": (0.005, 0.02)}  # fmt: skip

    async def first() -> tuple[int, int]:
        [token] = running.operator.create_tokens()
        async with await fedcascade.connect_async("", token=token, **options) as agent:
            shown = await agent.recommend(np.eye(D), 2)
            assert len(shown.items) == 2
            assert await agent.feedback(shown, 0) is not None
            assert await agent.flush(10)
            transport.up = False
            lists = await asyncio.gather(*(agent.recommend(np.eye(D), 2) for _ in range(4)))  # at once, and offline
            assert len({shown.impression for shown in lists}) == 4
            for shown in lists[:3]:
                await agent.feedback(shown.impression, None)
            assert not await agent.flush(0.05)
            assert agent.agent.unsent == 3
            return agent.agent.id, lists[3].impression

    async def second(impression: int) -> None:
        async with await fedcascade.connect_async("", **options) as agent:  # offline still: no token, no server
            assert agent.agent.unsent == 3
            await agent.feedback(impression, 1)
            with pytest.raises(ValueError, match="no open list"):
                await agent.feedback(impression, 1)
            transport.up = True
            assert await agent.flush(10)
        with pytest.raises(ValueError, match="closed"):
            await agent.recommend(np.eye(D), 2)

    async def last() -> None:
        agent = await fedcascade.connect_async("", **options)
        await agent.leave()

    number, impression = asyncio.run(first())
    assert read_statistics(running, number).rounds == 1
    asyncio.run(second(impression))
    assert (read_statistics(running, number).rounds, read_statistics(running, number).clicks) == (5, 2)
    asyncio.run(last())
    assert read_statistics(running, number).rounds == 0


def test_the_event_loop_runs_on_while_the_asyncio_agent_waits(running: RunningService, tmp_path: Path) -> None:
    transport = CuttableTransport(running)

    async def use() -> int:
        agent = AsyncRemoteAgent(connect_agent(running, tmp_path / "agent.db", transport))
        await agent.feedback(await agent.recommend(np.eye(D), 2), 0)
        assert await agent.flush(10)
        transport.up = False
        await agent.feedback(await agent.recommend(np.eye(D), 2), 0)
        waiting, turns = asyncio.create_task(agent.flush(0.3)), 0
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0.005)
        await agent.close()
        return turns

    assert asyncio.run(use()) > 10


def test_a_store_that_is_no_store_is_refused(running: RunningService, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database" * 100, encoding="utf-8")
    with pytest.raises(ValueError, match="cannot use"):
        connect_agent(running, tmp_path / "text.db")
    with pytest.raises(ValueError, match="cannot open"):
        connect_agent(running, tmp_path / "missing" / "agent.db")
    with pytest.raises(ValueError, match="https://host"):
        fedcascade.connect("nowhere", store=str(tmp_path / "agent.db"))


def test_the_private_key_stays_in_a_file_that_nobody_else_reads(running: RunningService, tmp_path: Path) -> None:
    agent = connect_agent(running, tmp_path / "agent.db")
    assert (tmp_path / "agent.db").stat().st_mode & 0o077 == 0
    agent.close()


AGENT = """
import sys
import numpy as np
from dataclasses import replace
from inspect import unwrap
from fedcascade import POLICIES, connect
from fedcascade.federation.triggers import Always
from fedcascade.learning.confidence import ProblemSize, Theory

url, path, token = sys.argv[1:]
policy = replace(POLICIES["fedc3ucb-h"], trigger=Always())
agent = connect(url, store=path, token=token, policy=policy, min_observations=0)
print("ready", flush=True)
while True:
    shown = agent.recommend(np.eye(3), 1)
    agent.feedback(shown, 0)
    print(agent.memory.state.local.arrivals, flush=True)
"""


def test_kill_minus_nine_loses_no_round(tmp_path: Path) -> None:
    """What the killed process has printed was learned before it was printed."""
    process = ServerProcess(tmp_path, "sqlite:///store.db").start()
    try:
        running = process.connect()
        [token] = OperatorClient(running.transport, "the-operators-token-in-tests").create_tokens()
        command = [sys.executable, "-c", AGENT, process.url, str(tmp_path / "agent.db"), token]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        printed = [child.stdout.readline() for _ in range(50)]  # so that rounds and exchanges are under way
        os.kill(child.pid, signal.SIGKILL)
        learned = int("".join([*printed, child.stdout.read()]).split()[-1])
        child.wait()
        child.stdout.close()
        agent = connect(process.url, store=str(tmp_path / "agent.db"), policy=TALKATIVE, min_observations=0)
        assert agent.flush(30), agent.trouble
        assert learned <= running.operator.fetch_overview().rounds <= learned + 1
        agent.close()
        running.transport.close()
    finally:
        process.stop()


def test_the_first_connect_needs_a_token(running: RunningService, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="for an enrolment token"):
        connect("", store=str(tmp_path / "agent.db"), transport=CuttableTransport(running))
    with pytest.raises(Refused, match="token"):
        connect("", store=str(tmp_path / "agent.db"), token="x" * 43, transport=CuttableTransport(running))


def test_an_upload_that_is_lost_for_good_is_decided_with_no_more(running: RunningService, tmp_path: Path) -> None:
    own_data_count = replace(POLICIES["population"], trigger=Always())
    transport = CuttableTransport(running)
    agent = connect_agent(running, tmp_path / "agent.db", transport, policy=own_data_count)
    transport.up = False
    agent.feedback(agent.recommend(draw_items(np.random.default_rng(1)), 2), 0)
    assert np.any(agent.estimate != 0)
    upload = agent.memory.state.outbox[0]
    agent.memory.update(lambda state: (withdraw(agent.memory.policy, state, upload, is_lost=True), None))
    assert not np.any(agent.estimate)
    agent.close()


def list_compiled() -> set[str]:
    """The versions of functions that Python has called, whether they were compiled or loaded from disk."""
    functions = [each for each in gc.get_objects() if type(each) is FragmentDispatcher]
    return {f"{each.py_func.__qualname__}{types}" for each in functions for types in each.overloads}


def test_after_a_warm_up_no_user_waits_for_a_compiler(running: RunningService, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with connect_agent(running, tmp_path / "agent.db", warm_up=True) as agent:
        before = list_compiled()
        for _ in range(5):
            agent.feedback(agent.recommend(draw_items(random), 2), 0)
        assert agent.flush(10.0)
        assert list_compiled() == before


def test_connecting_says_when_it_waits_for_a_compiler(
    running: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with connect_agent(running, tmp_path / "first.db"):
        assert COMPILING not in caplog.messages
    monkeypatch.setattr(linear, "solve_ridge", numba.njit(unwrap(linear.solve_ridge)))
    with connect_agent(running, tmp_path / "second.db"):
        assert caplog.messages.count(COMPILING) == 1
