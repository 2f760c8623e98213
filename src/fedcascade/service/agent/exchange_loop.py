"""Exchanges with the server: uploads one after another, comparisons after an accident, and the threads that do it."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fedcascade.federation.messages import Upload
from fedcascade.service.agent.client import BadReply, compute_pause
from fedcascade.service.agent.enrolment import ServerLink
from fedcascade.service.agent.ledger import check_answer, confirm, is_change, renumber, settle, withdraw
from fedcascade.service.agent.local_store import LocalMemory
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused

log = logging.getLogger("fedcascade.agent")
UNREACHABLE = (502, 503, 504)  # what proxies answer, and a server whose store is gone


class Exchanger:
    """Exchanges for one agent, one request after the other, the oldest upload first.

    ``trouble`` says why it waits or what went wrong last, None if nothing did. ``due`` is when it may try again by its
    own patience, ``not_before`` by what the server asked for, both in seconds of ``time.monotonic``. ``is_offline``
    says whether no server could be reached the last time.
    """

    def __init__(self, memory: LocalMemory, link: ServerLink, pauses: tuple[float, float]) -> None:
        self.trouble: str | None = None
        self.due = self.not_before = 0.0
        self.is_offline = False
        self.owner: object = None  # stays in memory as long as this has work
        self._memory, self._link, self._pauses, self._failures = memory, link, pauses, 0
        self.client = link.build_client(memory.store, self._id)

    @property
    def _id(self) -> int:
        return self._memory.state.welcome.agent

    def has_work(self) -> bool:
        state = self._memory.state
        return not self._memory.has_left and (bool(state.outbox) or not state.is_settled)

    def step(self) -> None:
        """Do the next thing there is to do; set ``trouble`` to what happened, and ``due`` to when to go on."""
        try:
            self.trouble = self._exchange()
            self._failures, self.is_offline = 0, False
        except Exception as error:
            self._failures += 1
            self.is_offline = isinstance(error, ConnectionError) or getattr(error, "status", 0) in UNREACHABLE
            self.trouble = self._recover(error)
            retry_after, now = getattr(error, "retry_after", None), time.monotonic()
            self.not_before = now + (retry_after or 0.0)
            self.due = now + compute_pause(self._failures, self._pauses, retry_after)

    def _exchange(self) -> str | None:
        """Enrol, send an upload or compare sums; return what there is to say of it."""
        memory = self._memory
        if not self._id:
            self._enrol()
        if memory.state.outbox:
            return self._send(memory.state.outbox[0])
        standing = self.client.fetch_standing()
        note = memory.update(lambda state: settle(memory.policy, state, standing))
        if note is not None:
            log.warning("agent %d: %s", self._id, note)
        return note if note is not None or self._failures else self.trouble

    def _send(self, upload: Upload) -> str | None:
        """Send an upload, and learn from its answer; return what was wrong with that, if anything."""
        memory = self._memory
        memory.store.file.sync_to_disk()
        message = wire.UploadMessage.from_upload(upload, receipt=memory.state.receipt)
        try:
            answer = self.client.exchange(message)
        except BadReply as error:
            if self.client.fetch_standing().last_sequence < upload.sequence:
                raise
            self._confirm(upload, None)
            return f"upload {upload.sequence} was counted, but {error}"
        trouble = self._confirm(upload, answer)
        if trouble is None and answer.terms_id != memory.state.welcome.terms.terms_id:
            memory.follow(self._link.fetch_terms(answer.terms_id))
        return trouble

    def _confirm(self, upload: Upload, answer: wire.AnswerMessage | None) -> str | None:
        """Go on with an answer in the place of an upload; return what was wrong with it.

        An answer of no use leaves what was known, and the upload itself.
        """
        memory, trouble, download = self._memory, None, None
        try:
            if answer is not None:
                download = check_answer(answer, self._id, memory.state.local.dimension, memory.policy.lambda_)
        except ValueError as error:
            trouble = f"the answer to upload {upload.sequence} is of no use: {error}"
        memory.update(lambda state: (confirm(memory.policy, state, upload, answer, download), None))
        return trouble

    def _recover(self, error: Exception) -> str:
        """Mend what can be mended after a failure, before the next try; return what to say of it."""
        agent, said = self._id, str(error) or type(error).__name__
        if isinstance(error, Refused):
            try:
                self._answer_refusal(error)
            except Exception as second:  # whatever it is, the next step comes
                said = f"{said}; {second}"
        if isinstance(error, OSError | ValueError):
            log.info("agent %d waits: %s", agent, said)
        else:
            log.error("agent %d waits", agent, exc_info=error)
        return said

    def _answer_refusal(self, refusal: Refused) -> None:
        """Do what a refusal asks for; most ask for patience alone."""
        memory, before, outbox = self._memory, self._id, self._memory.state.outbox
        if refusal.reason == "unrecognised":  # forgotten, or lost by a server that was restored
            self._enrol(memory.state.welcome.credential)
            log.warning("agent %d was lost by its server, and is agent %d from now on", before, self._id)
        elif refusal.reason == "revoked":  # what it taught stays with the server
            self._enrol(new_key=True)
            log.warning("agent %d was revoked, and is agent %d from now on", before, self._id)
        elif refusal.reason == "conflict":  # a copy of this agent's file has used the number, so it was not counted
            self._renumber(outbox[0], self.client.fetch_standing())
        elif refusal.reason == "superseded":
            self._resolve_superseded(outbox[0])
        elif refusal.reason == "too-few":
            memory.follow(self._link.fetch_terms())
            self._withdraw(outbox[0], is_lost=False)
        elif refusal.reason in ("impossible", "too-heavy"):
            log.warning("agent %d: upload %d is lost: %s", before, outbox[0].sequence, refusal)
            self._withdraw(outbox[0], is_lost=True)

    def _enrol(self, credential: wire.Credential | None = None, *, new_key: bool = False) -> None:
        """Enrol, and go on under the number that the server gives."""
        store = self._memory.store
        self._link.enrol(store, credential=credential, new_key=new_key)
        with store.file.lock:
            if new_key:  # own data may have been saved meanwhile
                with store.transaction():
                    store.begin_ledger()
            self.reload()

    def reload(self) -> None:
        """Go on as the agent that the store has."""
        self._memory.load()
        self.client = self._link.build_client(self._memory.store, self._id)

    def _renumber(self, upload: Upload, standing: wire.Standing) -> None:
        self._memory.update(lambda state: (renumber(state, upload, standing.last_sequence), None))

    def _withdraw(self, upload: Upload, *, is_lost: bool) -> None:
        memory = self._memory
        memory.update(lambda state: (withdraw(memory.policy, state, upload, is_lost=is_lost), None))

    def _resolve_superseded(self, upload: Upload) -> None:
        """Decide by the sums whether a folded upload is this one; it is given up where they leave that open."""
        standing, confirmed = self.client.fetch_standing(), self._memory.state.confirmed
        if is_change(upload):
            excess = min(0, standing.last_change - upload.sequence)
        else:
            excess = standing.rounds - confirmed.rounds - upload.statistics.rounds
        if excess < 0:
            self._renumber(upload, standing)
        elif excess == 0:
            self._confirm(upload, None)
        else:
            self._withdraw(upload, is_lost=True)


class ExchangeLoop:
    """The threads that exchange for all agents of a file, which are many more; each agent has one request at a time.

    While no server can be reached, one agent tries for all, less and less often. ``trouble`` is that of the last step.
    """

    def __init__(self, lock: threading.RLock, pauses: tuple[float, float], senders: int) -> None:
        self.trouble: str | None = None
        self._changed, self._work = threading.Condition(lock), threading.Condition(lock)
        self._pauses, self._is_stopped = pauses, False
        self._heap: list[tuple[float, int, Exchanger]] = []
        self._ticks = itertools.count()
        self._waiting: dict[Exchanger, int] = {}  # the entry of the heap that counts; older ones are void
        self._busy: set[Exchanger] = set()
        self._failures, self._resume_at = 0, 0.0
        self._threads = [
            threading.Thread(target=self._run, name="fedcascade-agent", daemon=True) for _ in range(senders)
        ]
        for thread in self._threads:
            thread.start()

    def announce(self, exchanger: Exchanger) -> None:
        """Take note that an agent has something to send."""
        with self._work:
            if exchanger not in self._waiting and exchanger not in self._busy:
                self._schedule(exchanger)

    def flush(self, exchanger: Exchanger | None, timeout: float | None) -> bool:
        """Wait until an agent, or all if None, has nothing left to send or to compare; False after ``timeout`` seconds.

        An agent that waits by its own patience tries at once; what the server asked for is kept.
        """
        with self._work:
            self._resume_at = 0.0
            for waiting in list(self._waiting) if exchanger is None else [exchanger] * (exchanger in self._waiting):
                waiting.due = waiting.not_before
                self._schedule(waiting)
            self._changed.wait_for(lambda: self._is_done(exchanger) or self._is_stopped, timeout)
            return self._is_done(exchanger)

    def stop(self) -> None:
        """End the threads, after the requests that are under way."""
        with self._work:
            self._is_stopped = True
            self._work.notify_all()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def silence(self, exchanger: Exchanger) -> Iterator[None]:
        """Keep an agent from exchanging; it goes on afterwards if it has something to send."""
        with self._work:
            self._changed.wait_for(lambda: exchanger not in self._busy)
            self._busy.add(exchanger)
            self._waiting.pop(exchanger, None)
        try:
            yield
        finally:
            with self._work:
                self._put_back(exchanger)

    def _is_done(self, exchanger: Exchanger | None) -> bool:
        if exchanger is None:
            return not self._waiting and not self._busy
        return exchanger not in self._waiting and exchanger not in self._busy

    def _run(self) -> None:
        while (exchanger := self._take()) is not None:
            exchanger.step()
            with self._work:
                self.trouble = exchanger.trouble
                self._note_network(exchanger)
                self._put_back(exchanger)

    def _take(self) -> Exchanger | None:
        """Wait until an agent is due, and take it; None if the thread is to end instead."""
        with self._work:
            while not self._is_stopped:
                while self._heap and self._waiting.get(self._heap[0][2]) != self._heap[0][1]:
                    heapq.heappop(self._heap)
                start = max(self._heap[0][0], self._resume_at) if self._heap else None
                if start is not None and start <= time.monotonic():
                    exchanger = heapq.heappop(self._heap)[2]
                    del self._waiting[exchanger]
                    self._busy.add(exchanger)
                    return exchanger
                self._work.wait(None if start is None else start - time.monotonic())
            return None

    def _note_network(self, exchanger: Exchanger) -> None:
        """Let all agents wait while no server can be reached; several threads that find it at once count as one."""
        if not exchanger.is_offline:
            self._failures = 0
        elif (now := time.monotonic()) >= self._resume_at:
            self._failures += 1
            self._resume_at = now + compute_pause(self._failures, self._pauses, None)
            exchanger.due = exchanger.not_before

    def _put_back(self, exchanger: Exchanger) -> None:
        self._busy.discard(exchanger)
        if exchanger.has_work():
            self._schedule(exchanger)
        self._changed.notify_all()

    def _schedule(self, exchanger: Exchanger) -> None:
        exchanger.due = max(exchanger.due, time.monotonic())  # first come, first served
        tick = next(self._ticks)
        self._waiting[exchanger] = tick
        heapq.heappush(self._heap, (exchanger.due, tick, exchanger))
        self._work.notify()
