"""A server verifies its whole store in the background, shows when, and logs damage."""

import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from fedcascade.service.protocol.errors import Unavailable
from fedcascade.service.server.app import SCRUBS, scrub
from fedcascade.service.store.chain import DamagedStore
from fedcascade.service.store.open import open_store

from ..helpers import RunningService, ServerProcess, build_unit_upload, serve_in_process

EVERY_SECOND = "0.0003"  # hours


def read_scrubbed(running: RunningService) -> float:
    text = running.transport.send("GET", "/metrics", b"", {}).text
    return float(re.search(r"^fedcascade_scrubbed (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.05)


def test_the_metric_moves_while_the_store_is_whole_and_damage_is_logged(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "sqlite:///store.db", "--scrub", EVERY_SECOND).start()
    running = server.connect()
    assert server.process is not None
    assert server.process.stderr is not None
    agent = running.enrol()
    for sequence in range(1, 9):
        agent.exchange(build_unit_upload(sequence, 0, 3))
    began = time.time()
    wait_for(lambda: read_scrubbed(running) > began)
    first = read_scrubbed(running)
    wait_for(lambda: read_scrubbed(running) > first)

    with closing(sqlite3.connect(tmp_path / "store.db", timeout=30.0)) as database, database:
        [numbers] = database.execute("SELECT numbers FROM upload WHERE position = 2").fetchone()
        changed = bytes([*numbers[:-1], numbers[-1] ^ 1])
        database.execute("UPDATE upload SET numbers = ? WHERE position = 2", [changed])
    line = next(line for line in server.process.stderr if "cannot be verified" in line)
    assert "entry 2 of the log" in line
    last = read_scrubbed(running)
    agent.exchange(build_unit_upload(9, 0, 3))  # it goes on, and the alert is for the operator
    time.sleep(2.5)
    assert read_scrubbed(running) == last
    running.transport.close()
    server.stop()


class MisledStore:
    """A store whose first verifications fail, as if it changed while they read it."""

    def __init__(self, running: RunningService, mistakes: int, forgotten: list[int]) -> None:
        self.running, self.store = running, open_store(running.url)
        self.mistakes, self.forgotten = mistakes, forgotten

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def verify(self) -> tuple[int, bytes]:
        found: tuple[int, bytes] = self.store.verify()
        if self.forgotten:
            self.running.operator.forget(self.forgotten.pop())  # which rewrites the log
        self.mistakes -= 1
        if self.mistakes >= 0:
            raise DamagedStore("an entry")
        return found


@pytest.mark.parametrize(
    ("mistakes", "rewrites", "error"),
    [(SCRUBS - 1, 0, None), (SCRUBS - 1, 2, None), (SCRUBS, 0, DamagedStore), (SCRUBS, SCRUBS, Unavailable)],
)
def test_a_store_that_changes_meanwhile_is_verified_again(
    tmp_path: Path, mistakes: int, rewrites: int, error: type[Exception] | None
) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        agents = [running.enrol() for _ in range(SCRUBS + 1)]
        for agent in agents:
            agent.exchange(build_unit_upload(1, 0, 3))
        store = MisledStore(running, mistakes, [agent.agent for agent in agents[:rewrites]])
        with nullcontext() if error is None else pytest.raises(error):
            scrub(lambda: store)  # type: ignore[arg-type, return-value]
