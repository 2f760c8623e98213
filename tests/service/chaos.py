"""Kill servers, verifiers, agents and databases at random moments, again and again; then count.

Every upload carries a unit vector of its own, so the diagonal of the server's gram shows 0 for lost and 2 for doubled.
Agents enrol all the time, some change their minds on the way, and in half of the worlds some leave and are forgotten:
nothing may be left of what an agent sent before a change, nor of an agent that has left.

The run is cut into worlds of a few hundred kills, one after the other: a SQLite file with one server, then a PostgreSQL
primary with a synchronous standby and two servers, and so on. Each world has a seed and ends with a count.

Run it as a program: ``python tests/service/chaos.py --kills 1000``. Ctrl-C ends the world under way in peace, and
counts. With ``--folder``, the next run goes on after the worlds that were finished. One process starts all others by
forking, so that a restart takes milliseconds and not the seconds of importing.
"""

import argparse
import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.federation.warm_start import precompile_agent
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.pool import RemoteAgent
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.dashboard.routes import build_dashboard
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server import serve
from fedcascade.service.server.serve import ServerSettings
from fedcascade.service.server.settings import FOR_SIMULATIONS, Limits
from fedcascade.service.server.state import ServerState, replay_log, warm_up
from fedcascade.service.server.verifier import SignatureVerifier
from fedcascade.service.store.open import open_store

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a program, this file has no package around it
from tests.service.postgres import PostgresPair, run_pair, take_port

DIMENSION = 12
# Changes are told, not found: unit vectors have nothing in common.
POLICY = POLICIES["population"].with_constants(drift="restart", threshold=1e9, limit=1e9)
SPEAKS_ALWAYS = replace(POLICY, trigger=Always())
CHANGES = ((), (5,), (3, 8))  # before which uploads an agent's user changes, by turns
TOKEN = "the-operators-token-in-chaos"
CRASHED = 70
# Of a hundred kills in a world. At least one of each kind dies.
SHARES = {
    "sqlite": {"server": 40, "verifier": 16, "agent": 44},
    "postgres": {"server": 36, "verifier": 16, "agent": 38, "failover": 10},
}
SERVERS = {"sqlite": 1, "postgres": 2}
KINDS = ("server", "verifier", "agent", "failover")
COUNTED = ("agents", "left", "resets", "uploads")
FAULTS = ("lost", "doubled", "misplaced", "replay_differs", "restores")


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
    serve.run_server(settings, lambda _: None, lambda service: [build_dashboard(service)])


def run_agent(folder: Path, number: int, port: int, stop: Path, *, may_leave: bool) -> None:
    """An agent process: lives one identity after the other, and goes on where its predecessor was killed."""
    url = f"http://127.0.0.1:{port}"
    generation = len(list(folder.glob(f"agent-{number}-*.done")))
    while not stop.exists() or list(folder.glob(f"agent-{number}-{generation}.db")):
        path = folder / f"agent-{number}-{generation}.db"
        leaving, changes = path.with_suffix(".leaving"), CHANGES[(number + generation) % len(CHANGES)]
        if not leaving.exists():
            agent = patiently(partial(enrolled, url, path))
            live(agent, changes)
            note_life(path, agent.id, changes)
        if may_leave and (number + generation) % 4 == 0:
            leaving.touch()
            leave(url, path)
            path.with_suffix(".life").unlink(missing_ok=True)
        path.with_suffix(".done").touch()
        path.rename(path.with_suffix(".old"))
        generation += 1


def note_life(path: Path, agent: int, changes: tuple[int, ...]) -> None:
    """Write down what the server must hold of an agent that has come to its end."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"agent": agent, "changes": changes}), encoding="utf-8")
    draft.replace(path.with_suffix(".life"))


def leave(url: str, path: Path) -> None:
    """Be forgotten; a predecessor may have been killed before or after it was."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        try:
            agent = connect(url, store=str(path), transport=HttpTransport(url, verify=False), policy=SPEAKS_ALWAYS)
        except Refused:  # the file is empty, and without a token nobody enrols
            return
        try:
            agent.leave()
        except ConnectionError:
            time.sleep(0.02)
        except Refused as refusal:
            if refusal.reason in ("unrecognised", "no-such-agent"):
                return
            time.sleep(0.02)
        else:
            return
        finally:
            agent.close()
    raise TimeoutError(f"the agent of {path.name} could not leave")


