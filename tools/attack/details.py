"""Attacks on details: order and types of answers, clocks, scrubs, proxies, sessions, token files, hostile answers."""

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attack.arena import OPERATOR, PATIENCE, Arena, ServerProcess, list_options, open_socket
from attack.peers import Peer, connect_agent, play_rounds, teach
from attack.registry import Finding, attack
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest
from fedcascade.service.store.open import open_store

THETA = np.array([0.5, 0.3, 0.1])
YEAR = 365 * 86_400.0


@attack(211, "pipelined exchanges", sends="16 exchanges at once on one connection", holds="a 200 for each that counts")
def pipeline_exchanges(arena: Arena) -> Finding:
    server = arena.serve()
    peer, random, sent = Peer(server), np.random.default_rng(1), []
    for sequence in range(1, 17):
        body = peer.encode(play_rounds(random, THETA, 20), sequence)
        headers = {"host": "x", **peer.client.sign_headers("POST", wire.EXCHANGES, compute_digest(body), sequence)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers | {"content-length": len(body)}).items())
        sent.append(f"POST {wire.EXCHANGES} HTTP/1.1\r\n{lines}\r\n".encode() + body)
    with open_socket(server.port, timeout=30.0) as connection:
        connection.sendall(b"".join(sent))
        statuses = Counter(re.findall(rb"HTTP/1\.1 (\d+)", read_all(connection)))
    counted = peer.client.fetch_standing().last_sequence
    told = {int(status): count for status, count in statuses.items()}
    return Finding(f"{counted} count, statuses {told}", told.get(200, 0) == counted > 0)


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    received = b""
    with suppress(OSError):
        while piece := connection.recv(65_536):
            received += piece
    return received


@attack(
    209,
    "server clock a year ahead",
    sends="an enrolment of next year, 1,020 rounds",
    holds="taken after the wait that the refusal names",
)
def enrol_in_the_future(arena: Arena) -> Finding:
    server = arena.serve("--rounds-per-hour", "36000", generous=False)
    peer = Peer(server)
    server.stop()
    with closing(open_store(f"sqlite:///{arena.folder}/store.db")) as store, store.transaction():
        identity = store.find_identity(peer.agent)
        assert identity is not None
        store.put_identity(type(identity)(identity.agent, identity.public_key, time.time() + YEAR))
    server.start()
    peer.client.transport = server.connect()
    random = np.random.default_rng(2)
    assert peer.upload(play_rounds(random, THETA, 1_000)).status_code == 200
    early = peer.upload(play_rounds(random, THETA, 20))
    wait = float(early.headers.get("retry-after", "inf"))
    time.sleep(min(wait, 10.0) + 1.0)
    late = peer.upload(play_rounds(random, THETA, 20)).status_code
    return Finding(f"{early.status_code}, wait {wait:.0f} s, then {late}", late == 200)


@attack(212, "flipped bit, no one verifies", sends="a bit of an old upload", holds="the server says so by itself")
def flip_unattended(arena: Arena) -> Finding:
    often = ("--scrub", "0.0003") if "--scrub" in list_options() else ()
    server = arena.serve(*often)
    peer, random = Peer(server), np.random.default_rng(3)
    for _ in range(8):
        peer.upload(play_rounds(random, THETA, 20))
    with closing(sqlite3.connect(arena.folder / "store.db", timeout=30.0)) as database, database:
        [numbers] = database.execute("SELECT numbers FROM upload WHERE position = 2").fetchone()
        changed = bytes([*numbers[:-1], numbers[-1] ^ 1])
        database.execute("UPDATE upload SET numbers = ? WHERE position = 2", [changed])
    time.sleep(6.0)
    assert server.process is not None
    assert server.process.stderr is not None
    server.process.send_signal(signal.SIGTERM)
    said = [line for line in server.process.stderr if "damaged" in line]
    return Finding(f"said {'at once' if said else 'nothing'} in 6 s", bool(said))


@attack(215, "answers without nosniff", sends="GET of five pages", holds="all have it")
def sniff(arena: Arena) -> Finding:
    transport, paths = arena.serve().connect(), ("/v1/terms", "/metrics", "/healthz", "/v1/overview", "/nothing")
    bare = [
        path for path in paths if transport.send("GET", path, b"", {}).headers.get("x-content-type-options") is None
    ]
    return Finding(f"{len(bare)} of {len(paths)} lack it", not bare)


@contextmanager
def run_demo(arena: Arena) -> Iterator[str]:
    """Run ``fedcascade live``; yield its address."""
    command = [
        sys.executable,
        "-m",
        "fedcascade",
        "live",
        "--no-browser",
        "--port",
        "0",
        "--users",
        "4",
        "--clusters",
        "2",
    ]
    with subprocess.Popen(command, cwd=arena.folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(hit[1] for line in process.stderr if (hit := re.search(r"dashboard: (http://[^/]+)", line)))
        finally:
            process.kill()


@attack(216, "demo behind a hidden proxy", sends="GET of its view, as from this machine", holds="401")
def look_at_demo(arena: Arena) -> Finding:
    with run_demo(arena) as url:
        connection = HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=PATIENCE)
        connection.request("GET", "/live/view", headers={"host": "127.0.0.1"})
        status = connection.getresponse().status
        connection.close()
    return Finding(f"status {status}", status == 401)


