"""One thread writes: it runs all jobs that wait in one transaction, and reports them done after the commit.

While a commit reaches the disk, the next jobs gather; that is group commit. A job sees the store and the state at
the end of the log. What it changes in the state is thrown away with the state if the transaction fails.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fedcascade.federation.policies import Policy
from fedcascade.service.errors import Refused, Unavailable
from fedcascade.service.fold import Fold, caught_up
from fedcascade.service.scribe import Scribe
from fedcascade.service.snapshot import parts
from fedcascade.service.store import Store

Result = TypeVar("Result")
Job = Callable[[Store, Fold], Result]
log = logging.getLogger("fedcascade.service")


@dataclass(frozen=True)
class Waiting:
    """A job and who waits for it."""

    job: Job[Any]
    future: "Future[Any]"


class Writer:
    """The only one who touches the store and the state."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        policy: Policy,
        dimension: int,
        *,
        batch: int = 256,
        snapshot_every: int = 10_000,
    ) -> None:
        self.open_store = open_store
        self._policy = policy
        self._dimension = dimension
        self._batch = batch
        self._snapshot_every = snapshot_every
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._pending: deque[tuple[int, int, int, bytes]] = deque()
        self._store: Store | None = open_store()
        self._fold: Fold | None = None
        self._scribe = Scribe()
        self._snapshot_at = 0
        self._scrubbed = 0
        self.healthy = True
        self._ready()
        self._thread = threading.Thread(target=self._loop, name="fedcascade-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[Result]) -> "Future[Result]":
        """Run a job in the next transaction; the future is done when that is durable."""
        waiting = Waiting(job, Future())
        self._queue.put(waiting)
        return waiting.future

    @property
    def fold(self) -> Fold | None:
        """The state, to look at; only jobs may change it."""
        return self._fold

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return self._queue.qsize()

    def close(self) -> None:
        """Finish what waits, take a snapshot, and let go of the store."""
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while True:
            batch, last = self._gather()
            if batch:
                self._run(batch)
            elif self._pending and not last:
                self._attempt([])
            if last:
                self._finish()
                return

    def _gather(self) -> tuple[list[Waiting], bool]:
        """Whatever waits, up to a batch; the second value says that the end was asked for."""
        batch: list[Waiting] = []
        try:
            while len(batch) < self._batch:
                first = not batch
                item = self._queue.get(block=first, timeout=0.02 if first and self._pending else None)
                if item is None:
                    return batch, True
                batch.append(item)
        except queue.Empty:
            pass
        return batch, False

    def _run(self, batch: list[Waiting]) -> None:
        """A job that breaks must not break its neighbours: then each runs alone."""
        outcomes, error = self._attempt(batch)
        if error is not None and len(batch) > 1 and not isinstance(error, Unavailable):
            for waiting in batch:
                self._run([waiting])
            return
        for waiting, outcome in zip(batch, outcomes or [error] * len(batch), strict=True):
            if isinstance(outcome, BaseException):
                waiting.future.set_exception(outcome)
            else:
                waiting.future.set_result(outcome)

    def _attempt(self, batch: list[Waiting]) -> tuple[list[Any] | None, BaseException | None]:
        """One transaction; the outcome of each job, or why none took place."""
        try:
            store, fold = self._ready()
            with store.transaction():
                fold = self._fold = caught_up(store, self._policy, self._dimension, fold)
                began = fold.position
                outcomes = [_outcome(waiting.job, store, fold) for waiting in batch]
                self._scribe.write(store, fold, began)
                self._snapshot(store, fold)
                forgotten = store.last_forgotten()
            if forgotten > self._scrubbed:
                store.scrub()
                self._scrubbed = forgotten
            self.healthy = True
        except Exception as error:
            return None, self._failed(error)
        return outcomes, None

    def _ready(self) -> tuple[Store, Fold]:
        if self._store is None:
            self._store = self.open_store()
        if self._fold is None:
            with self._store.transaction():
                self._fold = caught_up(self._store, self._policy, self._dimension)
            self._snapshot_at = self._fold.position
        return self._store, self._fold

    def _failed(self, error: Exception) -> Exception:
        """Nothing of the batch took place: the state is read anew from the store, which is the truth."""
        self._fold, self._scribe = None, Scribe()
        self._pending.clear()
        if self._store is not None and not isinstance(error, self._store.failures):
            log.error("a job failed", exc_info=error)
            return error
        self.healthy = False
        log.warning("the store is not available: %s", error)
        self._close_store()
        return Unavailable(f"the store is not available: {error}")

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(*store.failures):
                store.close()

    def _snapshot(self, store: Store, fold: Fold) -> None:
        """Begin a snapshot when enough was logged, and write one part of it per transaction."""
        if store.last_forgotten() > self._snapshot_at:  # that took its own snapshot, and an older one must not return
            self._pending.clear()
            self._snapshot_at = fold.position
        if not self._pending and fold.position - self._snapshot_at >= self._snapshot_every:
            self._snapshot_at = fold.position
            self._pending.extend(_parts(fold))
        if self._pending:
            _save(store, [self._pending.popleft()])

    def _finish(self) -> None:
        try:
            store, fold = self._ready()
            with store.transaction():
                fold = caught_up(store, self._policy, self._dimension, fold)
                if fold.position > self._snapshot_at or self._pending:
                    save_snapshot(store, fold)
        except Exception as error:
            log.warning("no snapshot at the end: %s", error)
        self._close_store()


def save_snapshot(store: Store, fold: Fold) -> None:
    """Write a whole snapshot at once; earlier ones go."""
    _save(store, list(_parts(fold)))


def _parts(fold: Fold) -> list[tuple[int, int, int, bytes]]:
    bodies = list(parts(fold.dump()))
    return [(fold.position, part, len(bodies), body) for part, body in enumerate(bodies)]


def _save(store: Store, saved: list[tuple[int, int, int, bytes]]) -> None:
    for position, part, count, body in saved:
        store.save_part(position, part, count, body)
        if part == count - 1:
            store.drop_snapshots(before=position)


def _outcome(job: Job[Any], store: Store, fold: Fold) -> Any:
    try:
        return job(store, fold)
    except Refused as refusal:
        return refusal
