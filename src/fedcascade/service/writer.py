"""One thread writes: it runs all jobs that wait in one transaction, and reports them done after the commit.

While a commit reaches the disk, the next jobs gather; that is group commit. A job sees the store and the state at
the end of the log. What it changes in the state is thrown away with the state if the transaction fails.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fedcascade.federation.policies import Policy
from fedcascade.service.errors import Refused, Unavailable
from fedcascade.service.fold import Fold, caught_up
from fedcascade.service.scribe import Scribe
from fedcascade.service.snapshot import dumped, frozen, parts
from fedcascade.service.store import Store

Result = TypeVar("Result")
Job = Callable[[Store, Fold], Result]
Part = tuple[int, int, int, bytes]
log = logging.getLogger("fedcascade.service")
# After a transaction of many jobs, more are on their way: they gather for a moment while requests are read in peace.
WINDOW = 0.005
MANY = 4


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job and who waits for it: a thread, or a task in an event loop."""

    job: Job[Any]
    future: "Future[Any] | asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop | None = None
    upload: tuple[int, int] | None = None
    before: Callable[[], None] | None = None


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
        self._aside = ThreadPoolExecutor(1, "fedcascade-snapshot")
        self._dumping: Future[list[Part]] | None = None
        self._pending: deque[Part] = deque()
        self._outdated = False
        self._crowded = False
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
        future: Future[Result] = Future()
        self._queue.put(Waiting(job, future))
        return future

    async def do(
        self, job: Job[Result], upload: tuple[int, int] | None = None, before: Callable[[], None] | None = None
    ) -> Result:
        """``submit`` for tasks: those of one transaction are woken together.

        Args:
            job: what to do.
            upload: agent and number of the upload that the job will look for, to look for many at once.
            before: what to do in the writer's thread before the transaction; the job takes place if it does not raise.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.put(Waiting(job, future, loop, upload, before))
        return await future

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
            gathered, last = self._gather()
            batch = [waiting for waiting in gathered if _prepared(waiting)]
            if batch:
                self._run(batch)
            elif self._busy and not last:
                self._attempt([])
            if self._store is not None:
                self._store.tidy()
            if last:
                self._finish()
                return

    def _gather(self) -> tuple[list[Waiting], bool]:
        """Whatever waits, up to a batch; the second value says that the end was asked for."""
        if self._crowded:
            time.sleep(WINDOW)
        batch: list[Waiting] = []
        try:
            while len(batch) < self._batch:
                first = not batch
                item = self._queue.get(block=first, timeout=0.02 if first and self._busy else None)
                if item is None:
                    return batch, True
                batch.append(item)
        except queue.Empty:
            pass
        self._crowded = MANY < len(batch) < self._batch
        return batch, False

    def _run(self, batch: list[Waiting]) -> None:
        """A job that breaks must not break its neighbours: then each runs alone."""
        outcomes, error = self._attempt(batch)
        if error is not None and len(batch) > 1 and not isinstance(error, Unavailable):
            for waiting in batch:
                self._run([waiting])
            return
        report(batch, outcomes or [error] * len(batch))

    def _attempt(self, batch: list[Waiting]) -> tuple[list[Any] | None, BaseException | None]:
        """One transaction; the outcome of each job, or why none took place."""
        try:
            store, fold = self._ready()
            with store.transaction():
                fold = self._fold = caught_up(store, self._policy, self._dimension, fold)
                began = fold.position
                store.look_up([waiting.upload for waiting in batch if waiting.upload is not None])
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
        self._drop_snapshot()
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

    @property
    def _busy(self) -> bool:
        """Whether a snapshot is under way."""
        return bool(self._pending) or self._dumping is not None or self._outdated

    def _snapshot(self, store: Store, fold: Fold) -> None:
        """Begin a snapshot when enough was logged; another thread makes bytes of it; one part per transaction."""
        if store.last_forgotten() > self._snapshot_at:  # that took its own snapshot, and an older one must not return
            self._drop_snapshot()
            self._snapshot_at = fold.position
        if not self._busy and fold.position - self._snapshot_at >= self._snapshot_every:
            self._snapshot_at = fold.position
            self._dumping = self._aside.submit(_parts, fold.position, frozen(fold.state()))
        if self._dumping is not None and self._dumping.done():
            self._pending.extend(self._dumping.result())
            self._dumping = None
        if self._pending:
            store.save_part(*self._pending.popleft())
            self._outdated = not self._pending
        elif self._outdated:
            self._outdated = store.drop_part(before=self._snapshot_at)

    def _drop_snapshot(self) -> None:
        """One that is under way, of a state that does not hold any more."""
        self._dumping = None
        self._pending.clear()
        self._outdated = False

    def _finish(self) -> None:
        try:
            store, fold = self._ready()
            with store.transaction():
                fold = caught_up(store, self._policy, self._dimension, fold)
                if fold.position > self._snapshot_at or self._busy:
                    save_snapshot(store, fold)
        except Exception as error:
            log.warning("no snapshot at the end: %s", error)
        self._aside.shutdown()
        self._close_store()


def save_snapshot(store: Store, fold: Fold) -> None:
    """Write a whole snapshot at once; earlier ones go."""
    for part in _parts(fold.position, fold.state()):
        store.save_part(*part)
    store.drop_snapshots(before=fold.position)


def _parts(position: int, state: dict[str, Any]) -> list[Part]:
    bodies = list(parts(dumped(state)))
    return [(position, part, len(bodies), body) for part, body in enumerate(bodies)]


def _outcome(job: Job[Any], store: Store, fold: Fold) -> Any:
    try:
        return job(store, fold)
    except Refused as refusal:
        return refusal


def _prepared(waiting: Waiting) -> bool:
    try:
        if waiting.before is not None:
            waiting.before()
    except Exception as error:
        report([waiting], [error])
        return False
    return True


def report(batch: list[Waiting], outcomes: list[Any]) -> None:
    """Tell everybody who waits, each event loop once."""
    settled = list(zip(batch, outcomes, strict=True))
    for loop in {waiting.loop for waiting in batch}:
        mine = [(waiting.future, outcome) for waiting, outcome in settled if waiting.loop is loop]
        if loop is None:
            _settle(mine)
        else:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, mine)


def _settle(settled: list[tuple["Future[Any] | asyncio.Future[Any]", Any]]) -> None:
    for future, outcome in settled:
        if future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
