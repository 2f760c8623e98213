"""Snapshots of the state: their schedule, and writing them to the store in the background."""

from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fedcascade.federation.holdings import ARRAYS
from fedcascade.service.server.state import ServerState, describe_changes
from fedcascade.service.store.contract import Store
from fedcascade.service.store.snapshot import Piece, copy_state, digest_chunk, gather_chunks

BYTES_PER_COMMIT = 1 << 20
AGENTS_PER_UPLOAD = 20  # a snapshot lists the chunks of all agents, so many agents make snapshots rarer


@dataclass
class EncodedSnapshot:
    """A snapshot that is being written: the digests of all its chunks, and the chunks that the store lacks."""

    position: int
    digests: list[bytes] = field(default_factory=list)
    unwritten: dict[bytes, bytes] = field(default_factory=dict)
    row_digests: dict[str, list[bytes]] = field(default_factory=dict)

    def take_some(self) -> dict[bytes, bytes]:
        """Remove and return the chunks for one transaction."""
        taken: dict[bytes, bytes] = {}
        while self.unwritten and sum(map(len, taken.values())) < BYTES_PER_COMMIT:
            digest, body = self.unwritten.popitem()
            taken[digest] = body
        return taken


class SnapshotSchedule:
    """Schedule of snapshots. A thread encodes a snapshot, and each transaction writes a part of it."""

    def __init__(self, every: int) -> None:
        self.position = 0  # where the last snapshot was begun
        self._every = every
        self._executor = ThreadPoolExecutor(1, "fedcascade-snapshot")
        self._encoding: Future[EncodedSnapshot] | None = None
        self._copy: dict[str, Any] | None = None

    @property
    def is_busy(self) -> bool:
        return self._encoding is not None

    def advance(self, store: Store, state: ServerState, rewritten: int) -> None:
        """Do this transaction's share of the work; ``rewritten`` is that of the journal's head."""
        if rewritten > self.position:  # that saved a snapshot, which an older one must not replace
            self.drop()
            self.position = state.position
        due = self.position + max(self._every, len(state.places) // AGENTS_PER_UPLOAD)
        if not self.is_busy and state.position >= due:
            self._begin(store, state)
        if self._encoding is not None and self._encoding.done():
            self._write_some(store, state, self._encoding.result())

    def _begin(self, store: Store, state: ServerState) -> None:
        """Copy the changes since the last snapshot for the thread that encodes them."""
        self.position = state.position
        self._copy = copy_state(describe_changes(state), self._copy)
        known = list_known_chunks(store)
        self._encoding = self._executor.submit(encode_snapshot, state.position, self._copy, known)

    def _write_some(self, store: Store, state: ServerState, snapshot: EncodedSnapshot) -> None:
        """Write some chunks; commit the snapshot after the last ones, unless another server has deleted one."""
        if self._copy is not None and self._copy["server"] is not None:
            self._copy["server"].pop("holdings", None)  # large, and the next copy cannot reuse it
        if snapshot.unwritten:
            store.put_chunks(snapshot.take_some())
        if not snapshot.unwritten:
            is_saved = store.commit_snapshot(snapshot.position, snapshot.digests)
            state.note_snapshot(snapshot.row_digests if is_saved else {}, snapshot.position)
            self._encoding = None

    def drop(self) -> None:
        """Give up a snapshot in progress, because its state is no longer valid."""
        self._encoding = self._copy = None

    def finish(self, store: Store, state: ServerState) -> None:
        """Write a last snapshot at once, unless the latest one is up to date."""
        if state.position > self.position or self.is_busy:
            save_snapshot(store, state)

    def close(self) -> None:
        self._executor.shutdown()


def save_snapshot(store: Store, state: ServerState) -> None:
    """Write a snapshot at once, and delete the chunks of earlier ones."""
    snapshot = encode_snapshot(state.position, describe_changes(state), list_known_chunks(store))
    store.put_chunks(snapshot.unwritten)
    if not store.commit_snapshot(snapshot.position, snapshot.digests, purge=True):  # another server has deleted chunks
        snapshot = encode_snapshot(state.position, describe_changes(state, is_whole=True), known=set())
        store.put_chunks(snapshot.unwritten)
        store.commit_snapshot(snapshot.position, snapshot.digests, purge=True)
    state.note_snapshot(snapshot.row_digests, state.position)


def list_known_chunks(store: Store) -> set[bytes]:
    """List the digests of the chunks of the snapshot in a store."""
    snapshot = store.read_snapshot()
    return set() if snapshot is None else set(snapshot.digests)


def encode_snapshot(position: int, state: dict[str, Any], known: Set[bytes]) -> EncodedSnapshot:
    """Encode a state, without the chunks whose digests are known."""
    snapshot = EncodedSnapshot(position)
    for chunk in gather_chunks(state):
        body = chunk.body if isinstance(chunk, Piece) else chunk
        if isinstance(chunk, Piece) and body is None:
            digest = chunk.rows.digests[chunk.number]
        else:
            digest = digest_chunk(body or b"")
        if isinstance(chunk, Piece):
            chunk.rows.digests[chunk.number] = digest
        snapshot.digests.append(digest)
        if body is not None and digest not in known:
            snapshot.unwritten[digest] = body
    if state["server"] is not None:
        snapshot.row_digests = {name: state["server"]["holdings"][name].digests for name in ARRAYS}
    return snapshot
