"""The contract of stores as a class of tests: inherit ``StoreContract``, override ``open``, and run pytest."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, replace

import numpy as np

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol.auth import SignatureHeaders
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.exchange import Exchange
from fedcascade.service.server.operations import SECONDS_PER_DAY, forget, retain
from fedcascade.service.server.settings import FOR_SIMULATIONS
from fedcascade.service.server.snapshots import save_snapshot
from fedcascade.service.server.state import ServerState, replay_log, warm_up
from fedcascade.service.store.chain import DamagedStore
from fedcascade.service.store.contract import AgentState, LogEntry, Revoked, Store, add_agent, is_same_upload
from fedcascade.service.store.snapshot import digest_chunk

DIMENSION = 3
GROUPS = POLICIES["fedc3ucb-h"].with_constants(alpha_d=0.05)  # splits agents into groups
STATES: tuple[AgentState, ...] = ("active", "idle", "revoked")


def make_unit_upload(agent: int, sequence: int, axis: int, dimension: int = DIMENSION) -> Upload:
    """Make an upload of one round with one clicked item, a unit vector."""
    gram, moment = np.zeros((dimension, dimension)), np.zeros(dimension)
    gram[axis, axis] = moment[axis] = 1.0
    return Upload(agent=agent, sequence=sequence, cause=Cause.FORCED, statistics=Statistics(gram, moment, 1, 1, 1))


def make_entry(position: int, agent: int, sequence: int, axis: int = 0) -> LogEntry:
    """Make an entry of the log with an upload of a unit vector."""
    upload = make_unit_upload(agent, sequence, axis)
    return LogEntry(position=position, upload=upload, nonce=sequence.to_bytes(8, "big"))


def record_upload(store: Store, state: ServerState, upload: Upload, nonce: int) -> bytes:
    """Count an upload with a signature of this nonce, as a server does; return the answer."""
    signature = SignatureHeaders(upload.agent, 0, nonce, upload.sequence, "", "", "")
    return Exchange(headers={}, signature=signature, upload=upload, bounds=FOR_SIMULATIONS).run(store, state)


def are_same_entries(entries: Sequence[LogEntry | None], expected: Sequence[LogEntry]) -> bool:
    """Return whether entries have the same uploads, positions and nonces."""
    return len(entries) == len(expected) and all(
        entry is not None
        and (entry.position, entry.nonce) == (wanted.position, wanted.nonce)
        and is_same_upload(entry.upload, wanted.upload)
        for entry, wanted in zip(entries, expected, strict=True)
    )


def revoke_agent(store: Store, agent: int) -> None:
    """Revoke an agent."""
    identity = store.find_identity(agent)
    assert identity is not None
    store.put_identity(replace(identity, revoked=2.0))


def can_upload(store: Store, agent: int) -> bool:
    """Return whether the store accepts uploads of an agent."""
    with suppress(Revoked):
        store.find_entry(agent, 1)
        return True
    return False


def expect(failure: type[Exception] | tuple[type[Exception], ...], call: Callable[[], object]) -> Exception:
    """Run a call that must raise an exception, and return it."""
    try:
        call()
    except failure as error:
        return error
    raise AssertionError(f"{failure} was not raised")


def read_snapshot(store: Store) -> tuple[int, bytes] | None:
    """Return the position and the bytes of the snapshot."""
    loaded = store.read_snapshot()
    return None if loaded is None else (loaded.position, b"".join(loaded.chunks))


def is_replayed(store: Store, live: ServerState) -> bool:
    """Return whether the log of a store gives the bits of a live state."""
    return replay_log(store, live.policy, live.dimension).dump() == live.dump()


class StoreContract:
    """The duties of a ``Store``: log, identities, snapshots, journal, audit log, settings, transactions and replays."""

    def open(self) -> Store:
        """Open the database of this test, which is empty when the test begins. A test opens it several times."""
        raise NotImplementedError

    def test_the_log_is_read_in_order_and_in_pieces(self) -> None:
        with closing(self.open()) as store:
            with store.transaction():
                agent = add_agent(store, b"k" * 32, 1.0)
                written = [make_entry(position, agent, position, position % 3) for position in range(1, 1200)]
                for entry in written:
                    store.append(*entry)
            assert are_same_entries(list(store.read_entries(after=0)), written)
            assert are_same_entries(list(store.read_entries(after=1190)), written[1190:])
            assert are_same_entries([store.find_entry(agent, 18)], [written[17]])
            assert store.find_entry(agent, 1800) is None
            assert store.sum_uploads(agent)[:2] == (1199, 1199)

    def test_the_same_sequence_number_cannot_be_logged_twice(self) -> None:
        with closing(self.open()) as store:

            def append(position: int) -> None:
                with store.transaction():
                    store.append(*make_entry(position, 1, 1))

            append(1)
            expect(store.failures, lambda: append(2))
            assert len(list(store.read_entries(after=0))) == 1

    def test_prefetched_entries_are_those_of_the_log(self) -> None:
        with closing(self.open()) as store, store.transaction():
            agent, revoked = (add_agent(store, bytes([name]) * 32, 1.0) for name in (1, 2))
            store.append(*make_entry(1, agent, 1, axis=2))
            assert are_same_entries([store.find_entry(agent, 1)], [make_entry(1, agent, 1, axis=2)])
        wanted = [(agent, sequence) for sequence in range(1, 150)] + [(revoked, 1)]
        with closing(self.open()) as store, store.transaction(wanted):
            assert are_same_entries([store.find_entry(agent, 1)], [make_entry(1, agent, 1, axis=2)])
            assert store.find_entry(agent, 149) is None
            revoke_agent(store, revoked)
            assert not can_upload(store, revoked)

    def test_a_nonce_is_valid_once_for_each_agent_until_it_is_stale(self) -> None:
        with closing(self.open()) as store, store.transaction():
            assert [store.use_nonce(agent, 7, 1_000) for agent in (1, 2, 1)] == [True, True, False]
            assert store.use_nonce(1, 10**18 - 1, 1_000)
            assert store.use_nonce(1, 8, 900_000)
            assert store.use_nonce(1, 7, 900_001)

    def test_revoked_and_unknown_agents_cannot_upload(self) -> None:
        """Give a number again only on request, and only if it is free."""
        with closing(self.open()) as store, store.transaction():
            first, second = (add_agent(store, bytes([name]) * 32, 1.0) for name in (1, 2))
            revoke_agent(store, first)
            assert store.find_entry(second, 1) is None
            assert [can_upload(store, agent) for agent in (first, second, 99)] == [False, True, False]
            store.forget_agent(second, 1)
            assert store.find_identity(second) is None
            assert add_agent(store, bytes([3]) * 32, 3.0) not in (first, second)
            assert add_agent(store, bytes([4]) * 32, 3.0, wanted=second) == second
            assert add_agent(store, bytes([5]) * 32, 3.0, wanted=second) != second
            assert store.find_head().rewritten == 1

    def test_agents_are_listed_by_number_and_state(self) -> None:
        with closing(self.open()) as store, store.transaction():
            agents = sorted(add_agent(store, bytes([name]) * 32, 2.5) for name in range(4))
            store.append(*make_entry(1, agents[1], 1))
            store.append(*make_entry(2, agents[1], 2))
            store.append(*make_entry(3, agents[2], 1))
            store.record_batch(0, 7_000, 1, [])
            revoke_agent(store, agents[2])
            listed = store.list_agents(0, 10).records
            assert [record.agent for record in listed] == agents
            assert [record.last for record in listed] == [None, 7_000, 7_000, None]
            assert [record.revoked for record in listed] == [False, False, True, False]
            assert {record.enrolled for record in listed} == {2.5}
            assert [record.agent for record in store.list_agents(agents[0], 2).records] == agents[1:3]
            found = {state: [record.agent for record in store.list_agents(0, 10, state).records] for state in STATES}
            assert found == {"active": agents[1:3], "idle": [agents[0], agents[3]], "revoked": [agents[2]]}
            assert store.list_agents(0, 0) == ([], 4, 1)

    def test_a_snapshot_counts_once_its_chunks_are_there(self) -> None:
        chunks = {digest_chunk(body): body for body in (b"old", b"new", b"last")}
        old, new, last = chunks
        with closing(self.open()) as store:
            with store.transaction():
                store.put_chunks({old: b"old"})
                assert store.commit_snapshot(5, [old, old])
                assert not store.commit_snapshot(9, [old, new])
            assert read_snapshot(store) == (5, b"oldold")
            with store.transaction():
                store.put_chunks({new: b"new", last: b"last"})
                assert store.commit_snapshot(9, [old, new, old])
            assert read_snapshot(store) == (9, b"oldnewold")
            snapshot = store.read_snapshot()
            assert snapshot is not None
            assert snapshot.digests == [old, new, old]
            with store.transaction():
                assert store.commit_snapshot(10, [new], purge=True)
                assert not store.commit_snapshot(12, [last])
                assert not store.commit_snapshot(12, [old])
            assert read_snapshot(store) == (10, b"new")
            with store.transaction():
                assert store.commit_snapshot(0, [])
            assert store.read_snapshot() is None

    def test_a_snapshot_that_is_not_what_was_written_is_not_loaded(self) -> None:
        with closing(self.open()) as store:
            with store.transaction():
                store.put_chunks({digest_chunk(b"good"): b"bad"})
                assert store.commit_snapshot(5, [digest_chunk(b"good")])
            damage = str(expect(DamagedStore, lambda: read_snapshot(store)))
            assert damage.startswith("the store is damaged: the snapshot at position 5 ")

    def test_the_journal_is_a_narrow_copy_of_the_log(self) -> None:
        with closing(self.open()) as store:
            with store.transaction():
                first, second = (add_agent(store, bytes([name]) * 32, 1.0) for name in (1, 2))
                for position, agent in enumerate((first, second, first), 1):
                    store.append(*make_entry(position, agent, position))
                store.record_batch(0, 5_000, 2, [(first, 1), (second, 2)])
                store.append(*make_entry(4, second, 4))
                store.record_batch(3, 7_500, 1, [(second, 1)])
            exchanges = [(row.position, row.at, row.agent, row.clusters) for row in store.read_changes(1, 4).exchanges]
            assert exchanges == [(2, 5_000, second, 2), (3, 5_000, first, 2), (4, 7_500, second, 1)]
            totals = {astuple(row) for row in store.sum_by_agent(4)}
            assert totals == {(first, 2, 2, 2, 5_000, 1), (second, 2, 2, 2, 7_500, 1)}
            intervals = [(row.number, row.exchanges, row.clusters) for row in store.sum_by_interval(4, 5_000, 1_000)]
            assert intervals == [(0, 3, 2), (2, 1, 1)]
            assert [row.exchanges for row in store.sum_by_interval(2, 5_000, 1_000)] == [2]
            assert [(row.first, row.last) for row in store.sum_by_interval(4, 0, 1 << 62)] == [(5_000, 7_500)]
            assert store.find_head() == (4, 0)
            assert [store.find_head(at).position for at in (4_999, 5_000, 9_000)] == [0, 3, 4]
            with store.transaction():
                store.forget_agent(first, 5)
            assert [row.position for row in store.read_changes(0, 9).exchanges] == [2, 4]
            assert store.find_head() == (5, 5)

    def test_clusters_are_known_for_every_position(self) -> None:
        with closing(self.open()) as store:
            with store.transaction():
                for position, agent in ((1, 7), (2, 8), (3, 8)):
                    store.append(*make_entry(position, agent, position))
                store.record_batch(0, 5_000, 1, [(7, 1), (8, 1)])
                store.append(*make_entry(4, 7, 4))
                store.record_batch(3, 6_000, 2, [(8, 2)])
                store.record_batch(4, 6_000, 2, [(8, 3)])
            clusters = [[row.cluster for row in store.sum_by_agent(position)] for position in (0, 2, 3, 4)]
            assert clusters == [[], [0, 0], [1, 1], [1, 3]]
            assert [astuple(move) for move in store.read_changes(3, 4).moves] == [(4, 6_000, 8, 3)]

    def test_many_agents_are_counted_in_the_store(self) -> None:
        with closing(self.open()) as store:
            with store.transaction():
                agents = sorted(add_agent(store, bytes([name]) * 32, 1.0) for name in range(6))
                for position, agent in enumerate((*agents, agents[0]), 1):
                    store.append(*make_entry(position, agent, position))
                store.record_batch(0, 5_000, 3, [(agent, 1 + place // 3) for place, agent in enumerate(agents)])
                store.append(*make_entry(8, agents[1], 8))
                store.record_batch(7, 6_000, 3, [(agents[0], 7), (agents[1], 9)])
            sizes = store.count_sizes(8, 2)
            assert sizes.largest == [(2, 3), (1, 1)]
            assert sizes.histogram == [(1, 3), (3, 1)]
            assert (sizes.clusters, sizes.agents) == (4, 6)
            assert store.count_sizes(7, 9).largest == [(1, 3), (2, 3)]
            last = [(row.agent, row.last) for row in store.sum_by_agent(8, 2)]
            assert last == [(agents[0], 5_000), (agents[1], 6_000)]
            assert [row.last for row in store.sum_by_agent(7, 9)] == [5_000] * 6
            assert store.sum_by_agent(6, 9) == []
            assert store.count_sizes(6, 9).largest == []

    def test_records_are_read_in_order(self) -> None:
        with closing(self.open()) as store:
            with store.transaction():
                store.record_audit(5, "operator", "revoked", 7)
                store.record_audit(6, "server", "folded", detail="12 uploads")
            records = [(record.number, record.actor, record.agent, record.detail) for record in store.read_audit()]
            assert records == [(1, "operator", 7, ""), (2, "server", None, "12 uploads")]

    def test_the_last_value_of_a_setting_counts(self) -> None:
        with closing(self.open()) as store:
            with store.transaction():
                store.set_setting("name", "first")
                store.set_setting("name", "second")
            assert (store.get_setting("name"), store.get_setting("other")) == ("second", None)

    def test_what_is_not_committed_never_happened(self) -> None:
        with closing(self.open()) as store:
            with suppress(NotImplementedError), store.transaction():
                store.append(*make_entry(1, 1, 1))
                store.set_setting("name", "value")
                raise NotImplementedError  # before the commit
            assert list(store.read_entries(after=0)) == []
            assert store.get_setting("name") is None

    def test_what_is_committed_is_there_after_reopening(self) -> None:
        with closing(self.open()) as store, store.transaction():
            store.set_setting("name", "value")
            agent = add_agent(store, b"k" * 32, 1.0)
            store.append(*make_entry(1, agent, 1))
            store.put_chunks({digest_chunk(b"whole"): b"whole"})
            assert store.commit_snapshot(1, [digest_chunk(b"whole")])
        with closing(self.open()) as again:
            assert again.get_setting("name") == "value"
            assert again.find_identity(agent) == again.find_identity(b"k" * 32)
            assert again.list_agents(0, 0).enrolled == 1
            assert [logged.upload.agent for logged in again.read_entries(after=0)] == [agent]
            assert read_snapshot(again) == (1, b"whole")

    def test_replay_is_the_live_state_bit_for_bit(self) -> None:
        with self._serve(GROUPS, agents=4) as (store, live, agents):
            with store.transaction():
                for number in range(40):
                    self._exchange(store, live, agents[number % 4], number // 4 + 1, number % 3)
                    if number == 25:
                        save_snapshot(store, live)
            assert live.clusters > 1
            assert is_replayed(store, live)
            with store.transaction():
                store.commit_snapshot(0, [])
            assert is_replayed(store, live)
            with store.transaction():
                forget(agents[1])(store, live)
                self._exchange(store, live, agents[0], 50, 0)
            store.run_maintenance(purge=True)
            assert is_replayed(store, live)
            assert agents[1] not in live.places
            assert all(logged.upload.agent != agents[1] for logged in store.read_entries(after=0))

    def test_an_upload_counts_once(self) -> None:
        with self._serve(POLICIES["fedc3ucb-h"], agents=1) as (store, live, [agent]), store.transaction():
            self._exchange(store, live, agent, 1, 0)
            second = self._exchange(store, live, agent, 2, 1)
            assert self._exchange(store, live, agent, 2, 1) == second
            refusal = expect(Refused, lambda: self._exchange(store, live, agent, 1, 2))
            assert isinstance(refusal, Refused)
            assert refusal.reason == "conflict"
            assert np.array_equal(np.diag(live.sum_statistics().gram), [1.0, 1.0, 0.0])

    def test_folded_uploads_are_the_same_state_and_can_be_verified(self) -> None:
        with self._serve(GROUPS, agents=4) as (store, live, agents):
            for day in range(1, 21):
                with store.transaction():
                    self._exchange_all(store, live, agents, day)
                    if day in (10, 20):
                        self._fold(store, live, 5.0, day)
                    if day == 15:
                        forget(agents.pop(1))(store, live)
                assert store.verify()[0] == live.position
                assert is_replayed(store, live)
            assert [store.sum_uploads(agent)[:2] for agent in agents] == [(20, 20)] * 3
            assert [totals.uploads for totals in store.sum_by_agent(live.position)] == [20] * 3
            assert len(list(store.read_entries(after=0))) == 3 * 6

    def test_changes_are_logged_replayed_folded_and_forgotten(self) -> None:
        policy = POLICIES["population"].with_constants(drift="restart")
        warm_up(policy, DIMENSION)  # compile before a transaction is open
        with self._serve(policy, agents=3) as (store, live, agents):
            for day in range(1, 16):
                with store.transaction():
                    self._exchange_all(store, live, agents, day, changes=True)
                    if day == 3:
                        save_snapshot(store, live)
                    if day == 7:
                        store.commit_snapshot(0, [])
                    if day == 9:
                        self._fold(store, live, 3.0, day)
                    if day == 12:
                        forget(agents.pop(0))(store, live)
                assert store.verify()[0] == live.position
                assert is_replayed(store, live)
            assert [live.get_statistics(agent).rounds for agent in agents] == [5, 1]
            assert live.sum_statistics().rounds == live.rounds == live.observations == 5 + 1
            assert [store.sum_uploads(agent).last_change for agent in agents] == [11, 15]
            folded = [entry.upload for entry in store.read_entries(after=0) if entry.upload.sequence <= 6]
            assert [upload.cause for upload in folded] == [Cause.CHANGE] * 2
            assert [store.sum_uploads(agent).uploads for agent in agents] == [15, 15]
            with store.transaction():
                forget(agents.pop())(store, live)
            assert live.sum_statistics().rounds == live.rounds == 5

    @contextmanager
    def _serve(self, policy: Policy, agents: int) -> Iterator[tuple[Store, ServerState, list[int]]]:
        """Open a store with a server's state and enrolled agents."""
        with closing(self.open()) as store:
            with store.transaction():
                numbers = [add_agent(store, bytes([name]) * 32, 1.0) for name in range(agents)]
            yield store, ServerState(policy, DIMENSION), numbers

    _nonce = 0

    def _exchange(
        self, store: Store, live: ServerState, agent: int, sequence: int, axis: int, cause: Cause = Cause.FORCED
    ) -> bytes:
        self._nonce += 1
        upload = replace(make_unit_upload(agent, sequence, axis), cause=cause)
        return record_upload(store, live, upload, self._nonce)

    def _exchange_all(
        self, store: Store, live: ServerState, agents: Sequence[int], day: int, *, changes: bool = False
    ) -> None:
        start = live.position
        for number, agent in enumerate(agents):
            cause = Cause.CHANGE if changes and (day + number) % 4 == 0 else Cause.FORCED
            self._exchange(store, live, agent, day, number % 3, cause)
        store.record_batch(start, 1000 * SECONDS_PER_DAY * day, live.clusters, [])

    def _fold(self, store: Store, live: ServerState, keep_days: float, day: int) -> None:
        before = live.sum_statistics()
        assert not retain(keep_days, SECONDS_PER_DAY * (day + 1.0))(store, live)
        assert np.array_equal(live.sum_statistics().gram, before.gram)
