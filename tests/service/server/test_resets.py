"""A reset is an upload that says what is kept: counted once, bounded by what was uploaded, and gone when forgotten."""

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
from fedcascade.service.server.bounds import UploadBounds
from fedcascade.service.server.operations import forget, record_upload
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.backup import restore_backup, write_backup
from fedcascade.service.store.open import open_store
from fedcascade.service.store.sqlite import open_sqlite
from fedcascade.testing.stores import make_unit_upload

from ..helpers import RunningService, serve_in_process

D = 4
LIVING = POLICIES["fedc3ucb-l"]


def make_sums(*axes: int) -> Statistics:
    """The sums of rounds in each of which one item was shown and clicked, a unit vector."""
    diagonal = np.bincount(axes, minlength=D).astype(float) if axes else np.zeros(D)
    return Statistics(np.diag(diagonal), diagonal.copy(), len(axes), len(axes), len(axes))


def make_message(sequence: int, *axes: int, kept: Statistics | None = None) -> wire.UploadMessage:
    cause = Cause.FORCED if kept is None else Cause.CHANGE
    return wire.UploadMessage.from_upload(
        Upload(agent=0, sequence=sequence, cause=cause, statistics=make_sums(*axes), kept=kept)
    )


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db", policy=LIVING, dimension=D) as service:
        yield service


def read_state(running: RunningService, read) -> object:  # type: ignore[no-untyped-def]
    assert running.writer is not None
    return running.writer.submit(lambda _, state: read(state)).result()


def held_of(agent: AgentClient) -> list[float]:
    return [float(number) for number in np.diag(agent.fetch_standing().unpack_held(D).gram)]


@pytest.mark.parametrize("media_type", [wire.JSON, wire.MSGPACK])
def test_a_reset_is_read_back_from_the_wire_and_older_messages_have_none(media_type: str) -> None:
    reset = make_message(3, 0, 1, kept=make_sums(1))
    body = wire.encode(reset, media_type)
    assert wire.decode(body, wire.UploadMessage, media_type) == reset
    plain = wire.encode(make_message(1, 0), media_type)
    assert b"kept" not in plain
    assert wire.decode(plain, wire.UploadMessage, media_type).to_upload(7, D).kept is None


def test_a_reset_counts_once_and_leaves_a_former_self(running: RunningService) -> None:
    agent = running.enrol()
    agent.exchange(make_message(1, 0, 0, 1))
    reset = make_message(2, 2, kept=make_sums(1, 2))
    for _ in range(3):  # the answer was lost twice
        answer = agent.exchange(reset)
        assert (answer.held_count, answer.held_rounds, answer.agents) == (2, 2, 1)
    standing = agent.fetch_standing()
    assert (standing.uploads, standing.rounds, standing.last_sequence, standing.last_reset) == (2, 2, 2, 2)
    assert held_of(agent) == [0.0, 1.0, 1.0, 0.0]
    overview = running.operator.fetch_overview()
    assert (overview.rounds, overview.resets, overview.ghosts, overview.spoken) == (4, 1, 1, 1)
    assert np.diag(read_state(running, lambda state: state.sum_statistics()).gram).tolist() == [2, 1, 1, 0]  # type: ignore[attr-defined]
    metrics = running.transport.send("GET", "/metrics", b"", {}).body
    assert b"fedcascade_resets 1.0" in metrics
    assert b"fedcascade_ghosts 1.0" in metrics
    with pytest.raises(Refused) as refused:
        agent.exchange(make_message(2, 2, kept=make_sums(2)))
    assert refused.value.reason == "conflict"


@pytest.mark.parametrize("kept", [make_sums(0, 3), make_sums(0, 0, 0, 0), make_sums(1, 1)])
def test_what_was_never_uploaded_cannot_be_kept_and_nothing_changes(running: RunningService, kept: Statistics) -> None:
    agent, other = running.enrol(), running.enrol()
    agent.exchange(make_message(1, 0, 0, 1))
    other.exchange(make_message(1, 3))
    with pytest.raises(Refused) as refused:
        agent.exchange(make_message(2, 2, kept=kept))
    assert (refused.value.status, refused.value.reason) == (409, "reset")
    assert "what is kept must be a part of all that was uploaded" in str(refused.value)
    assert held_of(agent) == [2.0, 1.0, 0.0, 0.0]
    assert held_of(other) == [0.0, 0.0, 0.0, 1.0]
    assert running.operator.fetch_overview().resets == 0


