"""What waits for the writer: jobs, and exchanges (Algorithm 1, lines 8 to 11), which are signed requests.

Results come back to the threads and event loops that asked.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import REPLAYED, UNRECOGNISED, SignatureHeaders, Unauthorised
from fedcascade.service.protocol.errors import Refused, Unavailable
from fedcascade.service.server.settings import UploadBounds
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Identity, LogEntry, Revoked, Store, is_same_upload
from fedcascade.service.store.epoch import begin_epoch

Result = TypeVar("Result")
Job = Callable[[Store, ServerState], Result]
Deliver = Callable[[Any], None]  # takes the result of a job, or the exception in its place
ANSWER_SECONDS = 15.0  # a request waits no longer for its transaction
log = logging.getLogger("fedcascade.service")


@dataclass(slots=True, eq=False)
class PendingJob:
    """A job and where its result goes: to the event loop of ``waiting``, or to the writer's thread if that is None."""

    run: Job[Any]
    deliver: Deliver
    waiting: "WaitingJobs | None" = None
    deadline: float = 0.0  # in seconds of the event loop
    is_settled: bool = False

    def settle(self, result: Any) -> None:
        """Deliver a result, unless one was delivered before. A failure to take it must not harm the next one."""
        if not self.is_settled:
            self.is_settled = True
            try:
                self.deliver(result)
            except Exception:
                log.exception("a result cannot be delivered")


@dataclass(slots=True, eq=False, kw_only=True)
class Exchange:
    """A signed request on its way through the server: what came, what checks found of it, and where the answer goes.

    The service fills in the terms, the verifier ``is_signed``, ``refusal`` and ``message``, the writer runs it. It has
    the attributes that uvicorn asks of a request: is it answered, is more to come.
    """

    headers: Mapping[str, str]
    body: bytes = b""
    caller: str = ""  # the network that it came from
    method: str = "POST"
    path: str = wire.EXCHANGES
    deliver: Deliver = field(default=lambda _: None)
    signature: SignatureHeaders = field(default=SignatureHeaders(0, 0, 0, 0, "", "", ""))
    identity: Identity = field(default=Identity(0, b"", 0.0))
    started: float = 0.0  # in seconds of ``time.perf_counter``
    enrolled_seconds: float = 0.0  # since the agent enrolled
    bounds: UploadBounds | None = None
    terms_id: str = ""
    is_signed: bool = False
    refusal: tuple[int, str, str] | None = None  # status, reason, detail
    message: wire.UploadMessage | None = None
    finish: "Callable[[Exchange, Any], None] | None" = None
    waiting: "WaitingJobs | None" = None
    deadline: float = 0.0
    is_settled: bool = False
    disconnected: bool = False
    keep_alive: bool = True
    response_complete: bool = False
    message_event: ClassVar = asyncio.Event()  # of uvicorn, and not used

    @property
    def media_type(self) -> str | None:
        """The media type of the upload, if the request has one."""
        return wire.get_media_type(self.headers) if self.path == wire.EXCHANGES else None

    def settle(self, result: Any) -> None:
        """Hand the result to the service, which delivers it, unless there was one before."""
        if not self.is_settled:
            self.is_settled = True
            try:
                if self.finish is not None:
                    self.finish(self, result)
                self.deliver(result)
            except Exception:
                log.exception("a result cannot be delivered")

    def run(self, store: Store, state: ServerState) -> bytes:
        """Count the upload once, and return the answer; refuse an agent that is not active.

        The same upload again is answered with what its group holds by then: answers are not kept, because they hold the
        data of others, who may ask to be forgotten. Another upload under the same sequence number is refused. Nothing
        was counted before the last refusal.
        """
        message, agent = self.message, self.signature.agent
        if message is None:
            require_active(store, self.signature)
            return b""
        renew_epoch(store, state, message.receipt)
        upload = message.to_upload(agent, state.dimension)
        earlier, held = self._find_earlier(store), state.count_held(agent)
        if earlier is None:
            if self.bounds is not None:
                held_rounds = 0 if upload.cause is Cause.CHANGE else held[1]
                self.bounds.check(upload.statistics, held_rounds=held_rounds, seconds=self.enrolled_seconds)
            state.check(upload)
            nonce = self.signature.nonce.to_bytes(8)
            entry = LogEntry(position=state.position + 1, upload=upload, nonce=nonce, numbers=message.numbers)
            download = state.apply(entry)
            store.append(entry)
            held = state.count_held(agent)
        else:
            self._require_repeated(store, earlier, upload)
            download = state.answer(agent)
        answer = wire.AnswerMessage.from_download(
            download, upload.sequence, state.count_group(agent), held=held, terms_id=self.terms_id,
            receipt=state.epoch.give_receipt(state.position),
        )  # fmt: skip
        return wire.encode(answer, self.media_type or wire.MSGPACK)

    def _find_earlier(self, store: Store) -> LogEntry | None:
        """Find an upload of that sequence number in the log; refuse a stranger in the same words as a bad signature."""
        agent = self.signature.agent
        try:
            return store.find_entry(agent, self.signature.sequence)
        except Revoked:
            if store.find_identity(agent) is None:  # its key is remembered, but the agent was forgotten or lost
                raise Unauthorised("unrecognised", UNRECOGNISED) from None
            raise

    def _require_repeated(self, store: Store, earlier: LogEntry, upload: Upload) -> None:
        """Refuse what is not the same upload, signed again.

        Another process, or this one before a restart, may have seen the very same request.
        """
        agent, nonce = self.signature.agent, self.signature.nonce
        if nonce.to_bytes(8) == earlier.nonce or not store.use_nonce(agent, nonce, self.signature.created):
            raise Unauthorised("replayed", REPLAYED)
        if not is_same_upload(earlier.upload, upload):
            raise Refused(409, "conflict", f"upload {upload.sequence} was already received with another content")


