"""A snapshot gets into the store in pieces; one that is interrupted leaves nothing that counts or stays."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.server import snapshots
from fedcascade.service.server.snapshots import SnapshotSchedule
from fedcascade.service.server.state import ServerState, replay_log, track_rows
from fedcascade.service.store.contract import Store, add_agent
from fedcascade.service.store.open import open_store
from fedcascade.service.store.snapshot import ChangedRows
from fedcascade.service.store.sqlite import SqliteStore
from fedcascade.testing.stores import make_unit_upload, record_upload

from ..helpers import find_last_snapshot

POLICY = POLICIES["fedc3ucb-h"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as opened:
        yield opened


def upload(store: Store, state: ServerState, agents: list[int], sequence: int) -> None:
    with store.transaction():
        for number, agent in enumerate(agents):
            record_upload(store, state, make_unit_upload(agent, sequence, number % 20, dimension=20), sequence)


def advance(store: Store, state: ServerState, schedule: SnapshotSchedule, transactions: int = 10_000) -> int:
    """Let a schedule work in so many transactions, or until it rests; how many it took once it was encoded."""
    deadline, written = time.monotonic() + 30.0, 0
    with store.transaction():
        schedule.advance(store, state, 0)
    while schedule.is_busy and written < transactions and time.monotonic() < deadline:
        with store.transaction():
            before = list_chunks(store)
            schedule.advance(store, state, 0)
            written += list_chunks(store) != before or not schedule.is_busy
    assert time.monotonic() < deadline
    return written


def list_chunks(store: Store) -> set[bytes]:
    assert isinstance(store, SqliteStore)
    return {digest for [digest] in store.fetch_rows("SELECT digest FROM chunk")}


def upload_twice(store: Store) -> tuple[ServerState, list[int]]:
    """The state after two uploads of each of sixty agents, and their numbers."""
    state = ServerState(POLICY, 20)
    with store.transaction():
        agents = [add_agent(store, number.to_bytes(32), 1.0) for number in range(60)]
    upload(store, state, agents, 1)
    upload(store, state, agents, 2)
    return state, agents


def test_an_interrupted_snapshot_does_not_count_and_its_chunks_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "BYTES_PER_COMMIT", 1)  # one chunk in a transaction
    state, agents = upload_twice(store)
    schedule = SnapshotSchedule(every=1)
    assert advance(store, state, schedule, transactions=3) == 3
    assert store.read_snapshot() is None
    schedule.close()  # as where the process ends here

    upload(store, state, agents, 3)
    upload(store, state, agents, 4)
    schedule = SnapshotSchedule(every=1)
    assert advance(store, state, schedule) > 3
    assert find_last_snapshot(store) == state.position == 240
    assert replay_log(store, POLICY, 20).dump() == state.dump()
    for sequence in range(5, 8):
        upload(store, state, agents, sequence)
        advance(store, state, schedule)
    upload(store, state, agents, 8)
    upload(store, state, agents, 9)
    advance(store, state, schedule)
    assert replay_log(store, POLICY, 20).dump() == state.dump()
    snapshot = store.read_snapshot()
    assert snapshot is not None
    assert len(list_chunks(store).difference(snapshot.digests)) <= len(snapshot.digests)
    schedule.close()


def test_a_snapshot_whose_chunk_another_server_deleted_is_given_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "BYTES_PER_COMMIT", 1)
    state, agents = upload_twice(store)
    schedule = SnapshotSchedule(every=1)
    advance(store, state, schedule, transactions=3)
    with store.transaction():
        assert store.commit_snapshot(0, [], purge=True)
    assert list_chunks(store) == set()
    advance(store, state, schedule)
    assert store.read_snapshot() is None
    assert replay_log(store, POLICY, 20).dump() == state.dump()
    upload(store, state, agents, 3)
    upload(store, state, agents, 4)
    advance(store, state, schedule)
    assert find_last_snapshot(store) == state.position
    assert replay_log(store, POLICY, 20).dump() == state.dump()
    schedule.close()


@pytest.mark.parametrize("policy", ["fedc3ucb-h", "population", "fedind"])
def test_a_snapshot_writes_the_agents_that_have_changed_and_no_others(store: Store, policy: str) -> None:
    state = ServerState(POLICIES[policy], 20)
    with store.transaction():
        agents = [add_agent(store, number.to_bytes(32), 1.0) for number in range(60)]
    upload(store, state, agents[:40], 1)
    schedule = SnapshotSchedule(every=1)
    advance(store, state, schedule)
    upload(store, state, agents[7:9], 2)
    rows = take_rows(state)
    assert list(rows["gram"].pieces) == [1, 7]  # five agents in each; the last one is always there
    advance(store, state, schedule)
    assert find_last_snapshot(store) == state.position == 42
    upload(store, state, agents[40:], 1)  # newcomers
    advance(store, state, schedule)
    assert find_last_snapshot(store) == state.position
    assert replay_log(store, POLICIES[policy], 20).dump() == state.dump()
    schedule.close()

    again = replay_log(store, POLICIES[policy], 20)  # a server that starts knows what it has read
    upload(store, again, [agents[59]], 2)
    assert list(take_rows(again)["gram"].pieces) == [11]
    with store.transaction():
        snapshots.save_snapshot(store, again)
    snapshot = store.read_snapshot()
    assert snapshot is not None
    assert list_chunks(store) == set(snapshot.digests)
    assert replay_log(store, POLICIES[policy], 20).dump() == again.dump()


def take_rows(state: ServerState) -> dict[str, ChangedRows]:
    """What a snapshot would copy of the holdings."""
    rows: dict[str, ChangedRows] = track_rows(state.to_state(), state.changed, state.row_digests)["server"]["holdings"]
    return rows