def enrolled(url: str, path: Path) -> RemoteAgent:
    """An agent on its file; a new one gets a token first."""
    token = None
    if not path.exists() or path.stat().st_size == 0 or not path.with_suffix(".token").exists():
        transport = HttpTransport(url, verify=False)
        [token] = OperatorClient(transport, TOKEN).create_tokens()
        transport.close()
        path.with_suffix(".token").write_text(token, encoding="utf-8")
    token = path.with_suffix(".token").read_text(encoding="utf-8")
    transport = HttpTransport(url, verify=False)  # plain http: certificates would be read for nothing
    return connect(
        url,
        store=str(path),
        token=token,
        policy=SPEAKS_ALWAYS,
        min_observations=0,
        pauses=(0.02, 1.0),
        transport=transport,
    )


def patiently(attempt: Callable[[], RemoteAgent]) -> RemoteAgent:
    """Enrolment needs a server: try until there is one."""
    end = time.monotonic() + 180
    while True:
        try:
            return attempt()
        except (ConnectionError, Refused):
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def live(agent: RemoteAgent, changes: tuple[int, ...]) -> None:
    """Upload each unit vector once; lists that a predecessor left open get their feedback first.

    To say twice before the same list that the user has changed is to say it once.
    """
    for waiting in agent.open_lists():
        agent.feedback(waiting.impression, 0)
    for axis in range(agent.memory.state.local.arrivals, DIMENSION):
        item = np.zeros((1, DIMENSION), np.float32)
        item[0, axis] = 1.0
        if axis in changes:
            agent.restart()
        agent.feedback(agent.recommend(item, 1), 0)
        time.sleep(0.005)
    if not agent.flush(300):
        raise TimeoutError(f"agent {agent.id} was not answered: {agent.trouble}")
    agent.close()


