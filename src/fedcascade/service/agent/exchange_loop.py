"""Exchanges with the server in background threads: uploads one by one, and comparisons of sums after an accident."""

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
UNREACHABLE = (502, 503, 504)  # status of proxies, and of a server without its store


class Exchanger:
    """The exchanges of one agent, one request at a time, oldest upload first.

    ``trouble`` is the last problem, or None. ``due`` is the time of the next attempt, and ``not_before`` the earliest
    one that the server allows, in seconds of ``time.monotonic``. ``is_offline`` is true if the last attempt found no
    server.
    """

    def __init__(self, memory: LocalMemory, link: ServerLink, pauses: tuple[float, float]) -> None:
        self.trouble: str | None = None
        self.due = self.not_before = 0.0
        self.is_offline = False
        self.owner: object = None  # keeps the agent in memory while it has work
        self._memory, self._link, self._pauses, self._failures = memory, link, pauses, 0
        self.client = link.build_client(memory.store, self._id)

    @property
    def _id(self) -> int:
        return self._memory.state.enrolment.agent

    def has_work(self) -> bool:
        state = self._memory.state
        return not self._memory.has_left and (bool(state.outbox) or not state.is_settled)

    def step(self) -> None:
        """Take the next step; set ``trouble``, and ``due`` after a failure."""
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
        """Enrol, send an upload or compare sums; return a problem or note, if any."""
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
        """Send an upload and take its answer; return the problem, if any."""
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
        if trouble is None and answer.terms_id != memory.state.enrolment.terms.terms_id:
            memory.follow(self._link.fetch_terms(answer.terms_id))
        return trouble

    def _confirm(self, upload: Upload, answer: wire.AnswerMessage | None) -> str | None:
        """Replace an upload by its answer, or count it if the answer is invalid; return the problem, if any."""
        memory = self._memory
        trouble = download = None
        try:
            if answer is not None:
                download = check_answer(answer, self._id, memory.state.local.dimension, memory.policy.lambda_)
        except ValueError as error:
            trouble = f"the answer to upload {upload.sequence} is invalid: {error}"
        memory.update(lambda state: (confirm(memory.policy, state, upload, answer, download), None))
        return trouble

    def _recover(self, error: Exception) -> str:
        """Recover from a failure before the next attempt; return the problem in one line."""
        agent, trouble = self._id, str(error) or type(error).__name__
        if isinstance(error, Refused):
            try:
                self._answer_refusal(error)
            except Exception as second:  # the loop must go on
                trouble = f"{trouble}; {second}"
        if isinstance(error, OSError | ValueError):
            log.info("agent %d waits: %s", agent, trouble)
        else:
            log.error("agent %d waits", agent, exc_info=error)
        return trouble

    def _answer_refusal(self, refusal: Refused) -> None:
        """Act on a refusal; most need only another attempt."""
        memory, before = self._memory, self._id
        outbox = memory.state.outbox
        if refusal.reason == "unrecognised":  # forgotten, or lost by a restored server
            self._enrol(memory.state.enrolment.credential)
            log.warning("agent %d was lost by its server, and enrolled again as agent %d", before, self._id)
        elif refusal.reason == "revoked":  # its uploads stay at the server
            self._enrol(new_key=True)
            log.warning("agent %d was revoked, and enrolled again as agent %d", before, self._id)
        elif refusal.reason == "conflict":  # a copy of this agent's file has used the number
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
        """Enrol under the server's new number."""
        store = self._memory.store
        self._link.enrol(store, credential=credential, new_key=new_key)
        with store.file.lock:
            if new_key:  # a caller may have saved own data in between
                with store.transaction():
                    store.begin_ledger()
            self.reload()

    def reload(self) -> None:
        self._memory.load()
        self.client = self._link.build_client(self._memory.store, self._id)

    def _renumber(self, upload: Upload, standing: wire.Standing) -> None:
        self._memory.update(lambda state: (renumber(state, upload, standing.last_sequence), None))

    def _withdraw(self, upload: Upload, *, is_lost: bool) -> None:
        memory = self._memory
        memory.update(lambda state: (withdraw(memory.policy, state, upload, is_lost=is_lost), None))

    def _resolve_superseded(self, upload: Upload) -> None:
        """Decide by the sums whether the server counted an upload before it folded the log; drop it if in doubt."""
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
    """The threads that exchange for all agents of a file; each agent has one request in flight at most.

    While no server can be reached, one agent tries for all, with exponential backoff. ``trouble`` is that of the last
    step.
    """

    def __init__(self, lock: threading.RLock, pauses: tuple[float, float], senders: int) -> None:
        self.trouble: str | None = None
        self._changed, self._work = threading.Condition(lock), threading.Condition(lock)
        self._pauses, self._is_stopped = pauses, False
        self._heap: list[tuple[float, int, Exchanger]] = []
        self._ticks = itertools.count()
        self._waiting: dict[Exchanger, int] = {}  # the valid entry of the heap; older ones are stale
        self._busy: set[Exchanger] = set()
        self._failures, self._resume_at = 0, 0.0
        self._threads = [
            threading.Thread(target=self._run, name="fedcascade-agent", daemon=True) for _ in range(senders)
        ]
        for thread in self._threads:
            thread.start()

    def announce(self, exchanger: Exchanger) -> None:
        """Schedule an agent that has something to send."""
        with self._work:
            if exchanger not in self._waiting and exchanger not in self._busy:
                self._schedule(exchanger)

    def flush(self, exchanger: Exchanger | None, timeout: float | None) -> bool:
        """Wait until an agent, or all if None, has nothing left to send or to compare; False after ``timeout`` seconds.

        Agents retry now, unless the server asked them to wait.
        """
        with self._work:
            self._resume_at = 0.0
            for waiting in list(self._waiting) if exchanger is None else [exchanger] * (exchanger in self._waiting):
                waiting.due = waiting.not_before
                self._schedule(waiting)
            self._changed.wait_for(lambda: self._is_done(exchanger) or self._is_stopped, timeout)
            return self._is_done(exchanger)

    def stop(self) -> None:
        """Stop the threads after the requests in flight."""
        with self._work:
            self._is_stopped = True
            self._work.notify_all()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def suspend(self, exchanger: Exchanger) -> Iterator[None]:
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
        """Wait until an agent is due, and take it; None if the loop stops."""
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
        """Delay all agents while no server can be reached; simultaneous failures count once."""
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
