"""A web service with several workers on one store of agents, under load, with workers killed and the store restarted.

Users ask `examples/web-service/app.py` for lists and click on them, many at a time. Workers are killed at random, and
PostgreSQL is restarted. In the end, what the server holds of each user and what waits in the store must be the sum over
the lists that the user was shown, to the bit: a click that was lost, doubled or credited to another list changes it.

Run ``python benchmarks/web_service.py --store postgres --workers 4 --seconds 300 --restarts 2``. Without ``--kill``
seconds nothing is killed, which measures the throughput.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "web-service")]
from tests.service.helpers import ServerProcess  # noqa: E402
from tests.service.postgres import PostgresNode, run_node, take_port  # noqa: E402

from fedcascade import AgentPool  # noqa: E402
from fedcascade.learning.statistics import Statistics  # noqa: E402
from fedcascade.service.protocol.auth import create_token  # noqa: E402

FLOOR = 16
UNSURE = (httpx2.HTTPError, ConnectionError, OSError)


class Workers:
    """``uvicorn --workers``, whose parent replaces workers that die."""

    def __init__(self, workers: int, environment: dict[str, str], log: Path) -> None:
        self.port, self.killed = take_port(), 0
        command = [sys.executable, "-m", "uvicorn", "app:app", "--app-dir", str(ROOT / "examples" / "web-service")]
        options = ["--port", str(self.port), "--workers", str(workers), "--log-level", "warning"]
        self._log = log.open("w")
        self.process = subprocess.Popen(
            [*command, *options], env=os.environ | environment, stderr=self._log, stdout=self._log
        )

    def kill_one(self) -> None:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        alive = [child for child in children if b"multiprocessing.spawn" in Path(f"/proc/{child}/cmdline").read_bytes()]
        if alive:
            with suppress(ProcessLookupError):
                os.kill(int(random.choice(alive)), signal.SIGKILL)
                self.killed += 1

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._log.close()


class Users:
    """The users: what each was shown and clicked, as sums, and the times of their requests."""

    def __init__(self, users: int, dimension: int, catalogue: np.ndarray) -> None:
        self.sums = {f"user-{number}": Statistics.zero(dimension) for number in range(users)}
        self.catalogue, self.counts, self.seconds = catalogue.astype(np.float32), Counter[str](), list[float]()
        self._waiting = list(self.sums)

    async def play(self, client: httpx2.AsyncClient, end: float) -> None:
        """Play rounds of any user that no other task plays, until the end."""
        while time.monotonic() < end:
            user = self._waiting.pop(random.randrange(len(self._waiting)))
            began = time.monotonic()
            try:
                await self._play_round(client, user)
            finally:
                self._waiting.append(user)
            self.seconds.append(time.monotonic() - began)

    async def _play_round(self, client: httpx2.AsyncClient, user: str) -> None:
        shown = await self._post(client, f"/users/{user}/lists", {"page": random.randrange(1_000)})
        clicked = random.choice([None, 0, 1, 2, 3])
        await self._post(client, f"/users/{user}/clicks", {"impression": shown["impression"], "clicked": clicked})
        self.sums[user] = self.sums[user].observe(self.catalogue[shown["items"]], clicked)
        self.counts["rounds"] += 1

    async def _post(self, client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> Any:
        """Post until there is an answer. A list that is closed after an unanswered attempt has its feedback."""
        is_unsure = False
        while True:
            try:
                reply = await client.post(path, json=body)
            except UNSURE:
                is_unsure = True
                self.counts["unanswered requests"] += 1
                await asyncio.sleep(0.1)
                continue
            if reply.status_code == 201:
                return reply.json()
            if reply.status_code == 409 and is_unsure:
                return None
            self.counts[f"status {reply.status_code}"] += 1
            if reply.status_code < 500:
                raise AssertionError(f"{path}: {reply.text}")
            is_unsure = True
            await asyncio.sleep(0.1)


async def disturb(workers: Workers, node: PostgresNode | None, options: argparse.Namespace, end: float) -> None:
    """Kill workers at random, and restart PostgreSQL at even distances."""
    began, restarts, draws = time.monotonic(), 0, random.Random(options.seed)
    while options.kill and time.monotonic() < end - 5:
        await asyncio.sleep(draws.expovariate(1 / options.kill))
        workers.kill_one()
        if node is not None and restarts < options.restarts:
            share = (restarts + 1) / (options.restarts + 1)
            if time.monotonic() > began + share * options.seconds:
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
                restarts += 1
    if options.kill:
        print(f"killed {workers.killed} workers, restarted PostgreSQL {restarts} times", flush=True)


async def play(users: Users, workers: Workers, node: PostgresNode | None, options: argparse.Namespace) -> float:
    """Play all users, many at a time, while workers are killed; return the seconds."""
    limits = httpx2.Limits(max_connections=options.concurrent)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{workers.port}", timeout=30.0, limits=limits) as client:
        deadline = time.monotonic() + 300
        while True:  # until the first worker listens
            try:
                await users._play_round(client, "user-0")
                break
            except AssertionError:
                assert time.monotonic() < deadline
        began, before = time.monotonic(), users.counts["rounds"]
        end = began + options.seconds
        tasks = [users.play(client, end) for _ in range(options.concurrent)]
        await asyncio.gather(disturb(workers, node, options, end), *tasks)
        seconds = time.monotonic() - began
        print(f"{(users.counts['rounds'] - before) / seconds:.0f} lists with feedback per second", flush=True)
        return seconds


def count_faults(users: Users, url: str, store: str, key: str) -> Counter[str]:
    """Compare each user's sums with what the server holds and what waits in the store."""
    faults = Counter[str]()
    with AgentPool(url, store=store, tokens=key, min_observations=FLOOR) as pool:
        end = time.monotonic() + 120
        while not (pool.unsent == 0 and pool.flush(5.0)):
            assert time.monotonic() < end, f"{pool.unsent} uploads are left: {pool.trouble}"
            time.sleep(0.5)
        for name in pool.list_names():
            agent, expected = pool.get(name), users.sums[name]
            agent.memory.load()
            state = agent.memory.state
            held = state.local.buffer
            if agent.id:
                held = held + agent.client.fetch_standing().unpack_held(state.local.dimension)
            faults["lost"] += max(0, expected.rounds - held.rounds)
            faults["doubled"] += max(0, held.rounds - expected.rounds)
            is_same = np.array_equal(held.gram, expected.gram) and np.array_equal(held.moment, expected.moment)
            faults["credited to another list"] += not is_same and held.rounds == expected.rounds
        faults["users that are not one agent"] += abs(
            len(pool.list_names()) - sum(sums.rounds > 0 for sums in users.sums.values())
        )
    return faults


