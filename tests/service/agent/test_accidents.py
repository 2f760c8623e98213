"""Unlucky days, with a real server process and real files: agents go on, nothing counts twice, what is lost is said.

Each test plays an accident that happens: a backup is restored, a file is copied, a clock is wrong, the operator changes
the terms, the server answers nonsense.
"""

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from httpx2 import Response

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.learning.confidence import Constant
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import fetch_terms
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.pool import AgentPool, PoolAgent, RemoteAgent
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import Clock

from ..helpers import RunningService, ServerProcess, serve_in_process

D = 3
TALKATIVE = replace(POLICIES["fedc3ucb-h"], trigger=Always())


class Server:
    """A server process on a file that can be backed up and restored while the server is down."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.path = folder / "store.db"
        self.process = ServerProcess(folder, f"sqlite:///{self.path}", *options).start()
        self.running = self.process.connect()

    def restart(self, *options: str, before: Callable[[], object] = lambda: None) -> None:
        """Stop the server, do something to its file, and start it again."""
        self.running.transport.close()
        self.process.stop()
        before()
        self.process.options = (*self.process.options, *options)
        self.process.start()
        self.running = self.process.connect()

    def back_up(self) -> None:
        self.restart(before=lambda: shutil.copy(self.path, self.path.with_suffix(".backup")))

    def restore(self) -> None:
        """Put the backup into the place of the store, as a careful person does it: no stray journals."""

        def copy() -> None:
            for path in self.path.parent.glob("store.db*"):
                path.unlink()
            shutil.copy(self.path.with_suffix(".backup"), self.path)

        self.restart(before=copy)

    def connect(self, store: Path, **options: Any) -> RemoteAgent:
        [token] = self.running.operator.create_tokens() if not store.exists() else [None]
        chosen = dict[str, Any](policy=TALKATIVE, min_observations=0, pauses=(0.005, 0.2)) | options
        return connect(self.process.url, store=str(store), token=token, **chosen)

    def count_rounds(self) -> int:
        return self.running.operator.fetch_overview().rounds

    def close(self) -> None:
        self.running.transport.close()
        self.process.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    served = Server(tmp_path)
    yield served
    served.close()


def play(agent: RemoteAgent, rounds: int, scale: float = 1.0) -> None:
    for _ in range(rounds):
        agent.feedback(agent.recommend(scale * np.eye(D), 1), 0)


def play_and_flush(agent: RemoteAgent, rounds: int, scale: float = 1.0) -> None:
    play(agent, rounds, scale)
    assert agent.flush(30), agent.trouble


def held_of(agent: RemoteAgent) -> Statistics:
    """What the server says that it holds of an agent."""
    return agent.client.fetch_standing().unpack_held(D)


def test_a_restored_server_gets_back_what_it_has_lost(server: Server, tmp_path: Path) -> None:
    """Five uploads are in the backup and five came later; nobody tells the server that it was restored."""
    with server.connect(tmp_path / "agent.db") as agent:
        play_and_flush(agent, 5)
        server.back_up()
        play_and_flush(agent, 5)
        before, epoch = held_of(agent), fetch_terms(server.running.transport).epoch
        server.restore()
        assert server.count_rounds() == 5
        play_and_flush(agent, 1)
        assert server.count_rounds() == 11
        assert agent.lost == 0
        grown = held_of(agent) - before
        assert (grown.count, grown.clicks, grown.rounds) == (1, 1, 1)
        assert np.array_equal(np.diag(grown.gram), grown.moment)  # one unit vector
        assert fetch_terms(server.running.transport).epoch not in ("", epoch)


def test_an_agent_that_enrolled_after_the_backup_comes_back_by_itself(server: Server, tmp_path: Path) -> None:
    server.back_up()
    with server.connect(tmp_path / "agent.db") as agent:
        number = agent.id
        play_and_flush(agent, 6)
        server.restore()
        with server.connect(tmp_path / "other.db") as other:
            assert other.id != number
            play_and_flush(other, 2)
        play_and_flush(agent, 1)
        assert agent.id == number
        assert (server.count_rounds(), held_of(agent).rounds, agent.lost) == (9, 7, 0)
    with server.connect(tmp_path / "agent.db") as again:
        play_and_flush(again, 1)
        assert (again.id, server.count_rounds()) == (number, 10)


def test_an_old_copy_of_an_agents_file_goes_on(server: Server, tmp_path: Path) -> None:
    path, copy = tmp_path / "agent.db", tmp_path / "copy.db"
    with server.connect(path) as agent:
        play_and_flush(agent, 3)
    shutil.copy(path, copy)
    with server.connect(path) as agent:
        play_and_flush(agent, 4)
    with server.connect(copy) as old:
        play_and_flush(old, 2, 0.5)
        assert "copy" in (old.trouble or "")
        assert (server.count_rounds(), old.unsent) == (9, 0)
        play_and_flush(old, 1)
        assert (server.count_rounds(), old.trouble) == (10, None)


def test_two_copies_of_an_agents_file_run_at_once_and_count_once(server: Server, tmp_path: Path) -> None:
    """The file is copied while an upload waits in it, so both have that one too."""
    path, copy = tmp_path / "agent.db", tmp_path / "copy.db"
    with server.connect(path) as agent:
        play_and_flush(agent, 3)
        agent.client.transport.close()  # the network is gone
        play(agent, 1)
    shutil.copy(path, copy)
    with server.connect(path) as first, server.connect(copy) as second:
        games = (first, 10, 0.5), (second, 10, 0.25)  # users who see different items
        threads = [threading.Thread(target=play_and_flush, args=game) for game in games]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert first.flush(30)
        assert second.flush(30)
        assert server.count_rounds() == 3 + 1 + 20
        assert (first.lost, second.lost) == (0, 0)
        expected = 4.0 + 10 * 0.5**2 + 10 * 0.25**2
        assert np.trace(held_of(first).gram) == expected


def test_a_clock_a_day_ahead_is_corrected(server: Server, tmp_path: Path) -> None:
    offsets = [86_400.0]
    with server.connect(tmp_path / "agent.db", clock=Clock(now=lambda: time.time() + offsets[-1])) as agent:
        play_and_flush(agent, 40)
        offsets.append(0.0)
        play_and_flush(agent, 3)
    with server.connect(tmp_path / "agent.db") as again:
        play_and_flush(again, 1)
        assert (server.count_rounds(), again.trouble) == (44, None)


def test_agents_hear_of_other_terms_at_their_next_exchange(server: Server, tmp_path: Path) -> None:
    """Policy, regulariser, exploration and bounds, of a single agent and of all agents of a pool."""
    options = ("--policy", "population", "--lambda", "2.5", "--beta", "0.25", "--longest-list", "7", "--take-over")
    tokens = server.running.operator.create_tokens(3)
    with AgentPool(server.process.url, store=str(tmp_path / "agents.db"), tokens=tokens, min_observations=0) as pool:
        members = [pool.get(f"user-{user}") for user in range(3)]
        for member in members:
            speak(member)
        assert pool.flush(30), pool.trouble
        assert {member.memory.policy.confidence for member in members} == {Constant(beta=10.5)}
        server.restart(*options)
        for member in members:
            speak(member)
        assert pool.flush(30), pool.trouble
        for member in (*members, pool.get("newcomer")):
            assert (member.memory.policy.name, member.memory.policy.confidence) == ("population", Constant(beta=0.25))


def speak(agent: PoolAgent) -> None:
    """Play a round that is sent, whatever the server's policy says."""
    agent.memory.policy = replace(agent.memory.policy, trigger=Always())
    agent.feedback(agent.recommend(np.eye(D), 1), 0)


