"""When a snapshot is due, and how it gets into the store without anyone waiting for it."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import SnapshotStore, Store
from fedcascade.service.store.snapshot import copy_state, encode_in_parts

Part = tuple[int, int, int, bytes]  # position, number of the part, number of parts, body
# A snapshot holds all agents: it is worth writing when some uploads of each would have to be read otherwise.
UPLOADS_PER_AGENT = 2


class SnapshotSchedule:
    """Begins a snapshot when enough was logged. Another thread makes its parts; each transaction writes one of them."""

    def __init__(self, every: int) -> None:
        self.position = 0  # where the last snapshot was begun
        self._every = every
        self._executor = ThreadPoolExecutor(1, "fedcascade-snapshot")
        self._encoding: Future[list[Part]] | None = None
        self._unwritten: deque[Part] = deque()
        self._last_whole = 0
        self._copy: dict[str, Any] | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._unwritten) or self._encoding is not None

    def advance(self, store: Store, state: ServerState) -> None:
        """Do the part of the work that belongs into this transaction.

        The latest whole snapshot stays. The parts of the one before make room for the new parts, in their transactions:
        what is erased is overwritten, and so it is written once.
        """
        if store.find_last_forgetting() > self.position:  # that took its own snapshot, and an older one must not return
            self.drop()
            self.position = state.position
        due = self.position + max(self._every, UPLOADS_PER_AGENT * len(state.places))
        if not self.is_busy and state.position >= due:
            self.position, self._last_whole = state.position, store.find_last_snapshot()
            self._copy = copy_state(state.to_state(), self._copy)
            self._encoding = self._executor.submit(encode_parts, state.position, self._copy)
        if self._encoding is not None and self._encoding.done():
            self._unwritten.extend(self._encoding.result())
            self._encoding = None
        if self._unwritten:
            for _ in range(2):  # one to be overwritten by the new part, one that a crash has left behind
                store.delete_snapshot_part(before=self._last_whole)
            store.save_snapshot_part(*self._unwritten.popleft())

    def drop(self) -> None:
        """Give up a snapshot that is under way, of a state that does not hold any more."""
        self._encoding = self._copy = None
        self._unwritten.clear()

    def finish(self, store: Store, state: ServerState) -> None:
        """Write a last snapshot at once, unless the latest one holds everything."""
        if state.position > self.position or self.is_busy:
            save_snapshot(store, state)

    def close(self) -> None:
        self._executor.shutdown()


def save_snapshot(store: SnapshotStore, state: ServerState) -> None:
    """Write a whole snapshot at once; earlier ones go."""
    for part in encode_parts(state.position, state.to_state()):
        store.save_snapshot_part(*part)
    store.delete_snapshots(before=state.position)


def encode_parts(position: int, state: dict[str, Any]) -> list[Part]:
    """A state as the parts of a snapshot."""
    bodies = list(encode_in_parts(state))
    return [(position, number, len(bodies), body) for number, body in enumerate(bodies)]