def run(options: argparse.Namespace) -> bool:
    """Run the service, play, and compare; return whether nothing was lost."""
    import app  # the example

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = stack.enter_context(run_node()) if options.store == "postgres" else None
        store = str(folder / "agents.db") if node is None else node.url()
        settings = ["--policy", "population", "--address-rate", "1e6", "--address-burst", "1e6"]
        server = ServerProcess(folder, "sqlite:///server.db", *settings, dimension=app.DIMENSION, published=False)
        server.min_observations = FLOOR
        server.start()
        stack.callback(server.stop)
        running = server.connect()
        stack.callback(running.transport.close)
        key = f"shop.{create_token()}"
        running.operator.set_enrolment_key("shop", key, 10**6)
        environment = {"FEDCASCADE_URL": server.url, "AGENTS": store, "ENROLMENT_KEY": key, "FLOOR": str(FLOOR)}
        workers = Workers(options.workers, environment, folder / "workers.log")
        users = Users(options.users, app.DIMENSION, app.CATALOGUE)
        try:
            asyncio.run(play(users, workers, node, options))
        finally:
            workers.stop()
            sys.stderr.write((folder / "workers.log").read_text()[-3000:])
        times = 1000 * np.quantile(users.seconds, [0.5, 0.99])
        print(f"a list and its feedback: median {times[0]:.0f} ms, p99 {times[1]:.0f} ms; {dict(users.counts)}")
        faults = count_faults(users, server.url, store, key)
        overview = running.operator.fetch_overview()
        print(f"the server holds {overview.rounds} rounds of {overview.enrolled} agents; faults: {dict(faults)}")
        return not any(faults.values()) and overview.enrolled <= options.users


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="postgres")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--concurrent", type=int, default=200, help="requests at a time")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--kill", type=float, default=10.0, help="mean seconds between kills; 0 kills nothing")
    parser.add_argument("--seed", type=int, default=0, help="of the times between kills")
    parser.add_argument("--restarts", type=int, default=2, help="restarts of PostgreSQL")
    sys.exit(0 if run(parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