def test_an_agent_keeps_what_it_has_under_other_terms(server: Server, tmp_path: Path) -> None:
    options = ("--policy", "population", "--lambda", "2.5", "--longest-list", "7", "--take-over")
    with server.connect(tmp_path / "agent.db", policy=None) as agent:
        play(agent, 12)
        agent.memory.policy = replace(agent.memory.policy, trigger=Always())
        play_and_flush(agent, 1)
        assert agent.memory.policy.name == "fedc3ucb-h"
        buffered, rounds = agent.buffered, server.count_rounds()
        server.restart(*options)
        play_and_flush(agent, 1)
        assert (agent.memory.policy.name, agent.memory.policy.lambda_) == ("population", 2.5)
        assert server.count_rounds() == rounds + 1 + buffered
        with pytest.raises(ValueError, match="k must be <= 7"):
            agent.recommend(np.eye(D), 8)
        number = agent.memory.state.local.download.statistics.rounds
    with server.connect(tmp_path / "agent.db", policy=None) as again:
        assert (again.memory.policy.name, again.memory.state.local.download.statistics.rounds) == ("population", number)


@pytest.mark.parametrize("version", [5, 8])
def test_a_file_of_another_version_is_refused_in_one_line(server: Server, tmp_path: Path, version: int) -> None:
    path = tmp_path / "agent.db"
    server.connect(path).close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(ValueError, match=rf"file version 7, got {version}: use .*[^\n]$"):
        server.connect(path)