def require_active(store: Store, signature: SignatureHeaders) -> None:
    """Refuse an agent that was revoked or forgotten, and a signature that another process has seen."""
    identity = store.find_identity(signature.agent)
    if identity is None:
        raise Unauthorised("unrecognised", UNRECOGNISED)
    if identity.revoked:
        raise Revoked(signature.agent)
    if not store.use_nonce(signature.agent, signature.nonce, signature.created):
        raise Unauthorised("replayed", REPLAYED)


def renew_epoch(store: Store, state: ServerState, receipt: wire.Receipt | None) -> None:
    """Begin a new epoch if the log ends before the last receipt that an agent got: then the store was restored."""
    if receipt is not None and receipt.position > state.position and state.epoch.is_genuine(receipt):
        log.warning("the store was restored: an agent was answered at position %d, the log ends at %d",
                    receipt.position, state.position)  # fmt: skip
        state.epoch = begin_epoch(store)


Pending = PendingJob | Exchange


class WaitingJobs:
    """The jobs of one event loop that wait for the writer, the oldest first: one timer serves them all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._jobs: deque[Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, pending: Pending) -> None:
        pending.waiting, pending.deadline = self, self.loop.time() + ANSWER_SECONDS
        self._jobs.append(pending)
        if self._timer is None:
            self._timer = self.loop.call_at(pending.deadline, self._expire)

    def settle(self, results: Iterable[tuple[Pending, Any]]) -> None:
        """Deliver the results of a batch."""
        for pending, result in results:
            pending.settle(result)
        while self._jobs and self._jobs[0].is_settled:
            self._jobs.popleft()

    def _expire(self) -> None:
        """Refuse what waits for too long; the job may still be done."""
        now = self.loop.time()
        while self._jobs and (self._jobs[0].is_settled or self._jobs[0].deadline <= now):
            self._jobs.popleft().settle(Unavailable(f"the store did not answer within {ANSWER_SECONDS:g} s"))
        self._timer = self.loop.call_at(self._jobs[0].deadline, self._expire) if self._jobs else None


def settle_future(future: "Future[Any] | asyncio.Future[Any]", result: Any) -> None:
    """Give a future its result or exception, unless nobody waits for it any more."""
    if future.cancelled():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def report(batch: Sequence[Pending], results: Sequence[Any]) -> None:
    """Deliver the result or the exception of each job, once to each event loop.

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
