"""Several processes on one store: each user is one agent, and every click counts once, for its own list."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade import AsyncAgentPool
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.database import AgentFile, StoreAway
from fedcascade.service.agent.memory import FencedOff
from fedcascade.service.agent.pool import AgentPool, PoolAgent

from ..helpers import CuttableTransport, RunningService, ServerProcess, serve_in_process
from ..postgres import PostgresNode, run_node
from ..proxy import Proxy

D = 3
OWN_DATA = replace(POLICIES["population"], trigger=Always())


@pytest.fixture(scope="module")
def node() -> Iterator[PostgresNode]:
    with run_node() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "agents.db")
    node: PostgresNode = request.getfixturevalue("node")
    name = f"pool{abs(hash(tmp_path))}"
    node.ask(f"CREATE DATABASE {name}")
    return node.url(name)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    with serve_in_process(tmp_path / "store.db", policy=OWN_DATA) as service:
        yield service


def open_pool(running: RunningService, store: str, *, tokens: int = 0, **options: Any) -> AgentPool:
    chosen = dict[str, Any](policy=OWN_DATA, min_observations=0, pauses=(0.005, 0.05)) | options
    chosen.setdefault("transport", CuttableTransport(running))
    return AgentPool("", store=store, tokens=running.operator.create_tokens(tokens) if tokens else [], **chosen)


def count_held(agent: PoolAgent) -> int:
    return agent.client.fetch_standing().rounds


def test_another_process_does_not_delete_the_log_under_a_file_that_this_one_opened_twice(tmp_path: Path) -> None:
    """Closing any descriptor of a file cancels this process's locks of it, also those of SQLite."""
    path = str(tmp_path / "agents.db")
    opened = f"with closing(AgentFile({path!r})) as file: print(*file.list_names())"
    program = f"from contextlib import closing\nfrom fedcascade.service.agent.database import AgentFile\n{opened}"
    with closing(AgentFile(path)) as file:
        for names in (["one"], ["one", "two"]):
            file.add_agent(names[-1])
            AgentFile(path).close()
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            assert done.stdout.split() == names


def test_a_list_of_one_process_gets_its_feedback_at_another(running: RunningService, store: str) -> None:
    with open_pool(running, store, tokens=9) as first, open_pool(running, store) as second:
        for turn in range(6):
            shown = first.get("ann").recommend(np.eye(D), 2)
            other = second.get("bob").recommend(np.eye(D), 2)
            with pytest.raises(ValueError, match=rf"user 'ann' \(agent \d+\) has no open list {other.impression}"):
                second.get("ann").feedback(other.impression, 0)
            second.get("ann").feedback(shown.impression, turn % 2)
            with pytest.raises(ValueError, match="takes feedback once"):
                first.get("ann").feedback(shown.impression, 0)
        assert first.flush(30), first.trouble
        assert second.flush(30), second.trouble
        ann = first.get("ann")
        assert (count_held(ann), ann.client.fetch_standing().clicks) == (6, 6)
        second.get("ann").memory.load()
        first_theta, second_theta = (pool.get("ann").estimate for pool in (first, second))
        np.testing.assert_array_equal(first_theta, second_theta)
        assert running.operator.fetch_overview().enrolled == 1


def test_processes_that_race_for_the_same_users_count_every_click_once(running: RunningService, store: str) -> None:
    users, rounds = 4, 12
    pools = [open_pool(running, store, tokens=users if number == 0 else 0) for number in range(3)]

    def play(pool: AgentPool) -> None:
        for turn in range(rounds):
            agent = pool.get(f"user-{turn % users}")
            agent.feedback(agent.recommend(np.eye(D), 1).impression, 0)

    try:
        threads = [threading.Thread(target=play, args=(pool,)) for pool in pools]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert all(pool.flush(30) for pool in pools), [pool.trouble for pool in pools]
        overview = running.operator.fetch_overview()
        assert (overview.enrolled, overview.rounds) == (users, len(pools) * rounds)
        assert pools[0].unsent == 0
    finally:
        for pool in pools:
            pool.close()


