"""Agents whose users change, over a network and with restarts on both sides: nothing is lost, nothing counts twice."""

import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from httpx2 import Response

from fedcascade.federation.agent import Agent
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.server import Server
from fedcascade.federation.triggers import Always
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.ledger import renumber, withdraw
from fedcascade.service.agent.pool import AgentPool, PoolAgent, RemoteAgent

from ..helpers import RunningService, serve_in_process

D, K = 5, 3
LIVING = POLICIES["population"].with_constants(drift="restart")
PROBLEM = ProblemSize(users=1, dimension=D, list_length=K, rounds=1_000)
FIRST, SECOND = np.array([0.7, 0, 0, 0, 0.7]), np.array([-0.7, 0, 0, 0, 0.7])
TIES = np.arange(K, dtype=np.uint32)


class ServerOnFile:
    """A server in this process that can be stopped, started, backed up and restored; and a network that fails."""

    def __init__(self, folder: Path, policy: Policy = LIVING) -> None:
        self.folder, self.policy = folder, policy
        self.is_up = self.is_answered = True
        self._stack, self._lock, self._is_running = ExitStack(), threading.Lock(), False
        self.running: RunningService
        self.start()

    def start(self, **options: Any) -> None:
        serving = serve_in_process(self.folder / "store.db", policy=self.policy, dimension=D, **options)
        self.running, self._is_running = self._stack.enter_context(serving), True

    def stop(self) -> None:
        with self._lock:
            self._is_running = False
            self._stack.close()

    def back_up(self) -> None:
        self.stop()
        shutil.copy(self.folder / "store.db", self.folder / "backup.db")
        self.start()

    def restore(self) -> None:
        self.stop()
        for path in self.folder.glob("store.db*"):
            path.unlink()
        shutil.copy(self.folder / "backup.db", self.folder / "store.db")
        self.start()

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Carry a request to the server of now, as a transport."""
        with self._lock:
            if not (self.is_up and self._is_running):
                raise ConnectionError("the network is down")
            reply = self.running.transport.send(method, path, body, headers)
        if not self.is_answered:
            raise ConnectionError("the answer is lost")
        return reply

    def close(self) -> None:
        """Nothing to close: agents come and go."""

    def connect(self, path: Path, **options: Any) -> RemoteAgent:
        [token] = self.running.operator.create_tokens() if not path.exists() else [None]
        chosen = dict[str, Any](min_observations=0, pauses=(0.005, 0.05), problem=PROBLEM) | options
        return connect("", store=str(path), token=token, transport=self, **chosen)

    def sum_all(self) -> Statistics:
        """All that the server holds, of whomever."""
        assert self.running.writer is not None
        held: Statistics = self.running.writer.submit(lambda _, state: state.sum_statistics()).result()
        return held


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerOnFile]:
    served = ServerOnFile(tmp_path)
    yield served
    served.stop()


def draw_rounds(rounds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Items of a round, on the grid, and a uniform number for each."""
    random = np.random.Generator(np.random.Philox(key=seed))
    items = random.normal(size=(rounds, K, D))
    items[..., :-1] *= 0.7 / np.linalg.norm(items[..., :-1], axis=2, keepdims=True)
    items[..., -1] = 0.7
    return zip(round_to_grid(items.astype(np.float32)), random.random((rounds, K)), strict=True)


def click(listed: np.ndarray, draws: np.ndarray, theta: np.ndarray) -> int | None:
    attracted = np.flatnonzero(draws < np.clip(listed @ theta, 0, 1))
    return int(attracted[0]) if attracted.size else None


def play(agent: PoolAgent, theta: np.ndarray, rounds: int, seed: int = 1) -> list[Upload]:
    """Let a user of that taste come so often; returns the uploads."""
    uploads = []
    for items, draws in draw_rounds(rounds, seed):
        shown = agent.recommend(items, K, ties=TIES)
        upload = agent.feedback(shown, click(shown.features, draws, theta), draw=0.5)
        uploads += [] if upload is None else [upload]
    return uploads


def play_until_change(agent: PoolAgent, seed: int = 2) -> Upload:
    """Let a user of another taste come until its agent has found out; returns the reset."""
    for items, draws in draw_rounds(200, seed):
        shown = agent.recommend(items, K, ties=TIES)
        upload = agent.feedback(shown, click(shown.features, draws, SECOND), draw=0.5)
        if upload is not None and upload.cause is Cause.CHANGE:
            return upload
    raise AssertionError("the change was not found")


