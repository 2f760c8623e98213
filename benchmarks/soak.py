"""A day of load in minutes, with a simulated clock. Memory must not grow.

A thousand agents upload three times an hour, as often as a server with its default bounds takes from them. Every hour
some agents leave and others enrol, old uploads are folded, tokens expire, strangers send requests that are refused, and
an operator looks at the page. The server is a process of its own, with its default limits. For every hour this prints
what the server and its verifier hold in memory, and the store on the disk. The first hours fill caches. Of the others,
the last must not need more than those before; else the exit status is 1.
"""

import argparse
import asyncio
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from nacl.signing import SigningKey

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import AgentClient, OperatorClient, enrol_agent
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.dashboard.routes import build_dashboard
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest
from fedcascade.service.protocol.clock import Clock
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.listener import open_socket
from fedcascade.service.server.serve import ServerSettings, run_server
from service import Connection, memory

DIMENSION = 20
TOKEN = "the-operators-token-of-a-long-day"
HOUR = 3_600.0
UPLOADS_PER_HOUR = 3  # of 20 rounds each
MESSAGES = 256
CONNECTIONS = 16
DELAY = 100.0  # seconds of the clock that a request may take
CHURN = 0.01  # of all agents leave in an hour, and as many enrol
WARM_HOURS = 1 / 3  # of the day: caches fill
GROWTH = 1.03  # what is allowed for noise
RETAINED_HOURS = 4.0  # older uploads of an agent are folded into one


class TurnedClock:
    """A clock that one process turns and others read, in memory that they share after a fork."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)
        self.turn_to(time.time())

    def turn_to(self, now: float) -> None:
        self._memory[:8] = struct.pack("d", now)

    def read(self) -> float:
        return float(struct.unpack("d", self._memory[:8])[0])


def observe_rounds(random: np.random.Generator) -> Statistics:
    """Return random statistics of twenty rounds; features are multiples of 2^-12."""
    total = Statistics.zero(DIMENSION)
    for _ in range(20):
        drawn = random.normal(size=(6, DIMENSION))
        listed = np.trunc(4096 * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)) / 4096
        total = total.observe(listed.astype(np.float32), int(random.integers(0, 6)))
    return total


@dataclass
class Day:
    """The agents of a server, and the clock that they share with it."""

    port: int
    clock: TurnedClock
    agents: int
    operator: OperatorClient
    random: np.random.Generator
    messages: list[wire.UploadMessage]
    clients: list[AgentClient] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    old_tokens: list[str] = field(default_factory=list)

    def enrol(self, count: int) -> None:
        transport, clock = self.operator.transport, Clock(now=self.clock.read, elapsed=self.clock.read)
        for token in self.operator.create_tokens(count, valid_seconds=3_600):
            key = SigningKey.generate()
            welcome = enrol_agent(transport, token, key, clock=clock)
            self.clients.append(AgentClient(transport, key, welcome.agent, clock=clock))
            self.turn(0.1)

    def turn(self, seconds: float) -> None:
        self.clock.turn_to(self.clock.read() + seconds)

    async def upload(self, start: float, seconds: float) -> None:
        """Let every agent upload once, spread over that many seconds from ``start`` on."""
        loop = asyncio.get_running_loop()
        turn = iter(enumerate(self.clients))

        async def pump() -> None:
            _, connection = await loop.create_connection(Connection, "127.0.0.1", self.port)
            for number, agent in turn:
                self.clock.turn_to(start + seconds * number / len(self.clients))
                await self._upload_once(connection, agent)
            connection.transport.close()

        # While one request is under way, the others turn the clock: not so far that its signature becomes too old.
        at_once = max(1, min(CONNECTIONS, int(DELAY * len(self.clients) / seconds)))
        await asyncio.gather(*(pump() for _ in range(at_once)))

    async def _upload_once(self, connection: Connection, agent: AgentClient) -> None:
        sequence = self.sequences[agent.agent] = self.sequences.get(agent.agent, 0) + 1
        message = self.messages[(agent.agent + sequence) % len(self.messages)]
        body = wire.ENCODERS[wire.MSGPACK](msgspec.structs.replace(message, sequence=sequence))
        status = await connection.post(agent.sign_headers("POST", wire.EXCHANGES, compute_digest(body), sequence), body)
        if status != 200:
            raise SystemExit(f"upload {sequence} of agent {agent.agent} was refused with {status}")

    def churn(self) -> None:
        """Let some agents leave and others enrol, and send requests with expired tokens and without keys."""
        leavers = max(1, round(CHURN * self.agents))
        for _ in range(leavers):
            agent = self.clients.pop(int(self.random.integers(len(self.clients))))
            agent.leave()
            self.sequences.pop(agent.agent, None)
            self.turn(1.0)
        self.enrol(leavers)
        for token in self.old_tokens:
            self.refuse(lambda token=token: enrol_agent(self.operator.transport, token, SigningKey.generate()))
        self.old_tokens = self.operator.create_tokens(5, valid_seconds=60)
        for number in range(20):
            self.turn(1.0)
            stranger = AgentClient(self.operator.transport, SigningKey.generate(), self.clients[number].agent)
            stranger.clock = self.clients[0].clock
            self.refuse(lambda stranger=stranger: stranger.exchange(self.messages[0]))

    def refuse(self, attempt: Callable[[], object]) -> None:
        """Something that a server refuses."""
        try:
            attempt()
        except Refused:
            self.refused += 1
        else:
            raise SystemExit("the server took what it must refuse")

    def look(self) -> None:
        """Request the pages of operators and monitoring."""
        bearer = {"authorization": f"Bearer {TOKEN}"}
        for path in ("/live/view", "/v1/overview", "/metrics", "/healthz", "/readyz"):
            reply = self.operator.transport.send("GET", path, b"", bearer)
            if reply.status_code != 200:
                raise SystemExit(f"{path} answered {reply.status_code}")
            self.turn(1.0)


def fork_server(folder: Path, port: int, clock: TurnedClock) -> int:
    """Start a server in a child process that shares the clock; its id."""
    settings = ServerSettings(
        store=f"sqlite:///{folder}/store.db",
        policy=POLICIES["fedc3ucb-h"],
        dimension=DIMENSION,
        port=port,
        operator_token=folder / "operator.token",
        snapshot_every=5_000,
        retain=RETAINED_HOURS / 24,
        clock=Clock(now=clock.read, elapsed=clock.read),
    )
    child = os.fork()
    if child == 0:
        os.setsid()
        run_server(settings, lambda _: None, lambda service: [build_dashboard(service)])
        os._exit(0)
    return child


def wait_until_ready(transport: HttpTransport, seconds: float = 120.0) -> None:
    """Wait until a server answers and can write."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(ConnectionError):
            if transport.send("GET", "/readyz", b"", {}).status_code == 200:
                return
        time.sleep(0.05)
    raise SystemExit("the server does not start")


