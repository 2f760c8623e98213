"""Jobs that wait for the writer, and how their results come back to the threads and event loops that asked."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fedcascade.service.protocol.auth import SignatureHeaders
from fedcascade.service.protocol.errors import Unavailable
from fedcascade.service.server.state import ServerState
from fedcascade.service.server.verifier import SignedRequest
from fedcascade.service.store.contract import Store

Result = TypeVar("Result")
Job = Callable[[Store, ServerState], Result]
Deliver = Callable[[Any], None]  # takes the result of a job, or the exception in its place
Admit = Callable[[SignatureHeaders], None]
ANSWER_SECONDS = 15.0  # a request waits no longer for its transaction
log = logging.getLogger("fedcascade.service")


@dataclass(slots=True)
class PendingJob:
    """A job and who gets its result: in the event loop of ``waiting``, or in the writer's thread if that is None."""

    job: Job[Any]
    deliver: Deliver
    waiting: "WaitingJobs | None" = None
    request: SignedRequest | None = None  # the job is done only if the verifier has nothing against this
    admit: Admit | None = (
        None  # called in the writer's thread after that; raises if the request is refused all the same
    )
    deadline: float = 0.0  # in seconds of the event loop
    is_settled: bool = False

    def settle(self, result: Any) -> None:
        """Deliver a result, unless one was delivered before. Whoever fails to take it must not harm the next one."""
        if not self.is_settled:
            self.is_settled = True
            try:
                self.deliver(result)
            except Exception:
                log.exception("a result cannot be delivered")


class WaitingJobs:
    """The jobs of one event loop that wait for the writer, the oldest first: one timer serves them all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._jobs: deque[PendingJob] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, pending: PendingJob) -> None:
        pending.deadline = self.loop.time() + ANSWER_SECONDS
        self._jobs.append(pending)
        if self._timer is None:
            self._timer = self.loop.call_at(pending.deadline, self._expire)

    def settle(self, results: Iterable[tuple[PendingJob, Any]]) -> None:
        """Deliver the results of a batch."""
        for pending, result in results:
            pending.settle(result)
        while self._jobs and self._jobs[0].is_settled:
            self._jobs.popleft()

    def _expire(self) -> None:
        """Tell those whose time is over; the job may still be done."""
        now = self.loop.time()
        while self._jobs and (self._jobs[0].is_settled or self._jobs[0].deadline <= now):
            self._jobs.popleft().settle(Unavailable(f"the store did not answer within {ANSWER_SECONDS:g} s"))
        self._timer = self.loop.call_at(self._jobs[0].deadline, self._expire) if self._jobs else None


def settle_future(future: "Future[Any] | asyncio.Future[Any]", result: Any) -> None:
    """Give a future its result or exception, unless whoever waited for it has gone."""
    if future.cancelled():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def report(batch: list[PendingJob], results: list[Any]) -> None:
    """Give everybody who waits the result or the exception, each event loop once.

    An exception leaves its traceback here: that holds the frames of this thread, hence the state and the whole batch,
    and a batch holds the future of the exception. Such a ring would keep every state that was dropped in memory.
    """
    for result in results:
        if isinstance(result, BaseException):
            result.__traceback__ = result.__context__ = None
    for waiting in {pending.waiting for pending in batch}:
        pairs = zip(batch, results, strict=True)
        settled = [(pending, result) for pending, result in pairs if pending.waiting is waiting]
        if waiting is None:
            for pending, result in settled:
                pending.settle(result)
        else:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                waiting.loop.call_soon_threadsafe(waiting.settle, settled)
