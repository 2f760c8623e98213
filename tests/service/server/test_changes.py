"""An upload after a change replaces all earlier ones of its agent: counted once, replayed, and forgotten."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.operations import forget
from fedcascade.service.server.settings import UploadBounds
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.backup import restore_backup, write_backup
from fedcascade.service.store.contract import add_agent
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import open_sqlite
from fedcascade.testing.stores import make_unit_upload, record_upload

from ..helpers import RunningService, serve_in_process

D = 4
LIVING = POLICIES["population"].with_constants(drift="restart")


def make_sums(*axes: int) -> Statistics:
    """The sums of rounds in each of which one item was shown and clicked, a unit vector."""
    diagonal = np.bincount(axes, minlength=D).astype(float) if axes else np.zeros(D)
    return Statistics(np.diag(diagonal), diagonal.copy(), len(axes), len(axes), len(axes))


def make_message(sequence: int, *axes: int, cause: Cause = Cause.FORCED) -> wire.UploadMessage:
    return wire.UploadMessage.from_upload(Upload(agent=0, sequence=sequence, cause=cause, statistics=make_sums(*axes)))


def make_change(sequence: int, *axes: int) -> wire.UploadMessage:
    return make_message(sequence, *axes, cause=Cause.CHANGE)


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db", policy=LIVING, dimension=D) as service:
        yield service


def read_state(running: RunningService, read) -> object:  # type: ignore[no-untyped-def]
    assert running.writer is not None
    return running.writer.submit(lambda _, state: read(state)).result()


def held_of(agent: AgentClient) -> list[float]:
    return [float(number) for number in np.diag(agent.fetch_standing().unpack_held(D).gram)]


def test_a_change_replaces_what_came_before_and_counts_once(running: RunningService) -> None:
    agent = running.enrol()
    agent.exchange(make_message(1, 0, 0, 1))
    for _ in range(3):  # the answer was lost twice
        answer = agent.exchange(make_change(2, 1, 2))
        assert (answer.held_count, answer.held_rounds, answer.agents) == (2, 2, 1)
    standing = agent.fetch_standing()
    assert (standing.uploads, standing.rounds, standing.last_sequence, standing.last_change) == (2, 2, 2, 2)
    assert held_of(agent) == [0.0, 1.0, 1.0, 0.0]
    overview = running.operator.fetch_overview()
    assert (overview.rounds, overview.resets, overview.active) == (2, 1, 1)
    assert b"fedcascade_resets_total 1.0" in running.transport.send("GET", "/metrics", b"", {}).content
    for other in (make_change(2, 2), make_message(2, 1, 2)):
        with pytest.raises(Refused) as refused:
            agent.exchange(other)
        assert refused.value.reason == "conflict"
    assert agent.exchange(make_message(3, 3)).held_rounds == 3


def test_a_change_is_checked_like_any_upload(running: RunningService) -> None:
    agent = running.enrol()
    agent.exchange(make_message(1, 0, 0, 1))
    for broken in (Statistics(np.eye(D) / 3, np.zeros(D), 4, 0, 4), make_sums()):
        upload = Upload(agent=0, sequence=2, cause=Cause.CHANGE, statistics=broken)
        with pytest.raises(Refused) as refused:
            agent.exchange(wire.UploadMessage.from_upload(upload))
        assert refused.value.status == 422
    assert held_of(agent) == [2.0, 1.0, 0.0, 0.0]
    assert running.operator.fetch_overview().resets == 0


def test_bounds_on_rounds_hold_for_what_a_change_leaves(tmp_path: Path) -> None:
    bounds = UploadBounds(min_observations=1, rounds_burst=4, rounds_per_hour=0.0)
    with serve_in_process(tmp_path / "store.db", policy=LIVING, dimension=D, bounds=bounds) as running:
        agent = running.enrol()
        for sequence in range(1, 7):
            agent.exchange(make_change(sequence, 0, 1, 2))
        for too_many in (make_change(7, 0, 1, 2, 3, 3), make_message(7, 0, 1)):
            with pytest.raises(Refused) as refused:
                agent.exchange(too_many)
            assert refused.value.reason == "too-many-rounds"


@pytest.mark.parametrize("name", ["fedc3ucb-h", "population", "fedlinucb"])
def test_servers_of_other_policies_take_and_replay_changes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "store.db"
    with serve_in_process(path, policy=POLICIES[name], dimension=D) as running:
        agent, other = running.enrol(), running.enrol()
        other.exchange(make_message(1, 0, 1))
        agent.exchange(make_message(1, 0, 1))
        assert agent.exchange(make_change(2, 2)).held_rounds == 1
    with closing(open_store(f"sqlite:///{path}")) as store:
        state = replay_log(store, LIVING, D)
    assert (state.resets, state.rounds) == (1, 3)
    assert np.diag(state.get_statistics(agent.agent).gram).tolist() == [0, 0, 1, 0]


def test_snapshots_replays_and_backups_agree_after_changes(tmp_path: Path) -> None:
    """Also those that are taken in the middle, and of which only changed rows are written."""
    random, sequence = np.random.default_rng(5), 0
    with (
        closing(open_sqlite(str(tmp_path / "store.db"))) as store,
        closing(open_sqlite(str(tmp_path / "copy.db"))) as copy,
    ):
        live = ServerState(LIVING, D)
        with store.transaction():
            agents = [add_agent(store, bytes([name]) * 32, 1.0) for name in range(6)]
            for sequence in range(1, 121):
                agent, cause = agents[random.integers(6)], Cause.FORCED if random.random() < 0.7 else Cause.CHANGE
                upload = replace(make_unit_upload(agent, sequence, sequence % D, D), cause=cause)
                record_upload(store, live, upload, sequence)
                if sequence % 17 == 0:
                    save_snapshot(store, live)
                if sequence == 60:
                    forget(agents[2])(store, live)
                    agents[2] = add_agent(store, bytes([9]) * 32, 1.0)
        assert live.resets > 6
        assert live.observations == live.sum_statistics().count == live.rounds
        assert replay_log(store, LIVING, D).dump() == live.dump()
        write_backup(store, tmp_path / "backup", 1)
        restore_backup(tmp_path / "backup", copy, 2)
        assert replay_log(copy, LIVING, D).dump() == live.dump()
        again = ServerState(LIVING, D)
        assert replay_log(copy, LIVING, D, again).position == live.position


def test_an_agent_that_leaves_after_a_change_leaves_nothing(running: RunningService) -> None:
    agents = [running.enrol() for _ in range(3)]
    for agent in agents:
        agent.exchange(make_message(1, 0, 1, 2))
        agent.exchange(make_change(2, 3))
    agents[0].leave()
    overview = running.operator.fetch_overview()
    assert (overview.rounds, overview.active) == (2, 2)
    assert np.diag(read_state(running, lambda state: state.sum_statistics()).gram).tolist() == [0, 0, 0, 2]  # type: ignore[attr-defined]
    for agent in agents[1:]:
        assert held_of(agent) == [0.0, 0.0, 0.0, 1.0]
        assert agent.exchange(make_message(3, 0, 0)).held_rounds == 3
    assert sorted(running.operator.fetch_overview().labels) == sorted(str(agent.agent) for agent in agents[1:])
