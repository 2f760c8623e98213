"""Load on the service, client included: acknowledged durable uploads per second, with and without group commit.

Prints throughput, latency, memory over time, the time to start with a long log, and the ratio of group commit to one
commit per upload, all from one run on one machine. For the ratio, a server of each kind takes its turn every few
seconds, because machines have slow minutes. What a commit costs depends on the disk, so the time of a plain
``fdatasync`` there is printed too; and where strace is installed, the ratio on a disk that takes longer for it.
"""

import argparse
import asyncio
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import store_size
import uvloop
from nacl.signing import SigningKey

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, guard_policy
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import replay_log
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.open import open_store
from fedcascade.testing.stores import record_upload

DIMENSION = 20
POLICY = POLICIES["fedc3ucb-h"]
SNAPSHOT_EVERY = 10_000  # what the server takes for up to 200,000 agents
MOST_JOINING = 20_000  # more agents are written into the store, each with an upload, because to join takes too long
ACTIVE = 5_000  # agents of such a store that upload during the load
FILLED = "population"
ADVICE = "give --policy population --turns 0, which writes active agents into the store"


def observed(random: np.random.Generator, dimension: int) -> Statistics:
    """Return random statistics of twenty rounds."""
    total = Statistics.zero(dimension)
    for _ in range(20):
        drawn = random.normal(size=(4, dimension))
        listed = round_to_grid(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
        total = total.observe(listed, int(random.integers(0, 4)))
    return total


class Connection(asyncio.Protocol):
    """A persistent connection with one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport
        self.received = b""
        self.waiting: asyncio.Future[int] | None = None

    def data_received(self, data: bytes) -> None:
        """Set the status of a complete reply."""
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if found and self.waiting is not None:
            length = int(re.search(rb"content-length: (\d+)", head)[1])
            if len(body) >= length:
                self.received = b""
                self.waiting.set_result(int(head[9:12]))

    async def post(self, headers: dict[str, str], body: bytes) -> int:
        """Send one request; return the status of its reply."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {wire.EXCHANGES} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(head.encode() + body)
        return await self.waiting


class Load:
    """Agents that upload as fast as a number of connections lets them."""

    def __init__(self, agents: list[AgentClient], messages: list[wire.UploadMessage]) -> None:
        self.agents = agents
        self.messages = messages
        self.sent = 0
        self.latencies: list[float] = []

    async def run(self, port: int, seconds: float, connections: int) -> float:
        """Return uploads per second."""
        started = time.perf_counter()
        self.latencies = []
        await asyncio.gather(*(self._pump(port, started + seconds) for _ in range(connections)))
        return len(self.latencies) / (time.perf_counter() - started)

    async def _pump(self, port: int, end: float) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            agent = self.agents[self.sent % len(self.agents)]
            sequence = self.sent // len(self.agents) + 1
            message = self.messages[self.sent % len(self.messages)]
            self.sent += 1
            body = wire.ENCODERS[wire.MSGPACK](msgspec.structs.replace(message, sequence=sequence))
            status = await connection.post(
                agent.sign_headers("POST", wire.EXCHANGES, compute_digest(body), sequence), body
            )
            if status != 200:
                raise SystemExit(f"upload refused with {status}")
            self.latencies.append(time.perf_counter() - began)
        connection.transport.close()


def enrolled(store_url: str, count: int) -> list[AgentClient]:
    """Write the keys of new agents into the store, before the server starts."""
    store = open_store(store_url)
    keys = [SigningKey.generate() for _ in range(count)]
    with store.transaction():
        numbers = [add_agent(store, bytes(key.verify_key), time.time()) for key in keys]
    store.close()
    return [AgentClient(None, key, number) for key, number in zip(keys, numbers, strict=True)]


@contextmanager
def server(folder: Path, *options: str, delay_ms: float = 0.0) -> Iterator[tuple[int, int, float]]:
    """Run a server process; yield its port, process id and seconds to start. ``delay_ms`` slows its disk."""
    command = [sys.executable, "-m", "fedcascade", "serve", "--store", "sqlite:///bench.db", "--port", "0"]
    command += [] if "--policy" in options else ["--policy", POLICY.name]
    command += ["--rate", "1e9", "--burst", "1e9", "--rounds-burst", "100000000", "--min-observations", "0", *options]
    if delay_ms:
        slow = f"inject=fdatasync:delay_exit={round(1000 * delay_ms)}"
        command = ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", slow, *command]
    # As where it is installed: modules are read from bytecode, which the first of these servers leaves behind.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment)
    line = next(line for line in process.stderr if " on http" in line)
    pid = started_by(process.pid)[0] if delay_ms else process.pid
    try:
        yield int(line.rsplit(":", 1)[1]), pid, time.perf_counter() - began
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        process.wait(60)
        process.stderr.close()


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def started_by(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


def cpu_seconds(pid: int) -> float:
    """Processor time that a process and those that it has started have used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, started_by(pid)))


async def watch(pid: int, seconds: float, readings: list[float]) -> None:
    """Read a server's memory every few seconds."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        readings.append(memory(pid))
        await asyncio.sleep(min(5.0, seconds / 10))


async def joined(load: Load, port: int, connections: int) -> None:
    """Let every agent upload once: its first upload to a store or a server costs more, and contestants meet none."""
    enough = load.sent + len(load.agents)
    while load.sent <= enough:
        await load.run(port, 2.0, connections)


def loaded_store(folder: Path, agents: int, messages: list[wire.UploadMessage], connections: int) -> Load:
    """Make a store whose agents have all uploaded."""
    folder.mkdir()
    load = Load(enrolled(f"sqlite:///{folder}/bench.db", agents), messages)
    with server(folder) as (port, _, _):
        uvloop.run(joined(load, port, connections))
    return load


def filled_store(folder: Path, agents: int, messages: list[wire.UploadMessage]) -> Load:
    """Make a store with one upload of each of very many agents; return the load of some of them."""
    folder.mkdir()
    keys = {place: SigningKey.generate() for place in range(0, agents, max(1, agents // ACTIVE))}
    store = open_store(f"sqlite:///{folder}/bench.db")
    templates = store_size.make_templates()
    public = {place: bytes(key.verify_key) for place, key in keys.items()}
    state = store_size.make_state(guard_policy(POLICY), agents, templates)
    store_size.fill_rows(store, state, templates, public)
    store_size.fill_snapshot(store, state)
    store.close()
    load = Load([AgentClient(None, key, store_size.NUMBER + place) for place, key in keys.items()], messages)
    load.sent = len(load.agents)  # one upload of each is there
    return load


def compared(single: tuple[Load, int], group: tuple[Load, int], turns: int, connections: int) -> dict[str, object]:
    """Measure uploads per second of both, in turns, and the median of their ratios."""
    for load, port in (single, group):
        uvloop.run(joined(load, port, connections))
    rates = np.array(
        [[uvloop.run(load.run(port, 2.5, connections)) for load, port in (single, group)] for _ in range(turns)]
    )
    return {
        "one_commit_per_upload": [round(rate) for rate in rates[:, 0]],
        "group_commit": [round(rate) for rate in rates[:, 1]],
        "ratio": round(float(np.median(rates[:, 1] / rates[:, 0])), 2),
    }


def compare_commits(folder: Path, one: Load, load: Load, given: argparse.Namespace) -> dict[str, object]:
    """Measure the ratio of group commit to one commit per upload, on this disk and on a slower one."""
    results: dict[str, object] = {}
    slower = {"slower_disk": given.delay_ms} if given.delay_ms and shutil.which("strace") else {}
    for kind, delay_ms in {"this_disk": 0.0, **slower}.items():
        with (
            server(folder / "group", delay_ms=delay_ms) as (port, _, _),
            server(folder / "single", "--batch", "1", delay_ms=delay_ms) as (other, _, _),
        ):
            results[kind] = compared((one, other), (load, port), given.turns, given.connections)
    return results


async def loaded(load: Load, port: int, pid: int, seconds: float, connections: int) -> dict[str, object]:
    """Throughput, latency and memory under load."""
    await load.run(port, 2.0, connections)
    readings: list[float] = []
    before = cpu_seconds(pid)
    watching = asyncio.create_task(watch(pid, seconds, readings))
    rate = await load.run(port, seconds, connections)
    await watching
    cpu = (cpu_seconds(pid) - before) / len(load.latencies)
    p50, p99 = np.percentile(load.latencies, [50, 99])
    third = max(1, len(readings) // 3)
    return {
        "uploads_per_second": round(rate),
        "server_cpu_us_per_upload": round(cpu * 1e6),
        "p50_ms": round(p50 * 1e3, 1),
        "p99_ms": round(p99 * 1e3, 1),
        "megabytes_first_third": round(float(np.median(readings[:third]))),
        "megabytes_last_third": round(float(np.median(readings[-third:]))),
    }


def sync_milliseconds(folder: Path) -> float:
    """Measure the median time of a synchronous write of 4 kB."""
    times = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(os.urandom(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return round(float(np.median(times)) * 1e3, 2)


def logged(store_url: str, agents: list[AgentClient], messages: list[wire.UploadMessage], count: int) -> bool:
    """Lengthen the log to ``count`` uploads, or by 2,000, as a server does that dies just before its next snapshot.

    Returns whether a replay from the last snapshot equals the state that has seen every upload, to the last bit.
    """
    store = open_store(store_url)
    policy = guard_policy(POLICY)  # as the server plays it: else its snapshot would be of no use
    live = replay_log(store, policy, DIMENSION)
    count = count or live.position + 2_000
    last = (count // SNAPSHOT_EVERY - 1) * SNAPSHOT_EVERY + 1
    while live.position < count:
        with store.transaction():
            for _ in range(min(256, count - live.position)):
                agent, message = agents[live.position % len(agents)].agent, messages[live.position % 256]
                message = msgspec.structs.replace(message, sequence=10**9 + live.position)
                record_upload(store, live, message.to_upload(agent, DIMENSION), live.position)
                if live.position == last:
                    save_snapshot(store, live)
        store.run_maintenance()
    same = replay_log(store, policy, DIMENSION).dump() == live.dump()
    store.close()
    return same


def main() -> None:
    """Run the load and print one JSON object."""
    global POLICY
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.25, help="how long the load with group commit lasts")
    parser.add_argument("--turns", type=int, default=6, help="turns of each kind of commit, for the ratio (0: none)")
    parser.add_argument("--delay-ms", type=float, default=1.0, help="so much slower is the slower disk (0: none)")
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--policy", choices=POLICIES, default=POLICY.name)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--log", type=int, default=100_000, help="uploads in the log before the last start")
    given = parser.parse_args()
    POLICY = POLICIES[given.policy]
    random = np.random.default_rng(0)
    messages = [
        wire.UploadMessage.from_upload(
            Upload(agent=0, sequence=1, cause=Cause.FORCED, statistics=observed(random, DIMENSION))
        )
        for _ in range(256)
    ]
    results: dict[str, object] = {"cpus": os.cpu_count(), "agents": given.agents, "connections": given.connections}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder, url = Path(name), f"sqlite:///{name}/group/bench.db"
        results["sync_ms"] = sync_milliseconds(folder)
        is_filled = given.agents > MOST_JOINING
        if is_filled:
            require(POLICY.name == FILLED and not given.turns, f"beyond {MOST_JOINING} agents: {ADVICE}")
            load = filled_store(folder / "group", given.agents, messages)
        else:
            load = loaded_store(folder / "group", given.agents, messages, given.connections)
        if given.turns:
            one = loaded_store(folder / "single", given.agents, messages, given.connections)
            results |= compare_commits(folder, one, load, given)
        with server(folder / "group") as (port, pid, _):
            results["load"] = uvloop.run(loaded(load, port, pid, 60 * given.minutes, given.connections))
            os.kill(pid, 9)
        count = 0 if is_filled else max(given.log, load.sent)
        results["replay_equals_live"] = logged(url, load.agents, messages, count)
        with server(folder / "group") as (_, _, started):
            results["start_seconds"] = round(started, 2)
            results["logged_uploads"] = count or given.agents + load.sent - len(load.agents) + 2_000
    results["client_cpu_seconds"] = round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
