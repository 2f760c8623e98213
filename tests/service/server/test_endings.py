"""A server ends in time and answers in time, whatever is stuck beside it. Real processes."""

import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from attack.arena import open_arena
from attack.freezes import freeze_verifier

from ..helpers import ServerProcess, build_unit_upload


def test_a_frozen_verifier_is_replaced_and_the_server_ends_in_time(tmp_path: Path) -> None:
    with open_arena(tmp_path / "arena") as arena:
        found = freeze_verifier(arena)
    assert found.held, found.measured


def test_a_server_ends_in_time_though_its_store_does_not_answer(tmp_path: Path) -> None:
    """Somebody else holds the database for writing, an upload waits for it, and the server is told to stop."""
    server = ServerProcess(tmp_path, "sqlite:///store.db").start()
    try:
        running = server.connect()
        agent = running.enrol()
        agent.exchange(build_unit_upload(1, 0, 3))
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

            def upload() -> None:
                with suppress(Exception):
                    agent.exchange(build_unit_upload(2, 0, 3))

            waiting = threading.Thread(target=upload)
            waiting.start()
            while b"fedcascade_connections 2.0" not in running.transport.send("GET", "/metrics", b"", {}).content:
                time.sleep(0.05)  # until the upload waits on a connection of its own
            assert server.process is not None
            began = time.monotonic()
            server.process.terminate()
            server.process.wait(30)
            assert time.monotonic() - began < 10.0
            waiting.join()
        running.transport.close()
    finally:
        server.stop()
    again = server.start().connect()
    try:
        assert again.operator.fetch_overview().position == 1
    finally:
        again.transport.close()
        server.stop()
