"""Work for the writer: jobs, and exchanges (Algorithm 1, lines 8 to 11), which are signed requests.

Results are delivered to the thread or event loop of the caller.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from nacl.signing import SigningKey

from fedcascade.checks import require
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.privacy import PrivateUploads
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import FRESH_SECONDS, REPLAYED, UNRECOGNISED, SignatureHeaders, Unauthorised
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import corrects
from fedcascade.service.server.settings import DEFAULT_BOUNDS, UploadBounds
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Identity, LogEntry, Revoked, Store, is_same_upload
from fedcascade.service.store.epoch import begin_epoch

Result = TypeVar("Result")
Job = Callable[[Store, ServerState], Result]
Deliver = Callable[[Any], None]  # takes the result or the exception of a job
MOST_PRIVATE = 128  # uploads since the last change; after the 1st, 2nd, 4th... list there are 64 in 2^63 lists
ANSWER_SECONDS = 15.0  # longest wait of a request for its transaction
# Identity of unknown agent numbers. Its key is lost, so callers cannot find out which agents exist.
STRANGER = Identity(0, bytes(SigningKey.generate().verify_key), 0.0)
log = logging.getLogger("fedcascade.service")


@dataclass(slots=True, eq=False)
class PendingJob:
    """A job, and its result or exception, which the writer's thread delivers."""

    run: Job[Any]
    deliver: Deliver
    loop: ClassVar = None
    result: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class Exchange:
    """A signed request on its way through the server.

    The service fills in the signature and the terms, the writer the identity, the verifier ``is_signed``, ``refusal``,
    ``upload``, ``numbers`` and ``receipt``, the transaction ``result``: the encoded answer, or an exception. The last
    five attributes are those that uvicorn reads of a request.
    """

    headers: Mapping[str, str]
    body: bytes = b""
    caller: str = ""  # network of the caller
    method: str = "POST"
    path: str = wire.EXCHANGES
    media_type: str | None = None  # of the upload; None if the request has none
    deliver: Deliver = lambda _: None
    loop: asyncio.AbstractEventLoop | None = None
    signature: SignatureHeaders = field(default=SignatureHeaders(0, 0, 0, 0, "", "", ""))
    identity: Identity = STRANGER
    at: float = 0.0  # seconds of the server's clock
    started: float = 0.0  # in seconds of ``time.perf_counter``
    bounds: UploadBounds = DEFAULT_BOUNDS
    terms_id: str = ""
    is_signed: bool = False
    refusal: tuple[int, str, str] | None = None  # status, reason, detail
    upload: Upload | None = None
    numbers: bytes = b""  # of the upload, as received
    receipt: wire.Receipt | None = None  # the last one that the agent received
    result: Any = None
    disconnected: bool = False
    keep_alive: bool = True
    response_complete: bool = False
    more_body: ClassVar = False
    message_event: ClassVar = asyncio.Event()  # unused

    def run(self, store: Store, state: ServerState) -> bytes:
        """Count the upload once and return the answer; refuse an agent that is not active.

        A repeated upload is answered with the current data of its group. Answers are not stored, because they hold data
        of other agents, which may ask to be forgotten. All refusals come before the upload is counted.
        """
        upload, agent = self.upload, self.signature.agent
        if upload is None:
            require_active(store, self.signature)
            return b""
        renew_epoch(store, state, self.receipt)
        try:
            earlier = store.find_entry(agent, upload.sequence)
        except Revoked:
            if store.find_identity(agent) is None:  # its key is cached, but the agent was forgotten or lost
                raise Unauthorised("unrecognised", UNRECOGNISED) from None
            raise
        if earlier is None:
            held, is_change = state.get_statistics(agent), upload.cause is Cause.CHANGE
            if self.identity.enrolled > self.at + FRESH_SECONDS:
                self._correct_enrolment(store)
            seconds = self.at - self.identity.enrolled
            self.bounds.check(upload.statistics, held_rounds=0 if is_change else held.rounds, seconds=seconds)
            if self.refusal is not None and (is_change or not corrects(upload.statistics, held)):
                raise Refused(*self.refusal)
            if state.policy.privacy is not None:
                self._check_over_time(store, state.policy.privacy, upload)
            download = state.apply(upload, state.position + 1)
            store.append(state.position, upload, self.signature.nonce.to_bytes(8), self.numbers)
            state.publish_prior(store, self.at)
        else:
            self._require_repeated(store, earlier, upload)
            download = state.answer(agent)
        held = state.get_statistics(agent)
        answer = wire.AnswerMessage(
            protocol=wire.PROTOCOLS[-1],
            sequence=upload.sequence,
            count=download.count,
            clicks=download.clicks,
            rounds=download.rounds,
            system_rounds=wire.coarsen(state.rounds),
            agents=wire.coarsen(len(state.places)),
            group_agents=wire.coarsen(state.count_group(agent)),
            held_count=held.count,
            held_rounds=held.rounds,
            terms_id=self.terms_id,
            receipt=state.epoch.give_receipt(state.position),
            numbers=wire.pack_numbers(download),
        )
        return wire.ENCODERS[self.media_type or wire.MSGPACK](answer)

    def _check_over_time(self, store: Store, privacy: PrivateUploads, upload: Upload) -> None:
        """Refuse a private upload beyond the budget, or if noise does not explain the sum of the agent's uploads."""
        agent, total, uploads = self.signature.agent, upload.statistics, 1
        first = 1 if upload.cause is Cause.CHANGE else store.sum_uploads(agent).last_change or 1
        try:
            is_budgeted = not privacy.measure_budget(upload.sequence - 1).is_spent
            require(is_budgeted, f"a user's privacy allows {privacy.uploads} uploads, this is upload {upload.sequence}")
            if upload.cause is not Cause.CHANGE:
                require(upload.sequence - first < MOST_PRIVATE, f"a user has at most {MOST_PRIVATE} private uploads")
                for sequence in range(first, upload.sequence):
                    if (entry := store.find_entry(agent, sequence)) is not None:
                        total, uploads = total + entry.upload.statistics, uploads + 1
            privacy.check(total, total.dimension, uploads)
        except ValueError as error:
            raise Refused(422, "impossible", f"with the agent's earlier uploads, {error}") from None

    def _correct_enrolment(self, store: Store) -> None:
        """Replace a time of enrolment in the future, by a clock that was ahead, by the time now."""
        self.identity = store.find_identity(self.signature.agent) or self.identity  # the writer's copy may be older
        if self.identity.enrolled > self.at + FRESH_SECONDS:
            log.warning("agent %d enrolled in the future, by a wrong clock: it counts from now", self.signature.agent)
            self.identity = replace(self.identity, enrolled=self.at)
            store.put_identity(self.identity)

    def _require_repeated(self, store: Store, earlier: LogEntry, upload: Upload) -> None:
        """Refuse a replayed request, and another upload with the same sequence number."""
        agent, nonce = self.signature.agent, self.signature.nonce
        if nonce.to_bytes(8) == earlier.nonce or not store.use_nonce(agent, nonce, self.signature.created):
            raise Unauthorised("replayed", REPLAYED)
        if not is_same_upload(earlier.upload, upload):
            raise Refused(409, "conflict", f"upload {upload.sequence} was already received with another content")


