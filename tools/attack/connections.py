"""Attacks without a key: connections, headers, unsigned requests."""

import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from attack.arena import Arena, ServerProcess, ask, open_http, open_socket, raise_own_descriptors, wait_until
from attack.registry import Finding, attack

MOST_GROWTH = 64.0  # megabytes of memory
HELD_AFTER = 12.0  # seconds until an incomplete request must be closed
GOOD_CALLER = "127.0.0.2"


def pour(connection: socket.socket, chunk: bytes, megabytes: float, seconds: float) -> float:
    """Send the same bytes repeatedly, until there are enough or the server closes or stops reading."""
    sent, end = 0, time.monotonic() + seconds
    connection.settimeout(seconds)
    with suppress(OSError):
        while sent < megabytes * 1e6 and time.monotonic() < end:
            sent += connection.send(chunk)
    return sent / 1e6


def measure_growth(server: ServerProcess, opening: bytes, chunk: bytes, megabytes: float) -> Finding:
    """Send many bytes over one connection, and measure the server's memory during and after."""
    assert ask(server.port) == 200
    before = server.read_memory("VmRSS")
    with open_socket(server.port) as connection:
        connection.sendall(opening)
        sent = pour(connection, chunk, megabytes, 40.0)
        grown = server.read_memory("VmHWM") - before
    answers = wait_until(lambda: ask(server.port, timeout=1.0) == 200, 30.0)
    kept = server.read_memory("VmRSS") - before
    measured = f"{sent:.0f} MB sent: +{grown:.0f} MB, +{kept:.0f} MB after; next caller waits {answers:.1f} s"
    return Finding(measured, max(grown, kept) < MOST_GROWTH and answers < 5.0)


@attack(4, "pipelined requests", sends="18 MB of GET on one connection, no answer read", holds="less than 64 MB more")
def pipeline_requests(arena: Arena) -> Finding:
    chunk = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 2_000
    return measure_growth(arena.serve(), b"", chunk, 18.0)


@attack(4, "endless headers", sends="150 MB of headers in one request", holds="less than 64 MB more")
def send_endless_headers(arena: Arena) -> Finding:
    chunk = b"".join(b"x-%d: %s\r\n" % (number, b"a" * 80) for number in range(1_000))
    return measure_growth(arena.serve(), b"GET /healthz HTTP/1.1\r\nhost: x\r\n", chunk, 150.0)


@attack(4, "incomplete requests", sends="3,000 connections that stop after a header", holds="none is held after 12 s")
def hold_half_requests(arena: Arena) -> Finding:
    raise_own_descriptors()
    server = arena.serve()
    with ExitStack() as stack:
        connections = []
        for number in range(3_000):
            with suppress(OSError):
                connection = stack.enter_context(open_socket(server.port, source=f"127.0.1.{number % 200 + 1}"))
                connection.sendall(b"POST /v1/exchanges HTTP/1.1\r\nhost: x\r\n")
                connections.append(connection)
        time.sleep(HELD_AFTER)
        held = sum(is_open(connection) for connection in connections)
    return Finding(f"{held} of {len(connections)} held after {HELD_AFTER:.0f} s", held == 0)


@attack(4, "missing bodies", sends="200 requests without their bodies", holds="none is held after 40 s")
def hold_bodies(arena: Arena) -> Finding:
    server = arena.serve()
    with ExitStack() as stack:
        connections = []
        for number in range(200):
            connection = stack.enter_context(open_socket(server.port, source=f"127.0.1.{number % 50 + 1}"))
            connection.sendall(b"POST /v1/exchanges HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            connections.append(connection)
        gone = wait_until(lambda: not any(is_open(connection) for connection in connections), 40.0)
    return Finding(f"all let go after {gone:.0f} s", gone <= 40.0)


def is_open(connection: socket.socket) -> bool:
    """Return whether a connection is still open; drop what it received."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@attack(4, "idle connections", sends="250 idle ones, at 256 descriptors", holds="others are served within 1 s")
def starve_descriptors(arena: Arena) -> Finding:
    return starve(arena.serve(descriptors=256), [f"127.0.0.{1 if number else 3}" for number in range(250)])


@attack(4, "idle connections, many addresses", sends="250 from as many addresses", holds="others are served within 1 s")
def starve_descriptors_from_many(arena: Arena) -> Finding:
    return starve(arena.serve(descriptors=256), [f"127.0.1.{number + 1}" for number in range(250)])


def starve(server: ServerProcess, sources: list[str]) -> Finding:
    """Open an idle connection from each address, and measure how long a good caller waits."""
    assert ask(server.port) == 200
    with ExitStack() as stack:
        for source in sources:
            with suppress(OSError):
                stack.enter_context(open_socket(server.port, source=source))
        time.sleep(0.5)
        waited = wait_until(lambda: ask(server.port, source=GOOD_CALLER, timeout=1.0) == 200, 15.0)
    return Finding(f"a good caller waits {waited:.1f} s", waited < 1.0)


@attack(4, "disk writes by /readyz", sends="500 unsigned calls", holds="less than 1 KB written for each")
def write_by_readiness(arena: Arena) -> Finding:
    server = arena.serve(dimension=20)
    assert ask(server.port, "/readyz", timeout=60.0) == 200
    before, began = read_written(server.pid), time.monotonic()
    with open_http(server.port) as connection:
        for _ in range(500):
            connection.request("GET", "/readyz")
            connection.getresponse().read()
    calls = 500 / (time.monotonic() - began)
    each = (read_written(server.pid) - before) / 500
    return Finding(f"{each / 1e3:.1f} KB written per call, {calls:.0f} calls/s", each < 1e3)


def read_written(pid: int) -> int:
    """Read the bytes that a process has written."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text(encoding="utf-8").splitlines())
    return int(fields["wchar"])