def find_children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in paths for word in path.read_text(encoding="utf-8").split()]


def live(day: Day, hours: int, pid: int, folder: Path) -> list[float]:
    """Live through a number of hours; the server's memory after each, with that of its verifier, in megabytes."""
    readings = []
    print("hour  uploads  refused  server MB  verifier MB  store MB   seconds", flush=True)
    began, uploads = time.monotonic(), 0
    for hour in range(1, hours + 1):
        start = day.clock.read()
        for part in range(UPLOADS_PER_HOUR):
            step = 0.9 * HOUR / UPLOADS_PER_HOUR
            uvloop.run(day.upload(start + part * step, step))
            uploads += len(day.clients)
        day.churn()
        day.look()
        day.clock.turn_to(max(day.clock.read(), start + HOUR))
        server, beside = memory(pid), sum(map(memory, find_children(pid)))
        disk = sum(path.stat().st_size for path in folder.glob("store.db*")) / 1e6
        readings.append(server + beside)
        row = f"{hour:4}  {uploads:7}  {day.refused:7}  {server:9.1f}  {beside:11.1f}  {disk:8.1f}"
        print(f"{row}  {time.monotonic() - began:8.0f}", flush=True)
    return readings


def judge(readings: list[float]) -> bool:
    """Print whether memory is flat: the last third of the day against the hours between it and the first third."""
    first = max(1, round(WARM_HOURS * len(readings)))
    half = first + (len(readings) - first) // 2
    before, after = max(readings[first:half]), max(readings[half:])
    is_flat = after <= GROWTH * before
    words = "flat" if is_flat else "it grows"
    middle, end = f"in hours {first + 1} to {half}", f"in hours {half + 1} to {len(readings)}"
    print(f"at most {before:.1f} MB {middle}, {after:.1f} MB {end}: {words}")
    return is_flat


def main() -> None:
    """Run a server through the hours and judge its memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=24, help="hours of the clock")
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random, clock = np.random.default_rng(given.seed), TurnedClock()
    seen = [observe_rounds(random) for _ in range(MESSAGES)]
    uploads = [Upload(agent=0, sequence=1, cause=Cause.FORCED, statistics=statistics) for statistics in seen]
    with open_socket("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "operator.token").write_text(TOKEN, encoding="utf-8")
        (folder / "operator.token").chmod(0o600)
        pid = fork_server(folder, port, clock)
        transport = HttpTransport(f"http://127.0.0.1:{port}", timeout=60.0, verify=False)
        try:
            wait_until_ready(transport)
            messages = [wire.UploadMessage.from_upload(upload) for upload in uploads]
            day = Day(port, clock, given.agents, OperatorClient(transport, TOKEN), random, messages)
            day.enrol(given.agents)
            readings = live(day, given.hours, pid, folder)
        finally:
            transport.close()
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
    sys.exit(not judge(readings))


if __name__ == "__main__":
    main()
