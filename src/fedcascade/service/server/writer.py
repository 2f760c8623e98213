"""One thread writes: it runs all jobs that wait in one transaction, and reports them done after the commit.

While a commit reaches the disk, the next jobs gather; that is group commit. A job sees the store and the state at
the end of the log. What it changes in the state is thrown away with the state if the transaction fails.
"""

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fedcascade.federation.policies import Policy
from fedcascade.service.protocol.auth import Claim
from fedcascade.service.protocol.errors import Refused, Unavailable
from fedcascade.service.server.journal_writer import Scribe
from fedcascade.service.server.state import Fold, caught_up
from fedcascade.service.server.verifier import Content, Notary, Papers, Refusal, Verdict
from fedcascade.service.store.contract import Store
from fedcascade.service.store.snapshot import copy_state, encode_in_parts

Result = TypeVar("Result")
Job = Callable[[Store, Fold], Result]
SignedJob = Callable[[Store, Fold, Content | None], Result]  # with the upload that was signed, if it is one
Part = tuple[int, int, int, bytes]
log = logging.getLogger("fedcascade.service")
# A batch leaves half of those who wait to the next one, which is looked at meanwhile; but it takes these.
FEW = 24
# A snapshot holds all agents: it is worth writing when some uploads of each would have to be read otherwise.
UPLOADS_PER_AGENT = 2


@dataclass(slots=True)
class Waiting:
    """A job and who waits for it: a thread, or a task in an event loop."""

    job: Callable[..., Any]
    future: "Future[Any] | asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop | None = None
    papers: Papers | None = None
    admit: Callable[[Claim], None] | None = None
    upload: Content | None = None  # once it was read

    def outcome(self, store: Store, fold: Fold) -> Any:
        """Do the job; a refusal is an outcome too."""
        try:
            return self.job(store, fold) if self.papers is None else self.job(store, fold, self.upload)
        except Refused as refusal:
            return refusal


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
        notary: Notary | None = None,
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
        self._whole = 0
        self._frozen: dict[str, Any] | None = None
        self._notary = notary or Notary()
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

    async def do(self, job: Job[Result]) -> Result:
        """``submit`` for tasks: those of one transaction are woken together."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.put(Waiting(job, future, loop))
        return await future

    async def do_signed(self, papers: Papers, admit: Callable[[Claim], None], job: SignedJob[Result]) -> Result:
        """``do``, if the signature holds and nothing else speaks against it.

        Args:
            papers: what the notary looks at.
            admit: what the writer's thread does after that and before the transaction; if it raises, there is no job.
            job: what to do; with the upload, if the papers say that there is one.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.put(Waiting(job, future, loop, papers, admit))
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
        """While one batch is written, the notary looks at the next."""
        admitted: list[Waiting] = []
        last = False
        while not last:
            gathered, last = self._gather(wait=not admitted)
            self._notary.ask([waiting.papers for waiting in gathered if waiting.papers is not None])
            self._write(admitted, idle=not gathered)
            admitted = self._admitted(gathered)
        self._write(admitted, idle=False)
        self._finish()

    def _gather(self, *, wait: bool) -> tuple[list[Waiting], bool]:
        """Whatever waits, up to a batch; the second value says that the end was asked for."""
        batch: list[Waiting] = []
        most = min(self._batch, max(FEW, self._queue.qsize() // 2))
        try:
            while len(batch) < most:
                first = wait and not batch
                item = self._queue.get(block=first, timeout=0.02 if first and self._busy else None)
                if item is None:
                    return batch, True
                batch.append(item)
        except queue.Empty:
            pass
        return batch, False

    def _write(self, batch: list[Waiting], *, idle: bool) -> None:
        """A batch, or if there is nothing to do, a piece of a snapshot."""
        if batch:
            self._run(batch)
        elif idle and self._busy:
            self._attempt([])
        if self._store is not None:
            self._store.run_maintenance()

    def _admitted(self, gathered: list[Waiting]) -> list[Waiting]:
        """Those who are who they say they are, and may speak now; the others are told."""
        verdicts = iter(self._notary.verdicts())
        return [waiting for waiting in gathered if waiting.papers is None or _admitted(waiting, next(verdicts))]

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
                claims = [waiting.papers.claimed for waiting in batch if waiting.papers and waiting.upload]
                store.prefetch_entries([(claimed.agent, claimed.sequence) for claimed in claims])
                outcomes = [waiting.outcome(store, fold) for waiting in batch]
                self._scribe.write(store, fold, began)
                self._snapshot(store, fold)
                forgotten = store.find_last_forgetting()
            if forgotten > self._scrubbed:
                store.purge_deleted_rows()
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
        return bool(self._pending) or self._dumping is not None

    def _snapshot(self, store: Store, fold: Fold) -> None:
        """Begin a snapshot when enough was logged; another thread makes bytes of it; one part per transaction.

        The latest whole snapshot stays. The parts of the one before make room for the new parts, in their transactions:
        what is erased is overwritten, and so it is written once.
        """
        if store.find_last_forgetting() > self._snapshot_at:  # it took its own snapshot: an older one must not return
            self._drop_snapshot()
            self._snapshot_at = fold.position
        due = self._snapshot_at + max(self._snapshot_every, UPLOADS_PER_AGENT * len(fold.numbers))
        if not self._busy and fold.position >= due:
            self._snapshot_at, self._whole = fold.position, store.find_last_snapshot()
            self._frozen = copy_state(fold.state(), self._frozen)
            self._dumping = self._aside.submit(_parts, fold.position, self._frozen)
        if self._dumping is not None and self._dumping.done():
            self._pending.extend(self._dumping.result())
            self._dumping = None
        if self._pending:
            for _ in range(2):  # one to be overwritten by the new part, one that a crash has left behind
                store.delete_snapshot_part(before=self._whole)
            store.save_snapshot_part(*self._pending.popleft())

    def _drop_snapshot(self) -> None:
        """One that is under way, of a state that does not hold any more."""
        self._dumping = self._frozen = None
        self._pending.clear()

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
        self._notary.close()
        self._close_store()


def save_snapshot(store: Store, fold: Fold) -> None:
    """Write a whole snapshot at once; earlier ones go."""
    for part in _parts(fold.position, fold.state()):
        store.save_snapshot_part(*part)
    store.delete_snapshots(before=fold.position)


def _parts(position: int, state: dict[str, Any]) -> list[Part]:
    bodies = list(encode_in_parts(state))
    return [(position, part, len(bodies), body) for part, body in enumerate(bodies)]


def _admitted(waiting: Waiting, verdict: Verdict) -> bool:
    """Who was not who they say is told so, and nothing else; their nonces are not used up."""
    assert waiting.papers is not None
    assert waiting.admit is not None
    try:
        if not isinstance(verdict, Refusal) or verdict.signed:
            waiting.admit(waiting.papers.claimed)
        if isinstance(verdict, Refusal):
            raise Refused(verdict.status, verdict.reason, verdict.detail)
    except Exception as error:
        report([waiting], [error])
        return False
    waiting.upload = verdict
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