def flush(agent: PoolAgent) -> None:
    assert agent.flush(30), agent.trouble


def check_held(agent: PoolAgent) -> None:
    """The server holds of an agent what the agent knows of its user, to the bit."""
    flush(agent)
    assert agent.memory.state.local.own is not None
    held = agent.client.fetch_standing().unpack_held(D)
    own = agent.memory.state.local.own_total - agent.memory.state.local.buffer
    assert np.array_equal(held.gram, own.gram)
    assert np.array_equal(held.moment, own.moment)
    assert (held.count, held.clicks, held.rounds) == (own.count, own.clicks, own.rounds)


def test_restarts_change_no_bit_of_what_an_agent_does(server: ServerOnFile, tmp_path: Path) -> None:
    """Against an agent and a server in memory that never end: same lists, same changes, same estimates."""
    memory = Server(policy=LIVING, agents=1, dimension=D)
    others = Agent(id=0, policy=LIVING, problem=PROBLEM, oracle=TopK(length=K))
    resets, path = 0, tmp_path / "agent.db"
    agent = server.connect(path)
    for t, (items, draws) in enumerate(draw_rounds(320, 1)):
        if t % 9 == 0:
            agent.close()
            if t % 45 == 0:
                server.stop()
                server.start()
            agent = server.connect(path)
        shown, expected = agent.recommend(items, K, ties=TIES), others.recommend(items, TIES)
        assert shown.items.tolist() == expected.items.tolist()
        place = click(shown.features, draws, FIRST if t < 240 else SECOND)
        upload = agent.feedback(shown, place, draw=0.5, round_=t + 1)
        wanted = others.observe(expected, place, draw=0.5, round_=t + 1)
        assert (upload is None) == (wanted is None)
        if wanted is not None:
            resets += wanted.cause is Cause.CHANGE
            flush(agent)
            [[_, download]] = memory.receive(wanted)
            others.receive(download)
        assert np.array_equal(agent.estimate, others.state.decision.theta)
    assert resets == 1
    check_held(agent)
    agent.close()
    assert np.array_equal(server.sum_all().gram, memory.holdings[0].gram)


@pytest.mark.parametrize("moment", ["found, not sent", "sent, not answered"])
def test_an_agent_that_dies_around_its_reset_resets_once(server: ServerOnFile, tmp_path: Path, moment: str) -> None:
    path = tmp_path / "agent.db"
    agent = server.connect(path)
    play(agent, FIRST, 240)
    flush(agent)
    server.is_up, server.is_answered = moment != "found, not sent", False
    reset = play_until_change(agent)
    if server.is_up:
        server.is_answered = False
        assert not agent.flush(0.3)
    agent.close()  # which saves nothing: what follows could be another process
    server.is_up = server.is_answered = True
    with server.connect(path) as again:
        check_held(again)
        overview = server.running.operator.fetch_overview()
        assert (overview.resets, again.unsent, again.lost) == (1, 0, 0)
        assert again.memory.state.last_change == reset.sequence
        assert again.memory.state.local.own is not None
        assert server.sum_all().rounds == (again.memory.state.local.own_total - again.memory.state.local.buffer).rounds
        play(again, SECOND, 60, seed=3)
        check_held(again)


def test_a_reset_waits_until_it_hides_single_observations(server: ServerOnFile, tmp_path: Path) -> None:
    """Meanwhile the agent decides with what it keeps, also after a restart."""
    path = tmp_path / "agent.db"
    options: dict[str, Any] = {"min_observations": 90, "policy": LIVING}
    with server.connect(path, **options) as agent:
        play(agent, FIRST, 240)
        rounds = draw_rounds(200, 2)
        while not agent.memory.state.local.change_pending:
            items, draws = next(rounds)
            shown = agent.recommend(items, K, ties=TIES)
            assert agent.feedback(shown, click(shown.features, draws, SECOND), draw=0.5) is None
        estimate = agent.estimate
    with server.connect(path, **options) as again:
        assert np.array_equal(again.estimate, estimate)
        reset = play_until_change(again, seed=4)
        assert reset.statistics.count >= 90
        check_held(again)
        assert server.running.operator.fetch_overview().resets == 1


