"""Leaving, being revoked or forgotten, forks, full disks, lists that nobody answers: the agent stays usable."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from httpx2 import Response

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.learning.oracles import PerCategory
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.database import AgentFile
from fedcascade.service.agent.pool import RemoteAgent
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import Clock
from fedcascade.service.protocol.errors import Refused

from ..helpers import CuttableTransport, RunningService, ServerProcess, serve_in_process

D = 3
TALKATIVE = replace(POLICIES["fedc3ucb-h"], trigger=Always())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def open_agent(running: RunningService, path: Path, *, new: bool = True, **options: Any) -> RemoteAgent:
    """Connect, with a fresh token if ``new``."""
    chosen = dict[str, Any](policy=TALKATIVE, min_observations=0, pauses=(0.005, 0.05)) | options
    chosen.setdefault("transport", CuttableTransport(running))
    return connect("", store=str(path), token=running.operator.create_tokens()[0] if new else None, **chosen)


def play(agent: RemoteAgent, rounds: int = 1) -> None:
    for _ in range(rounds):
        agent.feedback(agent.recommend(np.eye(D), 1), 0)


def play_and_flush(agent: RemoteAgent, rounds: int = 1) -> None:
    play(agent, rounds)
    assert agent.flush(20), agent.trouble


def test_an_agent_that_cannot_leave_offline_goes_on_and_leaves_later(running: RunningService, tmp_path: Path) -> None:
    transport = CuttableTransport(running)
    agent = open_agent(running, tmp_path / "agent.db", transport=transport)
    play_and_flush(agent, 2)
    transport.up = False
    with pytest.raises(ConnectionError, match="down"):
        agent.leave()
    play(agent)
    transport.up = True
    play_and_flush(agent)
    assert running.operator.fetch_overview().rounds == 4
    agent.leave()
    assert running.operator.fetch_overview().rounds == 0


@pytest.mark.parametrize("how", ["revoked", "forgotten"])
def test_an_agent_that_the_server_sent_away_cannot_leave_and_goes_on(
    running: RunningService, tmp_path: Path, how: str
) -> None:
    with open_agent(running, tmp_path / "agent.db") as agent:
        play_and_flush(agent, 2)
        (running.operator.revoke if how == "revoked" else running.operator.forget)(agent.id)
        with pytest.raises(Refused):
            agent.leave()
        play(agent, 2)
        assert not agent.flush(0.1)
        assert agent.unsent == 2
        agent.erase()
    with pytest.raises(ValueError, match="enrolment token"):
        open_agent(running, tmp_path / "agent.db", new=False)


def test_a_forgotten_agent_goes_on_with_a_new_token(running: RunningService, tmp_path: Path) -> None:
    with open_agent(running, tmp_path / "agent.db") as agent:
        play_and_flush(agent, 2)
        before = agent.id
        running.operator.forget(before)
    with open_agent(running, tmp_path / "agent.db") as again:
        play_and_flush(again, 3)
        assert again.id != before
        assert again.trouble is None or "sent again" in again.trouble
        standing = again.client.fetch_standing()
        assert standing.rounds == running.operator.fetch_overview().rounds == 5


def test_a_revoked_agent_goes_on_with_a_new_token_and_repeats_nothing(running: RunningService, tmp_path: Path) -> None:
    """What it taught stays with the server, under its old number."""
    with open_agent(running, tmp_path / "agent.db") as agent:
        play_and_flush(agent, 2)
        before, key = agent.id, bytes(agent.client.key)
        running.operator.revoke(before)
        play(agent)
        assert not agent.flush(0.1)
        assert "enrolment token" in (agent.trouble or "")
    with open_agent(running, tmp_path / "agent.db") as again:
        play_and_flush(again, 3)
        assert again.id != before
        assert bytes(again.client.key) != key
        assert (again.client.fetch_standing().rounds, running.operator.fetch_overview().rounds) == (4, 6)
        assert (again.lost, again.trouble) == (0, None)
    with open_agent(running, tmp_path / "agent.db", new=False) as later:
        play_and_flush(later)
        assert later.client.fetch_standing().rounds == 5


def test_flush_tries_at_once_however_long_the_pause(running: RunningService, tmp_path: Path) -> None:
    transport = CuttableTransport(running)
    with open_agent(running, tmp_path / "agent.db", transport=transport, pauses=(300.0, 300.0)) as agent:
        transport.up = False
        play(agent)
        assert not agent.flush(0.2)
        assert "down" in (agent.trouble or "")
        transport.up = True
        assert agent.flush(20), agent.trouble


def test_flush_keeps_the_pause_that_the_server_asked_for(running: RunningService, tmp_path: Path) -> None:
    class BusyTransport(CuttableTransport):
        def send(self, method: str, path: str, body: bytes, headers: Any) -> Response:
            if path != wire.EXCHANGES:
                return super().send(method, path, body, headers)
            self.sent += 1
            refusal = msgspec.json.encode({"reason": "too-many-requests", "detail": "later"})
            return Response(429, content=refusal, headers={"retry-after": "60"})

    transport = BusyTransport(running)
    with open_agent(running, tmp_path / "agent.db", transport=transport) as agent:
        play(agent)
        assert not agent.flush(0.3)
        sent = transport.sent
        assert not agent.flush(0.1)
        assert (transport.sent, agent.trouble) == (sent, "later")


FORK = """
import os, sys
import numpy as np
from fedcascade import connect