@attack(213, "many logins", sends="200 logins of the operator", holds="no row for a session")
def open_sessions(arena: Arena) -> Finding:
    server = arena.serve("--address-rate", "1000000", "--address-burst", "1000000")
    transport, body = server.connect(), json.dumps({"token": OPERATOR}).encode()

    def count_rows() -> int:
        with closing(sqlite3.connect(arena.folder / "store.db", timeout=30.0)) as database:
            [rows] = database.execute("SELECT count(*) FROM setting").fetchone()
        return int(rows)

    before = count_rows()
    statuses = {transport.send("POST", "/live/session", body, {"content-type": "application/json"}).status_code
                for _ in range(200)}  # fmt: skip
    added = count_rows() - before
    return Finding(f"statuses {sorted(statuses)}, {added} rows more", statuses == {200} and added <= 1)


@attack(202, "token file that others can read", sends="a start with mode 644", holds="refused in one line")
def serve_with_open_token(arena: Arena) -> Finding:
    token = arena.folder / "operator.token"
    token.write_text(OPERATOR, encoding="utf-8")
    token.chmod(0o644)
    server = ServerProcess(arena.folder, ("--store", "sqlite:///store.db", "--dimension", "3"))
    arena.servers.append(server)
    try:
        server.start()
    except RuntimeError as error:
        return Finding(f"refused: {str(error).rpartition(': ')[2][:80]}", "operator.token" in str(error))
    return Finding("it starts", False)


class AlteringTransport(HttpTransport):
    """A transport that changes fields of answers to exchanges."""

    changes: Mapping[str, Any] = {}

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        reply = super().send(method, path, body, headers)
        if path == wire.EXCHANGES and reply.status_code == 200 and self.changes:
            message = msgspec.msgpack.decode(reply.content) | dict(self.changes)
            reply._content = msgspec.msgpack.encode(message)
        return reply


@attack(204, "answer with agents: 0", sends="six answers with impossible fields", holds="the agent goes on")
def answer_nonsense(arena: Arena) -> Finding:
    server, path, works = arena.serve(), str(arena.folder / "agent.db"), 0
    changes: list[dict[str, Any]] = [{"agents": 0}, {"agents": -1}, {"system_rounds": -5}, {"numbers": b"x"}]
    changes += [{"count": 2**60}, {"held_rounds": "many"}]
    for number, change in enumerate(changes):
        transport = AlteringTransport(server.url, timeout=60.0)
        transport.changes = change
        with suppress(Exception), connect_agent(server, f"{path}{number}", transport=transport) as agent:
            teach(agent, 3)
            agent.flush(3.0)
        with suppress(Exception), connect(server.url, store=f"{path}{number}", pauses=(0.05, 0.5)) as agent:
            teach(agent, 3, seed=2)
            works += agent.flush(15.0) and bool(np.isfinite(agent.estimate).all())
    return Finding(f"{works} of {len(changes)} agents go on", works == len(changes))


@attack(205, "a full server", sends="6 * 10^8 observations of six agents", holds="others are answered")
def fill_server(arena: Arena) -> Finding:
    server = arena.serve("--longest-list", "1000")
    gram, moment, count = np.zeros((3, 3)), np.zeros(3), 10**8
    gram[0, 0], moment[0] = count, 1_000.0
    statuses = [
        Peer(server).upload(Statistics(gram, moment, count, 1_000, count // 1_000)).status_code for _ in range(6)
    ]
    honest = Peer(server).upload(play_rounds(np.random.default_rng(4), THETA, 20)).status_code
    return Finding(f"statuses {dict(Counter(statuses))}, an honest agent gets {honest}", honest == 200)


@attack(206, "damaged agent files", sends="400 files with one to three bytes changed", holds="named or without effect")
def damage_agents(arena: Arena) -> Finding:
    server, whole, path = arena.serve(), arena.folder / "whole.db", arena.folder / "agent.db"
    with connect_agent(server, str(whole)) as agent:
        teach(agent, 6)
        agent.flush(15.0)
    server.stop()

    def read(file: Path) -> tuple[int, int, bytes]:
        with connect(server.url, store=str(file), pauses=(60.0, 60.0)) as opened:
            return opened.id, opened.unsent, opened.estimate.tobytes()

    expected, body, random, found = read(whole), whole.read_bytes(), np.random.default_rng(5), Counter[str]()
    for _ in range(400):
        damaged = bytearray(body)
        for place in random.integers(0, len(body), int(random.integers(1, 4))):
            damaged[place] ^= int(random.integers(1, 256))
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.write_bytes(damaged)
        try:
            found["without effect" if read(path) == expected else "silent"] += 1
        except (ValueError, OSError):
            found["named"] += 1
        except Exception as error:
            found[type(error).__name__] += 1
    return Finding(f"{dict(found)}", set(found) <= {"named", "without effect"})