def require_active(store: Store, signature: SignatureHeaders) -> None:
    """Refuse an agent that was revoked or forgotten, and a replayed signature."""
    identity = store.find_identity(signature.agent)
    if identity is None:
        raise Unauthorised("unrecognised", UNRECOGNISED)
    if identity.revoked:
        raise Revoked(signature.agent)
    if not store.use_nonce(signature.agent, signature.nonce, signature.created):
        raise Unauthorised("replayed", REPLAYED)


def renew_epoch(store: Store, state: ServerState, receipt: wire.Receipt | None) -> None:
    """Begin a new epoch if the log ends before an agent's last receipt: the store was restored."""
    if receipt is not None and receipt.position > state.position and state.epoch.is_genuine(receipt):
        answered = f"an agent was answered at position {receipt.position}, the log ends at {state.position}"
        log.warning("the store was restored: %s", answered)
        state.epoch = begin_epoch(store)


Pending = PendingJob | Exchange


def settle_future(future: "Future[Any]", result: Any) -> None:
    """Set the result or exception of a future, unless it was cancelled."""
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def report(batch: Sequence[Pending]) -> None:
    """Deliver the result or the exception of each job, with one call per event loop.

    Exceptions lose their tracebacks: the frames of this thread refer to the state and to the batch, which refers to the
    exception's future. That cycle would keep dropped states in memory.
    """
    for pending in batch:
        if isinstance(pending.result, BaseException):
            pending.result.__traceback__ = pending.result.__context__ = None
    for loop in {pending.loop for pending in batch}:
        settled = [pending for pending in batch if pending.loop is loop]
        if loop is None:
            deliver_all(settled)
        else:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(deliver_all, settled)


def deliver_all(settled: Sequence[Pending]) -> None:
    """Deliver results; an exception of one recipient does not affect the others."""
    for pending in settled:
        try:
            pending.deliver(pending.result)
        except Exception:
            log.exception("a result cannot be delivered")
