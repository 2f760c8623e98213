"""Old uploads fold into one per agent: the state stays the same to the bit, and the chain can still be verified."""

import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.operations import SECONDS_PER_DAY, forget, retain
from fedcascade.service.server.snapshots import list_known_chunks, save_snapshot
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.contract import Store, add_agent
from fedcascade.service.store.open import open_store
from fedcascade.service.store.snapshot import encode_state, read_state
from fedcascade.service.store.sqlite import SqliteStore
from fedcascade.testing.stores import make_unit_upload, record_upload

from ..helpers import ServerProcess, build_unit_upload

DAY = 1000 * SECONDS_PER_DAY
POLICY = POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.05)


def play(store: Store, state: ServerState, agents: list[int], days: range) -> None:
    """Every agent uploads once a day; its axis goes with the agent, so that clusters form."""
    for day in days:
        with store.transaction():
            start = state.position
            for number, agent in enumerate(agents):
                record_upload(store, state, make_unit_upload(agent, day, number % 3), day * 100 + number)
            store.record_batch(start, day * DAY, state.clusters, [(agent, day) for agent in agents])


def dump_without_position(state: ServerState) -> bytes:
    return encode_state(read_state([state.dump()]) | {"position": 0})


@pytest.fixture
def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as opened:
        yield opened


@pytest.fixture
def agents(store: Store) -> list[int]:
    with store.transaction():
        return [add_agent(store, bytes([number]) * 32, 1.0) for number in range(4)]


def test_folding_changes_the_state_by_no_bit_and_replay_neither(store: Store, agents: list[int]) -> None:
    state = ServerState(POLICY, 3)
    play(store, state, agents, range(1, 31))
    assert state.clusters > 1
    before, totals = dump_without_position(state), [store.sum_uploads(agent)[:2] for agent in agents]
    with store.transaction():
        assert not retain(10.0, 31.0 * SECONDS_PER_DAY)(store, state)
    assert dump_without_position(state) == before
    assert replay_log(store, POLICY, 3).dump() == state.dump()
    assert len(list(store.read_entries(after=0))) == 4 * (1 + 10)
    assert [store.sum_uploads(agent)[:2] for agent in agents] == totals
    assert [row.uploads for row in store.sum_by_agent(10**6)] == [30] * 4
    assert len(store.read_changes(0, 10**6).moves) == 4 * (1 + 10)
    assert store.verify()[0] == state.position == 121
    play(store, state, agents, range(31, 61))
    with store.transaction():
        retain(10.0, 61.0 * SECONDS_PER_DAY)(store, state)
    assert replay_log(store, POLICY, 3).dump() == state.dump()
    assert len(list(store.read_entries(after=0))) == 4 * (1 + 10)
    assert store.verify()[0] == state.position


def test_another_policy_finds_the_same_sums(store: Store, agents: list[int]) -> None:
    state = ServerState(POLICY, 3)
    play(store, state, agents, range(1, 31))
    with store.transaction():
        retain(10.0, 31.0 * SECONDS_PER_DAY)(store, state)
    other = replay_log(store, POLICIES["fedlinucb"], 3)
    for agent in agents:
        held, expected = other.get_statistics(agent), state.get_statistics(agent)
        np.testing.assert_array_equal(held.gram, expected.gram)
        assert (held.count, held.rounds) == (expected.count, expected.rounds)


def test_a_folded_upload_counts_once_and_the_last_one_can_be_repeated(store: Store, agents: list[int]) -> None:
    """The last upload of an agent stays by itself, however old: its answer may have been lost."""
    state = ServerState(POLICY, 3)
    play(store, state, agents, range(1, 31))
    with store.transaction():
        retain(1.0, 400.0 * SECONDS_PER_DAY)(store, state)
        assert len(list(store.read_entries(after=0))) == 8
        before = dump_without_position(state)
        record_upload(store, state, make_unit_upload(agents[0], 30, 0), 10**6)
        with pytest.raises(Refused, match="was counted long ago") as refused:
            record_upload(store, state, make_unit_upload(agents[0], 7, 0), 10**6 + 1)
        assert (refused.value.status, refused.value.reason) == (409, "superseded")
        assert dump_without_position(state) == before
    assert store.verify()[0] == state.position  # also where the last entry of all was folded


def test_a_folded_agent_can_be_forgotten(store: Store, agents: list[int]) -> None:
    state = ServerState(POLICY, 3)
    play(store, state, agents, range(1, 31))
    with store.transaction():
        retain(10.0, 31.0 * SECONDS_PER_DAY)(store, state)
        forget(agents[1])(store, state)
    assert replay_log(store, POLICY, 3).dump() == state.dump()
    assert store.verify()[0] == state.position
    play(store, state, [agent for agent in agents if agent != agents[1]], range(31, 61))
    with store.transaction():
        retain(10.0, 61.0 * SECONDS_PER_DAY)(store, state)
    assert store.verify()[0] == state.position
    assert replay_log(store, POLICY, 3).dump() == state.dump()


def test_an_idle_server_does_not_count_folded_uploads_again(store: Store, agents: list[int]) -> None:
    """Another process has read half of what is folded; it goes on from the snapshot that came with the fold."""
    state = ServerState(POLICY, 3)
    play(store, state, agents, range(1, 6))
    idle = replay_log(store, POLICY, 3)
    play(store, state, agents, range(6, 31))
    with store.transaction():
        retain(10.0, 31.0 * SECONDS_PER_DAY)(store, state)
    assert replay_log(store, POLICY, 3, idle).dump() == state.dump()


def test_a_snapshot_writes_only_what_changed(store: SqliteStore) -> None:
    state = ServerState(POLICIES["fedc3ucb-h"], 20)
    with store.transaction():
        agents = [add_agent(store, number.to_bytes(32), 1.0) for number in range(100)]
        for number, agent in enumerate(agents):
            for sequence in range(1, 2 + number // 20):
                record_upload(store, state, make_unit_upload(agent, sequence, number % 20, dimension=20), sequence)
        save_snapshot(store, state)
        before = list_known_chunks(store)
        record_upload(store, state, make_unit_upload(agents[7], 9, 1, dimension=20), 9)
        save_snapshot(store, state)
        after = list_known_chunks(store)
    assert len(before) > 20
    assert len(after - before) <= 8
    assert {digest for [digest] in store.fetch_rows("SELECT digest FROM chunk")} == after
    assert replay_log(store, POLICIES["fedc3ucb-h"], 20).dump() == state.dump()


def test_a_server_that_is_told_to_retain_folds_while_it_runs(tmp_path: Path) -> None:
    """It looks when it starts; the state, as agents and operator see it, is the same before and after."""
    process = ServerProcess(tmp_path, "sqlite:///store.db").start()
    running = process.connect()
    agent = running.enrol()
    for sequence in range(1, 31):
        agent.exchange(build_unit_upload(sequence, sequence % 3, 3))
    before = agent.fetch_standing()
    running.transport.close()
    process.stop()
    process.options = (*process.options, "--retain", "0.000001")
    running = process.start().connect()
    url, deadline = f"sqlite:///{tmp_path}/store.db", time.monotonic() + 30.0
    with closing(open_store(url)) as opened:
        while not any(record.action == "folded" for record in opened.read_audit()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(list(opened.read_entries(after=0))) == 2
        opened.verify()
    again = AgentClient(running.transport, agent.key, agent.agent)
    assert again.fetch_standing() == before
    again.exchange(build_unit_upload(31, 0, 3))
    running.transport.close()
    process.stop()