def test_answers_for_who_the_user_was_are_not_taken_for_the_new_one(server: ServerOnFile, tmp_path: Path) -> None:
    """Uploads wait while the network is down, and the change is found meanwhile: they are answered, in order."""
    with server.connect(tmp_path / "agent.db", policy=replace(LIVING, trigger=Always())) as agent:
        play(agent, FIRST, 240)
        flush(agent)
        server.is_up = False
        play(agent, FIRST, 3, seed=5)
        play_until_change(agent)
        play(agent, SECOND, 2, seed=6)
        estimate = agent.estimate
        server.is_up = True
        flush(agent)
        assert max(agent.estimate[0], estimate[0]) < -0.1  # with the old user's data it would be above 0
        check_held(agent)
        assert server.running.operator.fetch_overview().resets == 1


def test_a_restored_server_learns_again_that_a_user_has_changed(server: ServerOnFile, tmp_path: Path) -> None:
    with server.connect(tmp_path / "agent.db") as agent:
        play(agent, FIRST, 240)
        flush(agent)
        server.back_up()
        play(agent, FIRST, 40, seed=5)
        play_until_change(agent)
        play(agent, SECOND, 60, seed=6)
        check_held(agent)
        server.restore()
        play(agent, SECOND, 60, seed=7)
        check_held(agent)
        assert (server.running.operator.fetch_overview().resets, agent.lost) == (1, 0)


def test_a_change_that_waits_needs_nothing_of_what_a_restored_server_has_lost(
    server: ServerOnFile, tmp_path: Path
) -> None:
    with server.connect(tmp_path / "agent.db", policy=replace(LIVING, trigger=Always())) as agent:
        play(agent, FIRST, 240)
        flush(agent)
        server.back_up()
        play(agent, FIRST, 3, seed=5)
        flush(agent)
        server.is_up = False
        play_until_change(agent)
        server.restore()
        server.is_up = True
        check_held(agent)
        assert (server.running.operator.fetch_overview().resets, agent.lost) == (1, 0)


def test_a_copy_of_a_file_follows_the_change_that_the_other_one_found(server: ServerOnFile, tmp_path: Path) -> None:
    with server.connect(tmp_path / "agent.db") as agent:
        play(agent, FIRST, 240)
        flush(agent)
    shutil.copy(tmp_path / "agent.db", tmp_path / "copy.db")
    with server.connect(tmp_path / "agent.db") as agent:
        play_until_change(agent)
        play(agent, SECOND, 30, seed=6)
        check_held(agent)
    with server.connect(tmp_path / "copy.db", policy=replace(LIVING, trigger=Always())) as copied:
        play(copied, SECOND, 5, seed=8)
        check_held(copied)
        assert copied.trouble is None or "a change that this file does not" in copied.trouble
        assert server.running.operator.fetch_overview().resets == 1


