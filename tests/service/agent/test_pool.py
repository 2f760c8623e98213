"""Many agents in one process: one file, one network client, few threads, and the rules of a single agent."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.pool import AgentPool, PoolAgent
from fedcascade.service.protocol import wire
from fedcascade.service.server.settings import Limits

from ..helpers import CuttableTransport, RunningService, ServerProcess, serve_in_process

D = 3
TALKATIVE = replace(POLICIES["fedc3ucb-h"], trigger=Always())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def open_pool(running: RunningService, path: Path, *, tokens: int = 0, **options: Any) -> AgentPool:
    chosen = dict[str, Any](policy=TALKATIVE, min_observations=0, pauses=(0.005, 0.05)) | options
    chosen.setdefault("transport", CuttableTransport(running))
    given = running.operator.create_tokens(tokens) if tokens else []
    return AgentPool("", store=str(path), tokens=given, **chosen)


def play(agent: PoolAgent, rounds: int = 1, scale: float = 1.0) -> None:
    for _ in range(rounds):
        agent.feedback(agent.recommend(scale * np.eye(D), 1), 0)


def count_held(agent: PoolAgent) -> int:
    return agent.client.fetch_standing().rounds


def test_each_user_has_an_agent_of_its_own(running: RunningService, tmp_path: Path) -> None:
    with open_pool(running, tmp_path / "agents.db", tokens=20) as pool:
        agents = [pool.get(f"user-{user}") for user in range(20)]
        for number, agent in enumerate(agents):
            play(agent, 1 + number % 3)
        assert pool.flush(30), pool.trouble
        assert len({agent.id for agent in agents}) == 20
        assert len({bytes(agent.client.key) for agent in agents}) == 20
        assert [count_held(agent) for agent in agents] == [1 + number % 3 for number in range(20)]
        assert pool.list_names() == [f"user-{user}" for user in range(20)]
        assert pool.get("user-3") is agents[3]
    assert running.operator.fetch_overview().rounds == sum(1 + number % 3 for number in range(20))


def test_agents_cost_no_thread_and_no_descriptor(running: RunningService, tmp_path: Path) -> None:
    with open_pool(running, tmp_path / "agents.db", senders=2) as pool:
        play(pool.get("first"))
        before = threading.active_count(), len([*Path("/proc/self/fd").iterdir()])
        for user in range(200):
            pool.get(f"user-{user}").recommend(np.eye(D), 2)
        assert (threading.active_count(), len([*Path("/proc/self/fd").iterdir()])) == before


def test_an_agent_enrols_when_it_has_something_to_send(running: RunningService, tmp_path: Path) -> None:
    """Until then it decides by itself, offline if need be, and costs no token."""
    transport = CuttableTransport(running)
    with open_pool(running, tmp_path / "agents.db", transport=transport) as pool:
        visitor = pool.get("visitor")
        visitor.recommend(np.eye(D), 2)
        transport.up = False
        guest = pool.get("guest")
        play(guest, 3)
        assert not pool.flush(0.05)
        transport.up = True
        assert not pool.flush(0.2)
        assert "enrolment token" in (guest.trouble or "")
        pool.add_tokens(running.operator.create_tokens(5))
        assert pool.flush(20), pool.trouble
        assert (visitor.id, count_held(guest), pool.trouble) == (0, 3, None)
        assert running.operator.fetch_overview().enrolled == 1


def test_tokens_that_were_used_elsewhere_are_skipped(running: RunningService, tmp_path: Path) -> None:
    with open_pool(running, tmp_path / "agents.db", tokens=3) as pool:
        pool.add_tokens(["a-token-that-nobody-knows-1", "a-token-that-nobody-knows-2"])
        for user in range(3):
            play(pool.get(f"user-{user}"))
        assert pool.flush(30), pool.trouble
        assert running.operator.fetch_overview().enrolled == 3


def test_a_server_that_finds_too_many_enrolments_is_waited_for(tmp_path: Path) -> None:
    """The first refusal makes all wait, so that nobody knocks in vain meanwhile."""
    strict = Limits(rate=1e6, burst=1e6, address_rate=20.0, address_burst=10.0)
    with serve_in_process(tmp_path / "store.db", limits=strict) as running:
        transport = CuttableTransport(running)
        with open_pool(running, tmp_path / "agents.db", tokens=25, transport=transport) as pool:
            for user in range(25):
                play(pool.get(f"user-{user}"))
            assert pool.flush(40), pool.trouble
            assert transport.sent <= 1 + 2 * 25 + 4 * 4  # terms, enrolments, uploads, few refusals


def test_what_waits_is_sent_by_the_next_process_though_nobody_asks_for_the_agent(
    running: RunningService, tmp_path: Path
) -> None:
    transport = CuttableTransport(running)
    with open_pool(running, tmp_path / "agents.db", tokens=9, transport=transport) as pool:
        pool.get("offline").recommend(np.eye(D), 1)
        transport.up = False
        for user in range(9):
            play(pool.get(f"user-{user}"), 2)
        shown = pool.get("user-4").recommend(np.eye(D), 2)
    with open_pool(running, tmp_path / "agents.db") as pool:
        assert pool.flush(30), pool.trouble
        assert running.operator.fetch_overview().rounds == 18
        pool.get("user-4").feedback(shown.impression, 1)
        assert pool.flush(30)
        assert count_held(pool.get("user-4")) == 3


def test_agents_leave_the_memory_and_come_back_as_they_were(running: RunningService, tmp_path: Path) -> None:
    with open_pool(running, tmp_path / "agents.db", tokens=12, in_memory=3) as pool:
        kept = pool.get("user-0")
        shown = kept.recommend(np.eye(D), 2)
        for _ in range(3):
            for user in range(12):
                play(pool.get(f"user-{user}"))
        assert pool.get("user-0") is kept  # whoever holds an agent has the only one
        kept.feedback(shown, 1)
        assert pool.flush(30), pool.trouble
        assert [count_held(pool.get(f"user-{user}")) for user in range(12)] == [4] + [3] * 11


def test_one_agent_leaves_and_the_others_stay(running: RunningService, tmp_path: Path) -> None:
    with open_pool(running, tmp_path / "agents.db", tokens=4) as pool:
        agents = [pool.get(f"user-{user}") for user in range(3)]
        for agent in agents:
            play(agent, 2)
        assert pool.flush(30)
        agents[1].leave()
        assert running.operator.fetch_overview().rounds == 4
        assert pool.list_names() == ["user-0", "user-2"]
        with pytest.raises(ValueError, match="closed"):
            agents[1].recommend(np.eye(D), 1)
        play(agents[2])
        again = pool.get("user-1")  # a new agent for the same user
        assert (again.id, again.unsent) == (0, 0)
        play(again)
        assert pool.flush(30), pool.trouble
        assert (count_held(again), count_held(agents[2])) == (1, 3)


def test_threads_may_share_a_pool(running: RunningService, tmp_path: Path) -> None:
    with open_pool(running, tmp_path / "agents.db", tokens=8) as pool:

        def serve(first: int) -> None:
            for turn in range(20):
                play(pool.get(f"user-{(first + turn) % 8}"))

        threads = [threading.Thread(target=serve, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert pool.flush(30), pool.trouble
        assert running.operator.fetch_overview().rounds == 80


def test_one_agents_trouble_is_its_own(running: RunningService, tmp_path: Path) -> None:
    with open_pool(running, tmp_path / "agents.db", tokens=2) as pool:
        bad, good = pool.get("bad"), pool.get("good")
        play(bad)
        play(good)
        assert pool.flush(30)
        running.operator.revoke(bad.id)
        play(bad)
        play(good, 5)
        assert good.flush(20), good.trouble
        assert not bad.flush(0.1)
        assert "revoked" in (bad.trouble or "")
        assert (count_held(good), good.trouble) == (6, None)


@pytest.mark.parametrize("how", ["revoked", "forgotten"])
def test_whom_the_operator_sent_away_takes_no_token_from_the_stock(
    running: RunningService, tmp_path: Path, how: str
) -> None:
    with open_pool(running, tmp_path / "agents.db", tokens=5) as pool:
        agent = pool.get("user")
        play(agent, 2)
        assert pool.flush(20)
        before = agent.id
        (running.operator.revoke if how == "revoked" else running.operator.forget)(before)
        play(agent)
        assert not pool.flush(0.2)
        assert "enrolment token" in (agent.trouble or "")
        assert (agent.id, agent.unsent) == (before, 1)
        [token] = running.operator.create_tokens()
        assert pool.enrol("user", token) is agent  # somebody wants it back
        assert pool.flush(20), pool.trouble
        assert agent.id != before
        assert count_held(agent) == (1 if how == "revoked" else 3)


def test_a_token_that_comes_while_an_enrolment_is_refused_is_kept(running: RunningService, tmp_path: Path) -> None:
    tokens = list[str]()

    class LateToken(CuttableTransport):
        def send(self, method: str, path: str, body: bytes, headers: Any) -> Any:
            reply = super().send(method, path, body, headers)
            if path.startswith(wire.ENROLMENTS) and tokens:
                pool.enrol("user", tokens.pop())
            return reply

    with open_pool(running, tmp_path / "agents.db", tokens=1, transport=LateToken(running)) as pool:
        agent = pool.get("user")
        play(agent)
        assert pool.flush(20), pool.trouble
        running.operator.forget(agent.id)
        tokens += running.operator.create_tokens()
        play(agent)
        assert pool.flush(20), pool.trouble
        assert (count_held(agent), tokens) == (2, [])


POOL = """
import sys
import numpy as np
from dataclasses import replace
from fedcascade import AgentPool, POLICIES
from fedcascade.federation.triggers import Always

