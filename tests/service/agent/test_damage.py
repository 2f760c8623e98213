"""Agents' files of an earlier version, and files with random damage: nothing wrong is used without a word."""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.service.agent.pool import AgentPool

from ..helpers import CuttableTransport, RunningService, serve_in_process

D = 3
OLD_FILE = Path(__file__).with_name("file_version_6.sql")  # written by commit 9a42ce9
DAMAGES = 1_000


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def open_pool(running: RunningService, path: Path, **options: Any) -> AgentPool:
    transport = CuttableTransport(running)
    transport.up = options.pop("up", True)
    return AgentPool("", store=str(path), transport=transport, min_observations=4, pauses=(0.01, 0.1), senders=1,
                     **options)  # fmt: skip


def test_a_file_of_version_6_goes_on(running: RunningService, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(OLD_FILE.read_text(encoding="utf-8"))
    connection.close()
    with open_pool(running, path, up=False, record_lists=2) as pool:
        assert pool.list_names() == ["ann", "bob", "cid"]
        ann, bob = pool.get("ann"), pool.get("bob")
        assert (ann.id, ann.unsent, ann.buffered, ann.memory.state.confirmed.rounds) == (446129575289, 1, 3, 3)
        np.testing.assert_allclose(ann.estimate, [0.2985009521006379, 0.6143574087203113, 0.7845997422760163])
        np.testing.assert_allclose(bob.estimate, [0.6617622721478834, 0.5679719825998812, -0.1468710750364613])
        assert [each.impression for each in ann.open_lists()] == [10]
        assert len(ann.export_log().users) == 1
        ann.feedback(10, 1)
        assert ann.recommend(np.eye(D), 2).impression > 10
    with open_pool(running, path, record_lists=2) as pool:
        assert pool.get("ann").open_lists()[0].impression != 10


def read_agents(path: Path, running: RunningService, **options: Any) -> list[tuple[Any, ...]]:
    """Read all that decisions and exchanges of the agents depend on."""
    with open_pool(running, path, up=False, **options) as pool:
        rows: list[tuple[Any, ...]] = []
        for name in sorted(pool.list_names()):
            agent = pool.get(name)
            state, lists = agent.memory.state, agent.open_lists()
            counts = state.enrolment.agent, state.local.uploads, state.confirmed.rounds, agent.unsent, agent.lost
            rows.append((name, *counts, agent.estimate.tobytes(), agent.client.key.encode(), len(lists)))
        return rows


def test_no_random_damage_is_silent(running: RunningService, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "agents.db"
    with open_pool(running, whole, tokens=running.operator.create_tokens(3)) as pool:
        for number in range(30):
            agent = pool.get(f"user-{number % 3}")
            agent.feedback(agent.recommend(np.eye(D), 2), number % 2)
            agent.recommend(np.eye(D), 2)
        assert pool.flush(60), pool.trouble
    expected, body = read_agents(whole, running), whole.read_bytes()
    random, found = np.random.default_rng(0), Counter[str]()
    for _ in range(DAMAGES):
        damaged = bytearray(body)
        for place in random.integers(0, len(body), int(random.integers(1, 4))):
            damaged[place] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            found["the same" if read_agents(path, running) == expected else "silent"] += 1
        except ValueError as error:
            found["named" if str(path) in str(error) and "\n" not in str(error) else repr(error)] += 1
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    print(dict(found))
    assert set(found) <= {"the same", "named"}, found
    assert found["named"] > DAMAGES / 4


@pytest.mark.parametrize("what", ["an entry", "a page"])
def test_a_damaged_agent_starts_over_with_its_key(running: RunningService, tmp_path: Path, what: str) -> None:
    path = tmp_path / "agents.db"
    with open_pool(running, path, tokens=running.operator.create_tokens(2)) as pool:
        agent = pool.get("ann")
        for _ in range(6):
            agent.feedback(agent.recommend(np.eye(D), 2), 0)
        assert pool.flush(60), pool.trouble
        number, key = agent.id, agent.client.key.encode()
    if what == "an entry":
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE pool_entry SET value = zeroblob(80) WHERE agent > 0 AND name = 'download'")
        connection.close()
    else:
        body = bytearray(path.read_bytes())
        place = body.rindex(b"pool_list_arrival")
        body[place] ^= 1
        path.write_bytes(body)
    shutil.copy(path, tmp_path / "copy.db")
    with pytest.raises(ValueError, match=r"is damaged .* start_over=True"), open_pool(running, path) as pool:
        pool.get("ann")
    with open_pool(running, path, start_over=True) as pool:
        agent = pool.get("ann")
        assert (agent.id, agent.client.key.encode()) == (number, key)
        agent.feedback(agent.recommend(np.eye(D), 2), 0)
        assert pool.flush(60), pool.trouble
        assert agent.client.fetch_standing().rounds >= 4
        assert running.operator.fetch_overview().enrolled == 1
