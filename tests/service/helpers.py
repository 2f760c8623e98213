"""A whole service in this process, and servers in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from httpx2 import Response
from nacl.signing import SigningKey

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent import client
from fedcascade.service.agent.transport import HttpTransport, Transport
from fedcascade.service.dashboard.routes import build_dashboard
from fedcascade.service.protocol.wire import PROTOCOLS, Credential, UploadMessage
from fedcascade.service.server.app import build_application
from fedcascade.service.server.operations import set_operator
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import FOR_SIMULATIONS, Limits, UploadBounds
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.contract import Store
from fedcascade.service.store.open import open_store

from .in_process import InProcessTransport

TOKEN = "the-operators-token-in-tests"
FREE = Limits(rate=1e6, burst=1e6, address_rate=1e6, address_burst=1e6)


@dataclass
class RunningService:
    """A service and ways to speak to it."""

    url: str
    transport: Transport
    writer: Writer | None
    operator: client.OperatorClient
    credentials: dict[int, Credential] = field(default_factory=dict)

    def enrol(self, transport: Transport | None = None) -> client.AgentClient:
        """A new agent, as its client."""
        key = SigningKey.generate()
        [token] = self.operator.create_tokens()
        welcome = client.enrol_agent(self.transport, token, key)
        assert welcome.credential is not None
        self.credentials[welcome.agent] = welcome.credential
        return client.AgentClient(transport or self.transport, key, welcome.agent)


class CuttableTransport:
    """A way to the server that can be cut; it counts what it carries."""

    def __init__(self, running: RunningService) -> None:
        self.running = running
        self.up = True
        self.sent = 0

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        if not self.up:
            raise ConnectionError("the network is down")
        self.sent += 1
        return self.running.transport.send(method, path, body, headers)

    def close(self) -> None:
        """Nothing to close."""


@contextmanager
def serve_in_process(
    path: Path,
    *,
    policy: Policy = POLICIES["fedc3ucb-h"],
    dimension: int = 3,
    limits: Limits = FREE,
    bounds: UploadBounds = FOR_SIMULATIONS,
    **options: Any,
) -> Iterator[RunningService]:
    """A service without sockets, on a SQLite file."""
    url = f"sqlite:///{path}"
    writer = Writer(lambda: open_store(url), policy, dimension, **options)
    with run_service(Service(writer, limits, bounds), url) as running:
        yield running


@contextmanager
def run_service(service: Service, url: str = "") -> Iterator[RunningService]:
    """An application of a service without sockets."""
    writer = service.writer
    writer.submit(set_operator(TOKEN)).result()
    app = build_application(service, [build_dashboard(service)])
    transport = InProcessTransport(app)
    try:
        yield RunningService(url, transport, writer, client.OperatorClient(transport, TOKEN))
    finally:
        transport.close()
        app.state.dashboard.feed.close_store()
        writer.close()


def build_unit_upload(sequence: int, axis: int, dimension: int, protocol: int = PROTOCOLS[-1]) -> UploadMessage:
    """An upload that carries a unit vector of its own."""
    gram, moment = np.zeros((dimension, dimension)), np.zeros(dimension)
    gram[axis, axis] = moment[axis] = 1.0
    upload = Upload(agent=0, sequence=sequence, cause=Cause.FORCED, statistics=Statistics(gram, moment, 1, 1, 1))
    return msgspec.structs.replace(UploadMessage.from_upload(upload), protocol=protocol)


class ServerProcess:
    """``fedcascade serve`` in a process of its own, which can be killed and started again on the same port."""

    def __init__(
        self, folder: Path, store: str, *options: str, dimension: int = 3, token: str = TOKEN, published: bool = True
    ) -> None:
        self.folder = folder
        self.store = store
        self.options = options
        self.published = published
        self.dimension = dimension
        self.port = self.min_observations = 0
        folder.mkdir(exist_ok=True)
        (folder / "operator.token").write_text(token, encoding="utf-8")
        (folder / "operator.token").chmod(0o600)
        self.process: subprocess.Popen[str] | None = None
        self.variables: dict[str, str] = {}  # of the environment

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "fedcascade", "serve", "--store", self.store, "--port", str(self.port)),
            *("--dimension", str(self.dimension), "--rate", "1000000", "--burst", "1000000"),
            *("--min-observations", str(self.min_observations), "--rounds-burst", "1000000", *self.options),
            *([] if "--policy" in self.options else ["--policy", "fedc3ucb-h"]),
            *(["--as-published"] if self.published else []),
        ]

    def start(self) -> "ServerProcess":
        self.process = subprocess.Popen(
            self.command(),
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | self.variables,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if " on http" in line:
                self.port = int(line.rsplit(":", 1)[1])
                break
        else:
            raise AssertionError(f"the server did not start: {self.process.wait()}")
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> RunningService:
        transport = HttpTransport(self.url, timeout=60.0)  # in a fresh cache, the first upload waits for a compiler
        wait_until_ready(transport)
        return RunningService(self.url, transport, None, client.OperatorClient(transport, TOKEN))

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=20)
            assert self.process.stderr is not None
            self.process.stderr.close()
            self.process = None


def wait_until_ready(transport: Transport, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if transport.send("GET", "/readyz", b"", {}).status_code == 200:
                return
        except ConnectionError:
            time.sleep(0.02)
    raise AssertionError("the server is not ready")


def read_clusters(store: Store, position: int) -> dict[int, int]:
    """Read the cluster of every agent at a position."""
    return {totals.agent: totals.cluster for totals in store.sum_by_agent(position)}


def find_last_snapshot(store: Store) -> int:
    """Find the position of the snapshot; 0 if there is none."""
    snapshot = store.read_snapshot()
    return 0 if snapshot is None else snapshot.position