url, path, *tokens = sys.argv[1:]
policy = replace(POLICIES["fedc3ucb-h"], trigger=Always())
pool = AgentPool(url, store=path, tokens=tokens, policy=policy, min_observations=0)
print("ready", flush=True)
played = 0
while True:
    agent = pool.get(f"user-{played % 7}")
    agent.feedback(agent.recommend(np.eye(3), 1), 0)
    played += 1
    print(played, flush=True)
"""


def test_kill_minus_nine_loses_and_doubles_no_round_of_any_agent(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "sqlite:///store.db").start()
    try:
        running = process.connect()
        tokens = running.operator.create_tokens(7)
        command = [sys.executable, "-c", POOL, process.url, str(tmp_path / "agents.db"), *tokens]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        printed = [child.stdout.readline() for _ in range(100)]  # so that enrolments and uploads are under way
        os.kill(child.pid, signal.SIGKILL)
        learned = int("".join([*printed, child.stdout.read()]).split()[-1])
        child.wait()
        child.stdout.close()
        with AgentPool(process.url, store=str(tmp_path / "agents.db"), policy=TALKATIVE, min_observations=0) as pool:
            assert pool.flush(30), pool.trouble
        assert learned <= running.operator.fetch_overview().rounds <= learned + 1
        running.transport.close()
    finally:
        process.stop()