def test_what_a_closed_pool_has_not_sent_is_sent_by_the_next_one_at_once(running: RunningService, store: str) -> None:
    """An agent of the first pool would wait for 15 s before it retries; the next pool does not have to."""
    transport = CuttableTransport(running)
    with open_pool(running, store, tokens=3, transport=transport, pauses=(15.0, 15.0)) as pool:
        users = [pool.get(f"user-{user}") for user in range(3)]
        shown = [agent.recommend(np.eye(D), 1) for agent in users]
        transport.up = False
        for agent, each in zip(users, shown, strict=True):
            agent.feedback(each, 0)
        deadline = time.monotonic() + 30
        while pool.trouble is None and time.monotonic() < deadline:
            time.sleep(0.01)
    with open_pool(running, store) as pool:
        assert pool.flush(30), pool.trouble
        assert pool.unsent == 0
    assert running.operator.fetch_overview().rounds == 3


def test_a_list_whose_commit_was_lost_is_saved_by_the_next_attempt(
    running: RunningService, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list alone is new then, not the agent's version, which says nothing of the first attempt."""
    with open_pool(running, store, tokens=1) as pool:
        agent, transaction, lost = pool.get("ann"), pool._database.transaction, [True]

        @contextmanager
        def lose_one() -> Iterator[Any]:
            with transaction() as run:
                yield run
                if lost and run("SELECT count(*) FROM pool_list")[0][0]:
                    lost.clear()
                    raise StoreAway("the database went away before its commit")

        monkeypatch.setattr(pool._database, "transaction", lose_one)
        shown = agent.recommend(np.eye(D), 1)
        assert not lost
        assert [each.impression for each in agent.open_lists()] == [shown.impression]
        agent.feedback(shown.impression, 0)


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_commit_of_unknown_outcome_counts_once_although_another_process_has_changed_the_agent(
    running: RunningService, node: PostgresNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The agent's version, which the other process has changed, does not tell what became of the commit."""
    name = f"pool{abs(hash(tmp_path))}"
    node.ask(f"CREATE DATABASE {name}")
    list_, others, learned = np.eye(D)[:1], [True], 0
    with Proxy(node.port) as proxy:
        through = f"postgresql://postgres@127.0.0.1:{proxy.port}/{name}"
        with (
            open_pool(running, through, tokens=1) as pool,
            open_pool(running, node.url(name)) as other_pool,
        ):
            agent, other = pool.get("ann"), other_pool.get("ann")
            assert pool.flush(30), pool.trouble

            def change_agent(_: float) -> None:
                if others and threading.current_thread() is threading.main_thread():
                    others.clear()
                    other.learn(list_, None)

            monkeypatch.setattr("fedcascade.service.agent.memory.time.sleep", change_agent)
            while others:  # until it is not a commit of a background thread that is lost
                proxy.lose_commit = lost
                agent.learn(list_, 0)
                learned += 1
            monkeypatch.undo()
            assert agent.flush(30), agent.trouble
            assert other.flush(30), other.trouble
            total = agent.memory.update(lambda state: (state, state.local.own_total))
            assert (total.clicks, total.rounds) == (learned, learned + 1)
            assert running.operator.fetch_overview().rounds == learned + 1


def test_a_process_that_lost_its_lease_changes_nothing(running: RunningService, store: str) -> None:
    """The slow process gets the server's answer after another one has sent the same upload and has its answer."""
    stalled, go_on = threading.Event(), threading.Event()

    class SlowTransport(CuttableTransport):
        def send(self, method: str, path: str, body: bytes, headers: Any) -> Any:
            reply = super().send(method, path, body, headers)
            if path == "/v1/exchanges" and not stalled.is_set():
                stalled.set()
                assert go_on.wait(60)
            return reply

    with (
        open_pool(running, store, tokens=1, transport=SlowTransport(running)) as slow,
        open_pool(running, store) as fast,
    ):
        agent = slow.get("ann")
        agent.feedback(agent.recommend(np.eye(D), 1), 0)
        assert stalled.wait(30)
        other = fast.get("ann")
        assert not other.memory.acquire()  # while the lease lasts
        with fast._database.transaction() as run:
            run("UPDATE pool_agent SET lease_until = 1")
        assert other.flush(30), other.trouble
        go_on.set()
        assert agent.flush(30), agent.trouble
        assert (count_held(agent), agent.memory.state.confirmed.rounds, agent.lost) == (1, 1, 0)
        with pytest.raises(FencedOff):
            agent.memory.update(lambda state: (state, None), is_fenced=True)


def test_an_agent_that_left_at_one_process_is_new_at_another(running: RunningService, store: str) -> None:
    with open_pool(running, store, tokens=2) as first, open_pool(running, store) as second:
        agent, same = first.get("ann"), second.get("ann")
        agent.feedback(agent.recommend(np.eye(D), 1), 0)
        assert agent.flush(30), agent.trouble
        agent.leave()
        with pytest.raises(ValueError, match="closed"):
            same.recommend(np.eye(D), 1)
        again = second.get("ann")
        again.feedback(again.recommend(np.eye(D), 1), 0)
        assert again.flush(30), again.trouble
        assert running.operator.fetch_overview().rounds == 1


WORKER = """
import sys
import numpy as np
from dataclasses import replace
from fedcascade import AgentPool, POLICIES
from fedcascade.federation.triggers import Always

url, store, *tokens = sys.argv[1:]
policy = replace(POLICIES["population"], trigger=Always())
pool = AgentPool(url, store=store, tokens=tokens, policy=policy, min_observations=0)
print("ready", flush=True)
played = 0
while True:
    agent = pool.get(f"user-{played % 5}")
    agent.feedback(agent.recommend(np.eye(3), 1).impression, 0)
    played += 1
    print(played, flush=True)
"""


def test_workers_that_are_killed_lose_and_double_nothing(store: str, tmp_path: Path) -> None:
    """Two processes play the same users; when both are dead, a third sends what they have left."""
    process = ServerProcess(tmp_path, "sqlite:///store.db", "--policy", "population").start()
    try:
        running = process.connect()
        command = [sys.executable, "-c", WORKER, process.url, store]
        tokens = running.operator.create_tokens(5)
        children = [subprocess.Popen([*command, *tokens], stdout=subprocess.PIPE, text=True) for _ in range(2)]
        learned = 0
        for child in children:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(40)]
            os.kill(child.pid, signal.SIGKILL)
            learned += int("".join([*lines, child.stdout.read()]).split()[-1])
            child.wait()
            child.stdout.close()
        with AgentPool(process.url, store=store, policy=OWN_DATA, min_observations=0) as pool:
            wait_until(lambda: pool.unsent == 0 and pool.flush(1.0), 90)
            assert learned <= running.operator.fetch_overview().rounds <= learned + 2
            assert running.operator.fetch_overview().enrolled == 5
        running.transport.close()
    finally:
        process.stop()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)