def fork(work: Callable[[], None]) -> int:
    """Do some work in a child process, in a session of its own, which Ctrl-C does not reach; its id."""
    child = os.fork()
    if child:
        return child
    code = CRASHED
    logging.disable(logging.WARNING)  # stores that are away are what this is about
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        work()
        code = 0
    except BaseException as error:
        print(f"chaos: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def read_position(port: int) -> int:
    """How far the log of a server is; -1 while it does not answer."""
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        return int(float(re.search(rb"^fedcascade_log_position (\S+)", reply.read(), re.MULTILINE)[1]))  # type: ignore[index]
    return -1


def find_children(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    children = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += [int(word) for word in path.read_text(encoding="utf-8").split()]
    return children


def reap(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


class World:
    """Servers and agents on one store, and a database with a standby where there is one; each can be killed."""

    def __init__(self, folder: Path, kind: str, agents: int, seed: int, pair: PostgresPair | None) -> None:
        (folder / "operator.token").write_text(TOKEN, encoding="utf-8")
        (folder / "operator.token").chmod(0o600)
        self.folder, self.kind, self.pair = folder, kind, pair
        self.store = f"sqlite:///{folder}/store.db" if pair is None else pair.url
        open_store(self.store).close()
        self.random = random.Random(f"{kind} {seed}")
        self.stop, self.may_leave = folder / "stop", seed % 4 in (0, 3)
        self.ports = [take_port() for _ in range(SERVERS[kind])]
        self.servers = {port: self._start_server(port) for port in self.ports}
        self.agents = {number: self._start_agent(number) for number in range(agents)}
        self.killed: Counter[str] = Counter()
        self.position = 0

    def _start_server(self, port: int) -> int:
        return fork(lambda: run_server(self.store, self.folder, port))

    def _start_agent(self, number: int) -> int:
        port = self.ports[number % len(self.ports)]
        return fork(lambda: run_agent(self.folder, number, port, self.stop, may_leave=self.may_leave))

    def draw_victims(self, kills: int, only: tuple[str, ...]) -> list[str]:
        """Who dies, in which order: each kind by its share."""
        shares = {kind: share for kind, share in SHARES[self.kind].items() if kind in only}
        kinds, weights = list(shares), list(shares.values())
        victims = [*kinds, *self.random.choices(kinds, weights, k=max(0, kills - len(kinds)))][:kills]
        self.random.shuffle(victims)
        return victims

    def kill(self, victim: str) -> None:
        """After a random while, somebody dies, and is started again."""
        self.revive_servers()
        draw = self.random.random()
        if draw < 0.6 or victim == "failover":
            self._wait_until(lambda positions: max(positions) > self.position)
        elif draw < 0.9:  # else somebody may die while a server starts
            self._wait_until(lambda positions: min(positions) >= 0)
        time.sleep(self.random.uniform(0.0, 0.3))
        getattr(self, f"_kill_{victim}")()
        self.killed[victim] += 1

    def _wait_until(self, is_met: Callable[[list[int]], bool], seconds: float = 10.0) -> None:
        """Wait until the servers' positions in the log meet a condition, but not for long: death does not wait."""
        end = time.monotonic() + seconds
        while not is_met(positions := [read_position(port) for port in self.ports]) and time.monotonic() < end:
            time.sleep(0.02)
        self.position = max(self.position, *positions)

    def _kill_server(self) -> None:
        port = self.random.choice(self.ports)
        reap(self.servers[port])
        self.servers[port] = self._start_server(port)

    def _kill_verifier(self) -> None:
        """Kill the process beside a server that verifies for it; the server starts another."""
        end = time.monotonic() + 120
        while not (children := find_children(self.servers[self.random.choice(self.ports)])):
            if time.monotonic() > end:
                raise TimeoutError("no server has a verifier")
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(children), signal.SIGKILL)

    def _kill_agent(self) -> None:
        number = self.random.choice(list(self.agents))
        reap(self.agents[number])
        self.agents[number] = self._start_agent(number)

    def _kill_failover(self) -> None:
        assert self.pair is not None
        self.pair.fail_over()

    def revive_servers(self) -> None:
        """Start those servers again that ended by themselves, as a supervisor does: no database, no start."""
        for port, child in self.servers.items():
            if os.waitpid(child, os.WNOHANG)[0]:
                self.servers[port] = self._start_server(port)

    def finish(self) -> None:
        """Let the agents come to an end."""
        self.stop.touch()
        while self.agents:
            self.revive_servers()
            for number, child in list(self.agents.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    del self.agents[number]
                if ended and status:
                    raise SystemExit(f"agent {number} ended with {os.waitstatus_to_exitcode(status)}")
            time.sleep(0.02)

    def close(self) -> None:
        """Kill what is left."""
        for child in [*self.servers.values(), *self.agents.values()]:
            reap(child)


@contextmanager
def run_world(kind: str, agents: int, seed: int) -> Iterator[World]:
    """A world in a temporary folder."""
    with tempfile.TemporaryDirectory() as name, run_pair() if kind == "postgres" else nullcontext() as pair:
        world = World(Path(name), kind, agents, seed, pair)
        try:
            yield world
        finally:
            world.close()


def list_held(state: ServerState) -> dict[int, bytes]:
    """The diagonal of what the server holds of each agent."""
    return {agent: np.diag(state.server.holdings.gram[place]).tobytes() for agent, place in state.places.items()}


def expect_held(changes: tuple[int, ...]) -> bytes:
    """What the server must hold of an agent whose user changed before these uploads: nothing older than the last."""
    return (np.arange(DIMENSION) >= max(changes, default=0)).astype(float).tobytes()


def count(world: "World") -> dict[str, int]:
    """What the store holds: uploads lost, doubled and counted once, and whether replay agrees with snapshots.

    Where agents were forgotten, the log alone does not explain how others were grouped, and sums are compared. A
    restore is what a server takes a store for that lacks an upload which it has acknowledged.
    """
    store = open_store(world.store)
    with store.transaction():
        state = replay_log(store, POLICY, DIMENSION)
        entries = sum(1 for _ in store.read_entries(after=0))
        is_rewritten = store.find_head().rewritten > 0
        store.commit_snapshot(0, [])
        replayed = replay_log(store, POLICY, DIMENSION)
    store.close()
    found = list_held(state)
    lives = [json.loads(path.read_text()) for path in world.folder.glob("*.life")]
    expected = {life["agent"]: expect_held(tuple(life["changes"])) for life in lives}
    both = [(np.frombuffer(found[agent]), np.frombuffer(expected[agent])) for agent in found.keys() & expected.keys()]
    is_same = found == list_held(replayed) if is_rewritten else replayed.dump() == state.dump()
    return {
        "agents": len(state.places),
        "left": len(list(world.folder.glob("*.leaving"))),
        "resets": state.resets,
        "uploads": entries,
        "lost": sum(int((held < wanted).sum()) for held, wanted in both) + len(expected.keys() - found.keys()),
        "doubled": sum(int((held > 1).sum()) for held, _ in both) + len(found.keys() - expected.keys()),
        "misplaced": sum(found.get(agent) != wanted for agent, wanted in expected.items()),
        "replay_differs": int(not is_same) + int(state.server.holdings.rounds.sum() != state.rounds),
        "restores": int(state.epoch.name.partition("-")[0]) - 1,
    }


Row = dict[str, int | str]


def run_segment(kind: str, kills: int, agents: int, seed: int, only: tuple[str, ...]) -> tuple[Row, bool]:
    """Kill so many in a world of its own, then count; and whether nobody interrupted it."""
    began, is_whole = time.monotonic(), True
    with run_world(kind, agents, seed) as world:
        try:
            for number, victim in enumerate(world.draw_victims(kills, only), 1):
                world.kill(victim)
                rate = number / (time.monotonic() - began)
                tell(f"\r{kind} seed {seed}: {number} of {kills} kills, {victim:9} {rate:.1f} kills/s ")
        except KeyboardInterrupt:
            is_whole = False
            tell("interrupted, and will count ")
        world.finish()
        tell("counting\n")
        killed: Row = {kind: world.killed[kind] for kind in KINDS}
        row: Row = {"world": kind, "seed": seed, **killed, **count(world)}
    return row | {"seconds": round(time.monotonic() - began)}, is_whole


def tell(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def add_up(rows: list[Row]) -> Row:
    """The sums of all worlds."""
    names = [*KINDS, *COUNTED, *FAULTS, "seconds"]
    return {"world": "all", "seed": "", **{name: sum(int(row[name]) for row in rows) for name in names}}


def format_table(rows: list[Row]) -> str:
    """Rows under the names of their columns."""
    columns = list(rows[0])
    cells = [columns, *([str(row[name]) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def run(given: argparse.Namespace) -> list[Row]:
    """Run world after world until there were enough kills; those that the folder has are not run again."""
    kinds, victims = given.worlds.split(","), tuple(given.victims.split(","))
    results: Path | None = None if given.folder is None else given.folder / "worlds.jsonl"
    rows: list[Row] = []
    if results is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    while (left := given.kills - sum(int(row[kind]) for row in rows for kind in KINDS)) > 0:
        number = len(rows)
        kills = min(left, given.segment)
        try:
            row, is_whole = run_segment(kinds[number % len(kinds)], kills, given.agents, given.seed + number, victims)
        except KeyboardInterrupt:  # outside of the killing: this world is not counted
            break
        rows.append(row)
        if not is_whole:
            break
        if results is not None:
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="how many processes to kill")
    parser.add_argument("--segment", type=int, default=125, help="kills in one world")
    parser.add_argument("--worlds", default="sqlite,postgres", help="kinds of worlds, in turns")
    parser.add_argument("--victims", default=",".join(KINDS), help="who may die")
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0, help="of the first world; the next ones count on")
    parser.add_argument("--folder", type=Path, default=None, help="where finished worlds are noted, to go on later")
    parser.add_argument("--json", action="store_true", help="print the sums as JSON instead of the table")
    given = parser.parse_args()
    warm_up(POLICY, DIMENSION)  # here, so that no server has to
    precompile_agent(SPEAKS_ALWAYS, DIMENSION)
    SignatureVerifier(DIMENSION).prepare()
    rows = run(given)
    if not rows:
        sys.exit("interrupted before anything could be counted")
    total = add_up(rows)
    print(json.dumps(total) if given.json else format_table([*rows, total]))
    sys.exit(any(total[name] for name in FAULTS))


if __name__ == "__main__":
    main()