@pytest.mark.parametrize(
    "kept",
    [
        Statistics(np.diag([2.0, 0, 0, 0]), np.zeros(D), 1, 0, 1),  # longer than items are
        Statistics(np.eye(D), np.zeros(D), 0, 0, 0),  # data of no rounds
        Statistics(np.eye(D) / 3, np.zeros(D), 4, 0, 4),  # not on the grid
        Statistics(np.eye(3), np.zeros(3), 3, 0, 3),  # another dimension
    ],
)
def test_what_no_data_can_have_cannot_be_kept(running: RunningService, kept: Statistics) -> None:
    agent = running.enrol()
    with pytest.raises(Refused) as refused:
        agent.exchange(make_message(1, 0, kept=kept))
    assert (refused.value.status, refused.value.reason) == (422, "impossible")


def test_resets_do_not_let_an_agent_claim_more_rounds(tmp_path: Path) -> None:
    """Bounds hold for all selves together, also for those that have given way."""
    bounds = UploadBounds(min_observations=1, rounds_burst=8, rounds_per_hour=0.0)
    with serve_in_process(tmp_path / "store.db", policy=LIVING, dimension=D, bounds=bounds) as running:
        agent = running.enrol()
        for sequence in range(1, 9):
            agent.exchange(make_message(sequence, sequence % D, kept=make_sums()))
        assert running.operator.fetch_overview().ghosts == 4
        with pytest.raises(Refused) as refused:
            agent.exchange(make_message(9, 0, kept=make_sums()))
        assert refused.value.reason == "too-many-rounds"


def test_a_server_of_another_policy_takes_a_reset_as_an_upload_and_the_living_one_replays_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with serve_in_process(path, policy=POLICIES["fedc3ucb-h"], dimension=D) as running:
        agent = running.enrol()
        agent.exchange(make_message(1, 0, 1))
        assert agent.exchange(make_message(2, 2, kept=make_sums(2))).held_rounds == 3
        assert agent.exchange(make_message(3, 3, kept=make_sums(0, 3))).held_rounds == 4
    with closing(open_store(f"sqlite:///{path}")) as store:
        state = replay_log(store, LIVING, D)
    assert (state.resets, state.ghosts, state.rounds) == (1, 1, 4)  # the second one keeps what its self never had
    assert np.diag(state.get_statistics(agent.agent).gram).tolist() == [0, 0, 1, 1]


def test_snapshots_replays_and_backups_hold_former_selves(tmp_path: Path) -> None:
    """Also those that are taken in the middle, and of which only changed rows are written."""
    random, sequence = np.random.default_rng(5), 0
    with (
        closing(open_sqlite(str(tmp_path / "store.db"))) as store,
        closing(open_sqlite(str(tmp_path / "copy.db"))) as copy,
    ):
        live = ServerState(LIVING, D)
        with store.transaction():
            agents = [store.add_agent(bytes([name]) * 32, 1.0) for name in range(6)]
            for sequence in range(1, 121):
                agent = agents[random.integers(6)]
                kept = None if random.random() < 0.7 else live.get_statistics(agent)
                upload = replace(make_unit_upload(agent, sequence, sequence % D, D), kept=kept)
                record_upload(store, live, upload, sequence)
                if sequence % 17 == 0:
                    save_snapshot(store, live)
                if sequence == 60:
                    forget(agents[2])(store, live)
                    agents[2] = store.add_agent(bytes([9]) * 32, 1.0)
        assert live.ghosts > 6
        assert live.observations == live.sum_statistics().count
        assert replay_log(store, LIVING, D).dump() == live.dump()
        write_backup(store, tmp_path / "backup", 1)
        restore_backup(tmp_path / "backup", copy, 2)
        assert replay_log(copy, LIVING, D).dump() == live.dump()
        again = ServerState(LIVING, D)
        assert replay_log(copy, LIVING, D, again).position == live.position


def test_who_is_forgotten_leaves_no_former_self(running: RunningService) -> None:
    agents = [running.enrol() for _ in range(3)]
    for agent in agents:
        agent.exchange(make_message(1, 0, 1, 2))
        agent.exchange(make_message(2, 3, kept=make_sums(3)))
    agents[0].leave()
    overview = running.operator.fetch_overview()
    assert (overview.rounds, overview.ghosts, overview.spoken) == (8, 2, 2)
    assert np.diag(read_state(running, lambda state: state.sum_statistics()).gram).tolist() == [2, 2, 2, 2]  # type: ignore[attr-defined]
    for agent in agents[1:]:
        assert held_of(agent) == [0.0, 0.0, 0.0, 1.0]
        assert agent.exchange(make_message(3, 0, 0)).held_rounds == 3
    assert sorted(running.operator.fetch_overview().labels) == sorted(str(agent.agent) for agent in agents[1:])