agent = connect(sys.argv[1], store=sys.argv[2], token=sys.argv[3], transport=None)
agent.recommend(np.eye(3), 1)
child = os.fork()
if child == 0:
    for use in (lambda: agent.recommend(np.eye(3), 1), lambda: agent.feedback(1, 0), agent.leave, agent.open_lists):
        try:
            use()
        except ValueError as error:
            print(error, flush=True)
    agent.close()
    sys.exit(0)  # with all the endings that Python has
os.waitpid(child, 0)
for _ in range(3):
    agent.feedback(agent.recommend(np.eye(3), 1), 0)
os._exit(0)  # as if killed
"""


def test_a_fork_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, "sqlite:///store.db").start()
    try:
        running = process.connect()
        [token] = running.operator.create_tokens()
        command = [sys.executable, "-c", FORK, process.url, str(tmp_path / "agent.db"), token]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
        lines = ended.stdout.splitlines()
        assert len(lines) == 4, ended.stderr
        assert all(": connect after the fork" in line for line in lines)
        with connect(process.url, store=str(tmp_path / "agent.db")) as agent:
            assert agent.memory.state.local.arrivals == 4
            assert agent.memory.state.local.buffer.rounds + agent.memory.state.local.unanswered.rounds == 3
        running.transport.close()
    finally:
        process.stop()


def test_a_full_disk_refuses_feedback_and_nothing_counts_twice(running: RunningService, tmp_path: Path) -> None:
    with open_agent(running, tmp_path / "agent.db", policy=None, min_observations=10**6) as agent:
        shown = agent.recommend(np.eye(D), 1)
        database = agent.memory.database
        assert isinstance(database, AgentFile)
        [[pages]] = database._run("PRAGMA page_count")
        database._run(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OSError, match=r"full.*nothing has changed"):
            [agent.recommend(np.eye(D), 1) for _ in range(10_000)]
        arrivals = agent.memory.state.local.arrivals
        database._run("PRAGMA max_page_count = 100000")
        agent.recommend(np.eye(D), 1)
        assert agent.memory.state.local.arrivals == arrivals + 1
        agent.feedback(shown, 0)
        assert agent.buffered == 1


def test_lists_expire_by_number(running: RunningService, tmp_path: Path) -> None:
    with open_agent(running, tmp_path / "agent.db", keep_lists=3) as agent:
        shown = [agent.recommend(np.eye(D), 2) for _ in range(5)]
        assert [waiting.impression for waiting in agent.open_lists()] == [each.impression for each in shown[2:]]
        assert agent.open_lists()[0].items == tuple(shown[2].items)
        agent.feedback(shown[2], 0)
        assert [waiting.impression for waiting in agent.open_lists()] == [each.impression for each in shown[3:]]
        kept = "a list expires after 3 newer ones or 365 days"
        with pytest.raises(ValueError, match=f"no open list {shown[0].impression}: {kept}"):
            agent.feedback(shown[0], 0)


def test_lists_expire_by_time_also_across_restarts(running: RunningService, tmp_path: Path) -> None:
    now = [1e9]
    options: dict[str, Any] = {"keep_seconds": 86_400.0, "clock": Clock(now=lambda: now[-1])}
    with open_agent(running, tmp_path / "agent.db", **options) as agent:
        first = agent.recommend(np.eye(D), 2)
        now.append(1e9 + 50_000)
        second = agent.recommend(np.eye(D), 2)
        assert [waiting.shown_at for waiting in agent.open_lists()] == [1e9, 1e9 + 50_000]
    now.append(1e9 + 100_000)
    with open_agent(running, tmp_path / "agent.db", new=False, **options) as agent:
        assert [waiting.impression for waiting in agent.open_lists()] == [second.impression]
        with pytest.raises(ValueError, match=rf"no open list {first.impression}: .* or 1 days"):
            agent.feedback(first.impression, 0)
        agent.feedback(second.impression, 1)
        assert agent.open_lists() == []


def test_lengths_and_categories_may_change_at_every_call(running: RunningService, tmp_path: Path) -> None:
    with open_agent(running, tmp_path / "agent.db") as agent:
        for k in (1, 3, 2):
            assert len(agent.recommend(np.eye(D), k).items) == k
    with open_agent(running, tmp_path / "agent.db", new=False, oracle=PerCategory(length=3, limit=1)) as agent:
        for categories, length in (([0, 0, 0], 1), ([0, 1, 2], 3), ([5, 5, 1], 2)):
            assert len(agent.recommend(np.eye(D), categories=categories).items) == length
