"""What waits for the writer: jobs, and exchanges (Algorithm 1, lines 8 to 11), which are signed requests.

Results come back to the threads and event loops that asked.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from nacl.signing import SigningKey

from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import REPLAYED, UNRECOGNISED, SignatureHeaders, Unauthorised
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.settings import DEFAULT_BOUNDS, UploadBounds
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Identity, LogEntry, Revoked, Store, is_same_upload
from fedcascade.service.store.epoch import begin_epoch

Result = TypeVar("Result")
Job = Callable[[Store, ServerState], Result]
Deliver = Callable[[Any], None]  # takes the result of a job, or the exception in its place
ANSWER_SECONDS = 15.0  # a request waits no longer for its transaction
# Stands for a number without an agent. Nobody has its key, so strangers cannot tell which agents exist.
STRANGER = Identity(0, bytes(SigningKey.generate().verify_key), 0.0)
log = logging.getLogger("fedcascade.service")


@dataclass(slots=True, eq=False)
class PendingJob:
    """A job and where its result goes: to an event loop, or to the writer's thread if ``loop`` is None."""

    run: Job[Any]
    deliver: Deliver = lambda _: None
    loop: asyncio.AbstractEventLoop | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Exchange:
    """A signed request on its way through the server: what came, what checks found of it, and where the answer goes.

    The service fills in the signature and the terms, the writer the identity, the verifier ``is_signed``, ``refusal``,
    ``upload``, ``numbers`` and ``receipt``. It has the attributes that uvicorn asks of a request: is it answered, is
    more to come.
    """

    headers: Mapping[str, str]
    body: bytes = b""
    caller: str = ""  # the network that it came from
    method: str = "POST"
    path: str = wire.EXCHANGES
    media_type: str | None = None  # of the upload; None if the request has none
    deliver: Deliver = lambda _: None
    loop: asyncio.AbstractEventLoop | None = None
    signature: SignatureHeaders = field(default=SignatureHeaders(0, 0, 0, 0, "", "", ""))
    identity: Identity = STRANGER
    at: float = 0.0  # by the server's clock
    started: float = 0.0  # in seconds of ``time.perf_counter``
    bounds: UploadBounds = DEFAULT_BOUNDS
    terms_id: str = ""
    is_signed: bool = False
    refusal: tuple[int, str, str] | None = None  # status, reason, detail
    upload: Upload | None = None
    numbers: bytes = b""  # of the upload, as they came
    receipt: wire.Receipt | None = None  # the last one that the agent got
    disconnected: bool = False
    keep_alive: bool = True
    response_complete: bool = False
    message_event: ClassVar = asyncio.Event()  # of uvicorn, and not used

    def run(self, store: Store, state: ServerState) -> bytes:
        """Count the upload once, and return the answer; refuse an agent that is not active.

        The same upload again is answered with what its group holds by then: answers are not kept, because they hold the
        data of others, who may ask to be forgotten. Another upload under the same sequence number is refused. Nothing
        was counted before the last refusal.
        """
        upload, agent = self.upload, self.signature.agent
        if upload is None:
            require_active(store, self.signature)
            return b""
        renew_epoch(store, state, self.receipt)
        try:
            earlier = store.find_entry(agent, upload.sequence)
        except Revoked:
            if store.find_identity(agent) is None:  # its key is remembered, but the agent was forgotten or lost
                raise Unauthorised("unrecognised", UNRECOGNISED) from None
            raise
        if earlier is None:
            held_rounds = 0 if upload.cause is Cause.CHANGE else state.count_held(agent)[1]
            seconds = self.at - self.identity.enrolled
            self.bounds.check(upload.statistics, held_rounds=held_rounds, seconds=seconds)
            download = state.apply(upload, state.position + 1)
            store.append(state.position, upload, self.signature.nonce.to_bytes(8), self.numbers)
        else:
            self._require_repeated(store, earlier, upload)
            download = state.answer(agent)
        answer = wire.AnswerMessage.from_download(
            download, upload.sequence, state.count_group(agent), held=state.count_held(agent), terms_id=self.terms_id,
            receipt=state.epoch.give_receipt(state.position),
        )  # fmt: skip
        return wire.encode(answer, self.media_type or wire.MSGPACK)

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


def settle_future(future: "Future[Any] | asyncio.Future[Any]", result: Any) -> None:
    """Give a future its result or exception, unless nobody waits for it any more."""
    if future.done():
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
    for loop in {pending.loop for pending in batch}:
        pairs = zip(batch, results, strict=True)
        settled = [(pending, result) for pending, result in pairs if pending.loop is loop]
        if loop is None:
            deliver_all(settled)
        else:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(deliver_all, settled)


def deliver_all(settled: Sequence[tuple[Pending, Any]]) -> None:
    """Deliver results. A failure to take one must not harm the next one."""
    for pending, result in settled:
        try:
            pending.deliver(result)
        except Exception:
            log.exception("a result cannot be delivered")
