"""The arena of an attack: a folder of its own, and server processes that end with the attack."""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPConnection
from pathlib import Path

from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.transport import HttpTransport

OPERATOR = "the-operators-token-of-an-attack"
# Limits that a fast honest load does not reach. An attack on a limit keeps the default.
GENEROUS = {
    "--rate": "1000000",
    "--burst": "1000000",
    "--rounds-burst": "1000000000",
}
PATIENCE = 120.0  # seconds for a server to start, with an empty cache of compiled code


@cache
def list_options() -> frozenset[str]:
    """List the options of ``fedcascade serve`` in the tree under attack."""
    return frozenset(re.findall(r"--[a-z][a-z-]*", run_command("serve", "--help").stdout))


def take_over_with(*options: str) -> tuple[str, ...]:
    """Add ``--take-over`` to options that change constants, if the tree under attack has it."""
    return (*options, "--take-over") if "--take-over" in list_options() else options


@cache
def list_commands() -> frozenset[str]:
    """List the commands of ``fedcascade`` in the tree under attack."""
    return frozenset(re.findall(r"^│ ([a-z]+) ", run_command("--help").stdout, re.MULTILINE))


def run_command(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a ``fedcascade`` command."""
    command = [sys.executable, "-m", "fedcascade", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder)


@dataclass
class ServerProcess:
    """``fedcascade serve`` in a process of its own."""

    folder: Path
    options: tuple[str, ...]
    descriptors: int | None = None  # the most that the process may open
    port: int = 0
    process: "subprocess.Popen[str] | None" = None
    said: list[str] = field(default_factory=list)
    transports: list[HttpTransport] = field(default_factory=list)

    def start(self) -> "ServerProcess":
        """Start it; raise RuntimeError with its last lines if it does not start."""
        limit = self.descriptors
        command = [sys.executable, "-m", "fedcascade", "serve", "--port", str(self.port), *self.options]
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        )
        assert self.process.stderr is not None
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if " on http" in line:
                self.port = int(line.rsplit(":", 1)[1])
                return self
        code = self.process.wait()
        self.process.stderr.close()
        self.process = None
        raise RuntimeError(f"the server ended with {code}: {''.join(self.said[-3:]).strip()}")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self, how: signal.Signals = signal.SIGTERM, patience: float = 30.0) -> float:
        """Stop it and return the seconds that took, at least ``patience`` if it had to be killed."""
        if self.process is None:
            return 0.0
        process, self.process = self.process, None
        began = time.monotonic()
        process.send_signal(how)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()
        return time.monotonic() - began

    def connect(self) -> HttpTransport:
        """Open a transport to it, which the arena closes."""
        self.transports.append(HttpTransport(self.url, timeout=60.0))
        return self.transports[-1]

    def connect_operator(self) -> OperatorClient:
        return OperatorClient(self.connect(), OPERATOR)

    def read_memory(self, name: str = "VmHWM") -> float:
        """Read its memory in megabytes: the peak, or ``VmRSS`` for the resident set."""
        return read_memory(self.pid, name)

    def find_child(self, word: str) -> int | None:
        """Find the process id of a child by a word of its command line."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.pid and word.encode() in (entry / "cmdline").read_bytes():
                    return int(entry.name)
        return None


def read_memory(pid: int, name: str) -> float:
    """Read the memory of a process from /proc, in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(rf"{name}:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1024


@dataclass
class Arena:
    """A folder, and the servers that were started in it."""

    folder: Path
    servers: list[ServerProcess] = field(default_factory=list)

    def serve(
        self,
        *options: str,
        dimension: int = 3,
        store: str = "sqlite:///store.db",
        generous: bool = True,
        descriptors: int | None = None,
        port: int = 0,
    ) -> ServerProcess:
        """Start a server on a store of this folder, by default with limits that an honest load does not meet."""
        token = self.folder / "operator.token"
        token.write_text(OPERATOR, encoding="utf-8")
        token.chmod(0o600)
        named = {name: value for name, value in GENEROUS.items() if generous and name in list_options()}
        chosen = [word for pair in named.items() for word in pair if pair[0] not in options]
        words = ("--store", store, "--dimension", str(dimension), *chosen, *options)
        server = ServerProcess(self.folder, words, descriptors, port)
        self.servers.append(server)
        return server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop(signal.SIGKILL)
            for transport in server.transports:
                transport.close()


@contextmanager
def open_arena(folder: Path) -> Iterator[Arena]:
    """Make a folder for an attack; end its servers and remove the folder afterwards."""
    folder.mkdir(parents=True)
    arena = Arena(folder)
    try:
        yield arena
    finally:
        arena.stop()
        shutil.rmtree(folder, ignore_errors=True)


def open_socket(port: int, *, source: str = "127.0.0.1", timeout: float = 5.0) -> socket.socket:
    """Connect to a server from an address of the loopback network."""
    return socket.create_connection(("127.0.0.1", port), timeout=timeout, source_address=(source, 0))


@contextmanager
def open_http(port: int, *, source: str = "127.0.0.1") -> Iterator[HTTPConnection]:
    """Connect to a server for many requests, one after the other, from an address of the loopback network."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60.0, source_address=(source, 0))
    try:
        yield connection
    finally:
        connection.close()


def ask(port: int, path: str = "/healthz", *, source: str = "127.0.0.1", timeout: float = 5.0) -> int | None:
    """Return the status of a GET over a new connection; None without an answer in time."""
    try:
        with open_socket(port, source=source, timeout=timeout) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            reply = connection.recv(64)
            return int(reply.split()[1]) if reply else None
    except (OSError, IndexError, ValueError):
        return None


def wait_until(condition: Callable[[], bool], seconds: float) -> float:
    """Wait for a condition and return the seconds it took; infinity if it never held."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return float("inf")
        time.sleep(0.05)
    return time.monotonic() - began


def raise_own_descriptors() -> None:
    """Let this process open as many sockets as the system permits."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def list_own_tree() -> Path:
    """Return the root of the tree under attack."""
    import fedcascade

    return Path(os.path.realpath(fedcascade.__file__)).parent.parent.parent