def test_a_pool_waits_for_a_database_that_restarts(running: RunningService, node: PostgresNode) -> None:
    node.ask("CREATE DATABASE restarts")
    with open_pool(running, node.url("restarts"), tokens=2) as pool:
        agent = pool.get("ann")
        shown = agent.recommend(np.eye(D), 1)
        node.kill()
        restart = threading.Thread(target=node.start)
        restart.start()
        agent.feedback(shown.impression, 0)
        restart.join()
        assert pool.flush(60), pool.trouble
        assert count_held(agent) == 1


def test_an_async_pool_serves_users_at_the_same_time(running: RunningService, store: str) -> None:
    async def use() -> list[str | None]:
        tokens = running.operator.create_tokens(5)
        async with AsyncAgentPool("", store=store, tokens=tokens, policy=OWN_DATA, min_observations=0,
                                  transport=CuttableTransport(running)) as pool:  # fmt: skip

            async def play(user: str) -> None:
                shown = await pool.recommend(user, np.eye(D), 2)
                await pool.feedback(user, shown.impression, clicked=0)

            await asyncio.gather(*(play(f"user-{number % 5}") for number in range(20)))
            assert await asyncio.to_thread(pool.pool.flush, 30), pool.pool.trouble
            agent = await pool.get("user-1")
            await agent.learn(np.eye(D)[:2], clicked=1)
            assert await agent.flush(30), agent.trouble
            await (await pool.get("user-2")).erase()
            return [agent.trouble, pool.pool.trouble]

    assert asyncio.run(use()) == [None, None]
    assert (running.operator.fetch_overview().rounds, running.operator.fetch_overview().enrolled) == (21, 5)
