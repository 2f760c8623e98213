"""Kill servers and agents at random moments, again and again; then count: nothing lost, nothing doubled.

Every upload carries a unit vector of its own, so the diagonal of the server's gram shows 0 for lost and 2 for doubled.
Run it as a program: ``python tests/service/chaos.py --kills 200``. One process starts all others by forking, so that a
restart takes milliseconds and not the seconds of importing.
"""

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.remote import RemoteAgent
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.serve import serve
from fedcascade.service.server.bounds import FOR_SIMULATIONS
from fedcascade.service.server.serve import ServerSettings
from fedcascade.service.server.service import Limits
from fedcascade.service.server.state import replay_log
from fedcascade.service.store.open import open_store

DIMENSION = 12
POLICY = POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.5)
SPEAKS_ALWAYS = replace(POLICY, trigger=Always())
TOKEN = "the-operators-token-in-chaos"
CRASHED = 70


def run_server(store: str, folder: Path, port: int) -> None:
    """A server, as ``fedcascade serve`` runs it."""
    settings = ServerSettings(
        store=store,
        policy=POLICY,
        dimension=DIMENSION,
        port=port,
        operator_token=folder / "operator.token",
        snapshot_every=50,
        limits=Limits(rate=1e6, burst=1e6),
        bounds=FOR_SIMULATIONS,
    )
    serve(settings, lambda _: None)


def run_agent(folder: Path, number: int, port: int, stop: Path) -> None:
    """An agent process: lives one identity after the other, and goes on where its predecessor was killed."""
    url = f"http://127.0.0.1:{port}"
    generations = len(list(folder.glob(f"agent-{number}-*.done")))
    while not stop.exists() or list(folder.glob(f"agent-{number}-{generations}.db")):
        path = folder / f"agent-{number}-{generations}.db"
        agent = patiently(partial(enrolled, url, path))
        live(agent)
        path.with_suffix(".done").touch()
        path.rename(path.with_suffix(".old"))
        generations += 1


def enrolled(url: str, path: Path) -> RemoteAgent:
    """An agent on its file; a new one gets a token first."""
    token = None
    if not path.exists() or path.stat().st_size == 0 or not path.with_suffix(".token").exists():
        transport = HttpTransport(url)
        [token] = OperatorClient(transport, TOKEN).create_tokens()
        transport.close()
        path.with_suffix(".token").write_text(token, encoding="utf-8")
    token = path.with_suffix(".token").read_text(encoding="utf-8")
    return connect(url, store=str(path), token=token, policy=SPEAKS_ALWAYS, min_observations=0, pauses=(0.02, 1.0))


def patiently(attempt: Callable[[], RemoteAgent]) -> RemoteAgent:
    """Enrolment needs a server: try until there is one."""
    end = time.monotonic() + 60
    while True:
        try:
            return attempt()
        except (ConnectionError, Refused):
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def live(agent: RemoteAgent) -> None:
    """Upload each unit vector once; lists that a predecessor left open get their feedback first."""
    for impression in sorted(agent._agent._open):
        agent.feedback(impression, 0)
    for axis in range(agent._agent.arrivals, DIMENSION):
        item = np.zeros((1, DIMENSION), np.float32)
        item[0, axis] = 1.0
        agent.feedback(agent.recommend(item, 1), 0)
        time.sleep(0.005)
    if not agent.flush(120):
        raise TimeoutError(f"agent {agent.id} was not answered: {agent.trouble}")
    agent.close()


def fork(work: Callable[[], None]) -> int:
    """Do some work in a child process; its id."""
    child = os.fork()
    if child:
        return child
    code = CRASHED
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"chaos: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_it_listens(port: int, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            reply = urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5)
            reply.close()
            return
        except OSError:
            time.sleep(0.02)


class Chaos:
    """Servers and agents that are killed and started again."""

    def __init__(self, folder: Path, store: str, agents: int, servers: int, seed: int) -> None:
        (folder / "operator.token").write_text(TOKEN, encoding="utf-8")
        open_store(store).close()
        self.folder, self.store = folder, store
        self.random = random.Random(seed)
        self.stop = folder / "stop"
        self.ports = [free_port() for _ in range(servers)]
        self.servers = {port: self.start_server(port) for port in self.ports}
        self.agents = {number: self.start_agent(number) for number in range(agents)}
        self.killed = {"server": 0, "agent": 0}

    def start_server(self, port: int) -> int:
        return fork(lambda: run_server(self.store, self.folder, port))

    def start_agent(self, number: int) -> int:
        port = self.ports[number % len(self.ports)]
        return fork(lambda: run_agent(self.folder, number, port, self.stop))

    def kill_one(self) -> None:
        """After a random while, somebody dies, most often a server, and is started again."""
        if self.random.random() < 0.85:  # else somebody may die while a server starts
            for port in self.ports:
                wait_until_it_listens(port)
        time.sleep(self.random.uniform(0.0, 0.4))
        if self.random.random() < 0.75:
            port = self.random.choice(self.ports)
            reap(self.servers[port])
            self.servers[port] = self.start_server(port)
            self.killed["server"] += 1
        else:
            number = self.random.choice(list(self.agents))
            reap(self.agents[number])
            self.agents[number] = self.start_agent(number)
            self.killed["agent"] += 1

    def finish(self) -> None:
        """Let the agents come to an end, then the servers."""
        self.stop.touch()
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in self.agents.values()]
        for child in self.servers.values():
            reap(child)
        if any(codes):
            raise SystemExit(f"agents ended with {codes}")


def reap(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def count(store_url: str) -> dict[str, int]:
    """What the store holds: uploads lost, doubled and counted once, and whether replay agrees with snapshots."""
    store = open_store(store_url)
    with store.transaction():
        state = replay_log(store, POLICY, DIMENSION)
        entries = sum(1 for _ in store.read_entries(after=0))
        store.delete_snapshots(before=1 << 60)
        replayed = replay_log(store, POLICY, DIMENSION)
    store.close()
    diagonals = np.array([np.diag(state.get_statistics(agent).gram) for agent in state.places])
    return {
        "uploads": entries,
        "agents": len(state.places),
        "lost": int((diagonals == 0).sum()),
        "doubled": int((diagonals > 1).sum()),
        "replay_differs": int(replayed.dump() != state.dump()),
    }


def chaos(folder: Path, store: str, *, kills: int, agents: int = 3, servers: int = 1, seed: int = 0) -> dict[str, int]:
    """Kill servers as often as asked, and agents beside them; then count."""
    run = Chaos(folder, store, agents, servers, seed)
    while run.killed["server"] < kills or run.killed["agent"] == 0:
        run.kill_one()
    run.finish()
    return {**run.killed, **count(store)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many servers to kill; agents die beside them")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--servers", type=int, default=1, help="more than one needs PostgreSQL")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", default=None, help="a SQLite file in a temporary folder if not given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = given.store or f"sqlite:///{folder}/store.db"
        found = chaos(folder, store, kills=given.kills, agents=given.agents, servers=given.servers, seed=given.seed)
    print(json.dumps(found))
    sys.exit(found["lost"] + found["doubled"] + found["replay_differs"] > 0)


if __name__ == "__main__":
    main()