def test_own_data_that_are_lost_are_what_the_server_holds_and_what_waits(server: ServerOnFile, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with server.connect(path, policy=POLICIES["population"]) as agent:
        play(agent, FIRST, 240)
        flush(agent)
        arrivals = agent.memory.state.local.arrivals
        agent.memory.put({"own": None})
    with server.connect(path) as again:
        assert again.memory.policy.name == "population"
        assert again.memory.state.local.own_total.rounds == arrivals
        play_until_change(again)
        check_held(again)
        assert server.running.operator.fetch_overview().resets == 1


def test_when_the_server_changes_its_policy_agents_go_on_under_it_and_back(tmp_path: Path) -> None:
    served = ServerOnFile(tmp_path)
    with served.connect(tmp_path / "agent.db", policy=None) as agent:
        play(agent, FIRST, 240)
        flush(agent)
        for policy in (POLICIES["fedc3ucb-h"], LIVING):
            served.stop()
            served.policy = policy
            served.start()
            play(agent, FIRST, 60, seed=9)
            flush(agent)
        assert agent.memory.policy.name == "population"
        play_until_change(agent)
        check_held(agent)
    served.stop()


def test_an_agent_that_leaves_after_a_change_leaves_nothing(server: ServerOnFile, tmp_path: Path) -> None:
    with server.connect(tmp_path / "other.db") as other:
        play(other, FIRST, 60, seed=11)
        flush(other)
        rounds = server.sum_all().rounds
        agent = server.connect(tmp_path / "agent.db")
        play(agent, FIRST, 240)
        play_until_change(agent)
        flush(agent)
        agent.leave()
        overview = server.running.operator.fetch_overview()
        assert (overview.active, server.sum_all().rounds) == (1, rounds)
    with sqlite3.connect(tmp_path / "agent.db") as connection:
        assert connection.execute("SELECT count(*) FROM pool_entry WHERE agent > 0").fetchone() == (0,)


def test_agents_of_a_pool_change_one_by_one(server: ServerOnFile, tmp_path: Path) -> None:
    @contextmanager
    def open_pool() -> Iterator[AgentPool]:
        tokens = server.running.operator.create_tokens(3)
        with AgentPool("", store=str(tmp_path / "pool.db"), tokens=tokens, transport=server, min_observations=0,
                       problem=PROBLEM, pauses=(0.005, 0.05), senders=2) as pool:  # fmt: skip
            yield pool

    with open_pool() as pool:
        for user in range(3):
            play(pool.get(str(user)), FIRST, 240, seed=user)
    with open_pool() as pool:
        play_until_change(pool.get("1"))
        for user in range(3):
            check_held(pool.get(str(user)))
        assert [pool.get(str(user)).memory.state.last_change > 0 for user in range(3)] == [False, True, False]
    assert server.running.operator.fetch_overview().resets == 1


def test_several_clicks_are_refused_before_anything_has_changed(server: ServerOnFile, tmp_path: Path) -> None:
    with server.connect(tmp_path / "agent.db") as agent:
        shown = agent.recommend(np.eye(D), K)
        with pytest.raises(ValueError, match="learns from one click of a list"):
            agent.feedback(shown, [0, 1])
        assert agent.buffered == agent.memory.state.local.buffer.count == 0
        agent.feedback(shown, 1)
        assert agent.unsent + agent.buffered > 0


def test_who_knows_that_a_user_has_changed_says_so_once(server: ServerOnFile, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with server.connect(path) as agent:
        play(agent, FIRST, 40)
        agent.restart()
        agent.restart()
    with server.connect(path) as again:
        play(again, SECOND, 40, seed=3)
        check_held(again)
        assert server.running.operator.fetch_overview().resets == 1
        assert server.sum_all().rounds == 40 - again.memory.state.local.buffer.rounds


def test_no_upload_is_a_reset_without_a_change(server: ServerOnFile, tmp_path: Path) -> None:
    with server.connect(tmp_path / "agent.db") as agent:
        uploads = play(agent, FIRST, 120)
        flush(agent)
        assert uploads
        assert all(upload.cause is not Cause.CHANGE for upload in uploads)
        check_held(agent)


def test_a_change_that_was_not_counted_gets_another_number_with_what_came_after_it(
    server: ServerOnFile, tmp_path: Path
) -> None:
    with server.connect(tmp_path / "agent.db", policy=replace(LIVING, trigger=Always())) as agent:
        play(agent, FIRST, 30)
        flush(agent)
        server.is_up = False
        play(agent, FIRST, 2, seed=2)
        agent.restart()
        play(agent, SECOND, 3, seed=3)
        assert [upload.cause for upload in agent.memory.state.outbox].count(Cause.CHANGE) == 1
        upload = agent.memory.state.outbox[0]
        agent.memory.update(lambda state: (renumber(state, upload, 40), None))
        [change] = agent.memory.state.outbox
        assert (change.cause, change.sequence, change.statistics.rounds) == (Cause.CHANGE, 41, 3)
        server.is_up = True
        check_held(agent)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_change_that_is_withdrawn_stays_pending(server: ServerOnFile, tmp_path: Path, is_lost: bool) -> None:
    with server.connect(tmp_path / "agent.db", policy=replace(LIVING, trigger=Always())) as agent:
        play(agent, FIRST, 30)
        flush(agent)
        server.is_up = False
        agent.restart()
        play(agent, SECOND, 3, seed=3)
        upload, memory = agent.memory.state.outbox[0], agent.memory
        memory.update(lambda state: (withdraw(memory.policy, state, upload, is_lost=is_lost), None))
        [change] = agent.memory.state.outbox
        assert change.cause is Cause.CHANGE
        assert change.statistics.rounds == (2 if is_lost else 3)
        server.is_up = True
        check_held(agent)
        assert agent.lost == is_lost