class LyingTransport:
    """Carries requests to a real server and changes what comes back."""

    def __init__(self, running: RunningService) -> None:
        self.running = running
        self.change: Callable[[str, Response], Response] = lambda _, reply: reply

    def send(self, method: str, path: str, body: bytes, headers: Any) -> Response:
        return self.change(path, self.running.transport.send(method, path, body, headers))

    def close(self) -> None:
        """Nothing to close."""


def edit_answer(**changes: Any) -> Callable[[str, Response], Response]:
    """Change fields of answers to uploads."""

    def change(path: str, reply: Response) -> Response:
        if path != wire.EXCHANGES or reply.status_code != 200:
            return reply
        fields = msgspec.msgpack.decode(reply.content) | changes
        return Response(200, content=msgspec.msgpack.encode(fields))

    return change


def pack(gram: np.ndarray, moment: np.ndarray) -> bytes:
    return wire.pack_numbers(Statistics(np.asarray(gram, float), np.asarray(moment, float), 9, 3, 5))


BROKEN = {
    "undecodable": lambda path, reply: Response(200, content=b"\xc1") if path == wire.EXCHANGES else reply,
    "another upload's": edit_answer(sequence=77),
    "absurd counts": edit_answer(count=2**62, rounds=2**62),
    "absurd rounds": edit_answer(system_rounds=2**63, agents=2**63),
    "another dimension": edit_answer(numbers=bytes(8 * 5)),
    "not definite": edit_answer(numbers=pack(-50 * np.eye(D), np.zeros(D))),
    "not a number": edit_answer(numbers=pack(np.full((D, D), np.nan), np.zeros(D))),
    "infinite": edit_answer(numbers=pack(np.eye(D), np.full(D, np.inf))),
    "more clicks than items": edit_answer(count=1, clicks=5),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_agent_survives_any_answer(tmp_path: Path, what: str) -> None:
    """It skips the answer and says so, keeps what it has learned itself, and goes on; also after a restart."""
    with serve_in_process(tmp_path / "store.db") as running:
        [token] = running.operator.create_tokens()
        transport = LyingTransport(running)
        options: dict[str, Any] = {"policy": TALKATIVE, "min_observations": 0, "pauses": (0.005, 0.05)}
        store = str(tmp_path / "agent.db")
        with connect("", store=store, token=token, transport=transport, **options) as agent:
            play_and_flush(agent, 2)
            transport.change = BROKEN[what]
            play(agent, 2)
            assert agent.flush(20), agent.trouble
            assert agent.trouble is not None
            assert agent.memory.state.local.decision.theta.max() > 0
        with connect("", store=store, transport=transport, **options) as agent:
            assert agent.unsent == 0
            transport.change = lambda _, reply: reply
            play_and_flush(agent, 1)
            assert (agent.trouble, agent.lost) == (None, 0)
            assert running.operator.fetch_overview().rounds == 5
            assert agent.memory.state.local.download.statistics.rounds == 5


def test_an_answer_of_another_epoch_makes_the_agent_compare(tmp_path: Path) -> None:
    receipt = {"epoch": "9-elsewhere", "position": 1, "proof": bytes(16)}
    with serve_in_process(tmp_path / "store.db") as running:
        [token] = running.operator.create_tokens()
        transport = LyingTransport(running)
        looks: list[str] = []
        with connect("", store=str(tmp_path / "agent.db"), token=token, transport=transport, policy=TALKATIVE,
                     min_observations=0, pauses=(0.005, 0.05)) as agent:  # fmt: skip
            play_and_flush(agent, 1)
            lie = edit_answer(receipt=receipt)
            transport.change = lambda path, reply: looks.append(path) or lie(path, reply)  # type: ignore[func-returns-value]
            play_and_flush(agent, 1)
            assert looks == [wire.EXCHANGES, f"/v1/agents/{agent.id}"]
            assert running.operator.fetch_overview().rounds == 2


def test_an_invented_receipt_begins_no_epoch(tmp_path: Path) -> None:
    """Only a receipt that this server gave proves that its log was longer."""
    with serve_in_process(tmp_path / "store.db") as running:
        [token] = running.operator.create_tokens()
        epoch = fetch_terms(running.transport).epoch
        transport = LyingTransport(running)
        with connect("", store=str(tmp_path / "agent.db"), token=token, transport=transport, policy=TALKATIVE,
                     min_observations=0) as agent:  # fmt: skip
            play_and_flush(agent, 1)
            invented = wire.Receipt(epoch=epoch, position=10**6, proof=bytes(16))
            agent.memory.update(lambda state: (state._replace(receipt=invented), None))
            play_and_flush(agent, 1)
        assert fetch_terms(running.transport).epoch == epoch


@contextmanager
def connect_to_liar(folder: Path) -> Iterator[tuple[RemoteAgent, LyingTransport]]:
    """An agent of a server in this process, and the transport between them, which changes replies as it is told."""
    with serve_in_process(folder / "store.db") as running:
        [token] = running.operator.create_tokens()
        transport = LyingTransport(running)
        with connect("", store=str(folder / "agent.db"), token=token, transport=transport, policy=TALKATIVE,
                     min_observations=0, pauses=(0.005, 0.05)) as agent:  # fmt: skip
            yield agent, transport


def test_an_upload_that_the_server_never_takes_is_given_up_and_counted_as_lost(tmp_path: Path) -> None:
    def refuse(path: str, reply: Response) -> Response:
        if path != wire.EXCHANGES:
            return reply
        return Response(422, content=msgspec.json.encode({"reason": "impossible", "detail": "no data has it"}))

    with connect_to_liar(tmp_path) as (agent, transport):
        transport.change = refuse
        play(agent, 3)
        assert agent.flush(20)
        assert (agent.unsent, agent.lost, agent.trouble) == (0, 3, "no data has it")


def test_an_unexpected_error_is_said_and_does_not_end_the_thread(tmp_path: Path) -> None:
    def fail(path: str, reply: Response) -> Response:
        raise RuntimeError("a bug")

    with connect_to_liar(tmp_path) as (agent, transport):
        transport.change = fail
        play(agent, 1)
        assert not agent.flush(0.2)
        assert agent.trouble == "a bug"
        transport.change = lambda _, reply: reply
        assert agent.flush(10)
        assert agent.trouble is None
