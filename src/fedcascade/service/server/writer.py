"""The thread that writes: it runs all waiting jobs in one transaction and reports them after the commit.

This is group commit: the next jobs gather while a commit reaches the disk. A job gets the store and the state at the
end of the log. If a transaction fails, the state is dropped and read again.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

from fedcascade.federation.policies import Policy
from fedcascade.service.protocol.auth import SignatureHeaders
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused, Unavailable
from fedcascade.service.server.exchange import (
    ANSWER_SECONDS,
    STRANGER,
    Exchange,
    Job,
    Pending,
    PendingJob,
    Result,
    report,
    settle_future,
)
from fedcascade.service.server.journal_writer import JournalWriter
from fedcascade.service.server.settings import ServerOptions
from fedcascade.service.server.snapshots import SnapshotSchedule
from fedcascade.service.server.state import ServerState, replay_log, warm_up
from fedcascade.service.server.tenure import TakenOver
from fedcascade.service.server.verifier import SignatureVerifier
from fedcascade.service.store.chain import DamagedStore
from fedcascade.service.store.contract import Identity, Store, explain_failures

log = logging.getLogger("fedcascade.service")
SMALLEST_BATCH = 24  # jobs; a larger batch leaves half of the queue to the next one, which is verified meanwhile
STUCK_SECONDS = 20.0  # a batch that takes longer counts as stuck
FINISH_SECONDS = 3.0  # for the last batch and the last snapshot
IDLE = float("inf")  # as the start of a batch: there is none
LATE = f"the store did not answer within {ANSWER_SECONDS:g} s"
Check = Callable[[SignatureHeaders], None]


class Writer:
    """The only user of the store and the state in a server process."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        policy: Policy,
        dimension: int,
        *,
        batch: int = ServerOptions.batch,
        snapshot_every: int = ServerOptions.snapshot_every,
        verifier: SignatureVerifier | None = None,
        clock: Clock = SYSTEM_CLOCK,
        require_tenure: Callable[[Store], None] = lambda _: None,
    ) -> None:
        """Open the store and start the thread; ``require_tenure`` is called in each transaction."""
        self.open_store = open_store
        self.clock = clock
        self.healthy = True
        self.taken_over: TakenOver | None = None
        self.identities: dict[int, Identity] = {}  # of agents that have sent exchanges
        self.checks: list[Check] = []  # of exchanges with valid signatures; they may raise ``Refused``
        self._require_tenure = require_tenure
        self.turn: AbstractContextManager[None] = nullcontext()  # taken for each batch, if tenants share the process
        self.span: Callable[[], AbstractContextManager[object]] = nullcontext  # of a transaction, if it is traced
        self.policy, self.dimension, self.batch = policy, dimension, batch
        self.queue: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()  # None ends the thread
        self._snapshots = SnapshotSchedule(snapshot_every)
        self.verifier = verifier or SignatureVerifier(dimension, policy.privacy)
        self._journal = JournalWriter(self.clock)
        self._purged = 0  # position of the last rewrite that was purged from the database's journals
        self._store: Store | None = (store := open_store())
        self.state: ServerState | None = None  # read by other threads; only jobs may change it
        self._empty = ServerState(policy, dimension)
        self._busy_since = IDLE
        with explain_failures(store):
            self._prepare()
        warm_up(policy, dimension)
        self.verifier.prepare()
        self._thread = threading.Thread(target=self._run_loop, name="fedcascade-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[Result]) -> "Future[Result]":
        """Run a job in the next transaction; the future completes when that is durable."""
        future: Future[Result] = Future()
        self.queue.put(PendingJob(job, partial(settle_future, future)))
        return future

    async def run(self, job: Job[Result]) -> Result:
        """Run a job in the next transaction, and return its result when that is durable."""
        self.require_progress()
        return await wait_for(self.submit(job))

    def require_progress(self) -> None:
        """Raise ``Unavailable`` if the writer makes no progress."""
        if not self._thread.is_alive():
            raise Unavailable("the writer has ended: start the server again")
        stuck = time.monotonic() - self._busy_since
        if stuck > STUCK_SECONDS:
            raise Unavailable(f"the writer has been stuck for {stuck:.0f} s")

    @property
    def waiting(self) -> int:
        return self.queue.qsize()

    @property
    def last_state(self) -> ServerState:
        """The state to show, which is empty until a lost one is read again."""
        return self._empty if self.state is None else self.state

    def close(self) -> None:
        """Finish waiting jobs, save a snapshot and close the store; interrupt it if it does not answer."""
        self.queue.put(None)
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive() and (store := self._store) is not None:
            store.interrupt()
        self._thread.join()

    def _run_loop(self) -> None:
        """Write one batch while the next is verified; write parts of a snapshot while idle."""
        admitted: list[Pending] = []
        is_last = False
        while not is_last:
            self._busy_since = IDLE
            gathered, is_last = self._gather(wait=not admitted)
            self._busy_since = time.monotonic()
            self.verifier.submit([pending for pending in gathered if isinstance(pending, Exchange)])
            if admitted or (not gathered and self._snapshots.is_busy):
                with self.turn:
                    self._commit(admitted)
            if self._store is not None:
                self._store.run_maintenance()
            admitted = self._admit(gathered)
        if admitted:
            self._commit(admitted)
        self._finish()

    def _gather(self, *, wait: bool) -> tuple[list[Pending], bool]:
        """Take a batch from the queue and look up the agents of exchanges; return also whether it is the last one."""
        batch: list[Pending] = []
        trouble: Exception | None = None  # of reading agents; one try is enough for a batch
        most = min(self.batch, max(SMALLEST_BATCH, self.queue.qsize() // 2))
        with suppress(queue.Empty):
            while len(batch) < most:
                is_first = wait and not batch and trouble is None
                timeout = 0.02 if is_first and self._snapshots.is_busy else None
                pending = self.queue.get(block=is_first, timeout=timeout)
                if pending is None:
                    return batch, True
                if is_first:
                    self._busy_since = time.monotonic()
                try:
                    if isinstance(pending, Exchange):
                        agent = pending.signature.agent
                        pending.identity = self.identities.get(agent) or self._load_identity(agent, trouble)
                    batch.append(pending)
                except Exception as error:
                    pending.result = trouble = trouble or self._recover(error)
                    report([pending])
        return batch, False

    def _load_identity(self, agent: int, trouble: Exception | None) -> Identity:
        """Read an agent from the store, or raise the earlier failure."""
        if trouble is not None:
            raise trouble
        identity = self._prepare()[0].find_identity(agent)
        if identity is None:
            return STRANGER
        self.identities[agent] = identity
        return identity

    def _admit(self, gathered: list[Pending]) -> list[Pending]:
        """Return the jobs and the exchanges that pass all checks; report the refusals of the others.

        The checks run on the writer's thread, which orders concurrent requests. A bad signature is refused before its
        nonce is recorded, so that a forger cannot use up an agent's nonces.
        """
        self.verifier.collect()
        admitted = []
        for pending in gathered:
            try:
                if isinstance(pending, Exchange):
                    for check in self.checks if pending.is_signed else ():
                        check(pending.signature)
                    if pending.refusal is not None and pending.upload is None:
                        status, reason, detail = pending.refusal
                        raise Refused(status, reason, detail, retry_after=1.0 if status == 503 else None)
                admitted.append(pending)
            except Exception as error:
                pending.result = error
                report([pending])
        return admitted

    def _commit(self, batch: list[Pending]) -> None:
        """Run a batch in one transaction, then report it; if a job fails, run each job alone."""
        failure: Exception | None = None
        try:
            store, state = self._prepare()
            uploads = [pending for pending in batch if isinstance(pending, Exchange) and pending.upload is not None]
            wanted = [(exchange.signature.agent, exchange.signature.sequence) for exchange in uploads]
            with self.span(), store.transaction(wanted):
                self._require_tenure(store)
                state = self.state = replay_log(store, self.policy, self.dimension, state)
                start = state.position
                for pending in batch:
                    try:
                        pending.result = pending.run(store, state)
                    except Refused as refusal:  # the transaction continues: jobs refuse before they change anything
                        pending.result = refusal
                self._journal.write(store, state, start)
                rewritten = store.find_head().rewritten
                self._snapshots.advance(store, state, rewritten)
            if rewritten > self._purged and store.run_maintenance(purge=True):
                self._purged = rewritten
            self.healthy = True
        except Exception as error:
            failure = self._recover(error)
        if failure is not None and len(batch) > 1 and not isinstance(failure, Unavailable):
            for pending in batch:
                self._commit([pending])
            return
        for pending in batch if failure is not None else ():
            pending.result = failure
        report(batch)

    def _prepare(self) -> tuple[Store, ServerState]:
        """Open the store and read the state, unless both are there."""
        self._store = self._store or self.open_store()
        if self.state is None:
            with self._store.transaction():
                self.state = replay_log(self._store, self.policy, self.dimension)
            self._snapshots.position = self.state.position
        return self._store, self.state

    def _recover(self, error: Exception) -> Exception:
        """Drop the state after a failed transaction, so that it is read again; return the error to report."""
        self.state, self._journal = None, JournalWriter(self.clock)
        self._snapshots.drop()
        if isinstance(error, TakenOver):
            self.taken_over = error
            return error
        if self._store is not None and not isinstance(error, (*self._store.failures, DamagedStore)):
            log.error("a job failed", exc_info=error)
            return error
        self.healthy = False
        reason = " ".join(str(error).split())
        log.warning("the store is not available: %s", reason)
        self._close_store()
        return Unavailable(f"the store is not available: {reason}")

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(*store.failures):
                store.close()

    def _finish(self) -> None:
        """Save a last snapshot, if the store is available, and close everything."""
        try:
            if (store := self._store) is not None:
                with store.transaction():
                    self._require_tenure(store)
                    self._snapshots.finish(store, replay_log(store, self.policy, self.dimension, self.state))
        except Exception as error:
            log.warning("no snapshot at the end: %s", error)
        self._snapshots.close()
        self.verifier.close()
        self._close_store()


async def wait_for(future: "Future[Result]") -> Result:
    """Wait until a job's transaction is durable, or raise ``Unavailable``: the job may still run, or never."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise Unavailable(LATE) from None
    finally:
        del future  # breaks the cycle of frame, future and exception
