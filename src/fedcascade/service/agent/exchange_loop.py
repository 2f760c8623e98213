"""Exchanges with the server in background threads: uploads one by one, and comparisons of sums after an accident."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.agent.client import BadReply, compute_pause
from fedcascade.service.agent.enrolment import ServerLink
from fedcascade.service.agent.ledger import SavedState, confirm, renumber, settle, withdraw
from fedcascade.service.agent.memory import FencedOff, LocalMemory
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused

log = logging.getLogger("fedcascade.agent")
Result = TypeVar("Result")
UNREACHABLE = (502, 503, 504)  # status of proxies, and of a server without its store
TAKE_OVER_SECONDS = 5.0  # between two looks for uploads that no process sends
LOOK_SECONDS = 1.0  # between two looks at an agent whose uploads another process sends


class Exchanger:
    """The exchanges of one agent, one request at a time, oldest upload first, by the process with the agent's lease.

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
        self.client = link.build_client(memory)

    def has_work(self) -> bool:
        state = self._memory.state
        return not self._memory.has_left and (bool(state.outbox) or not state.is_settled)

    def step(self) -> None:
        """Take the next step; set ``trouble``, and ``due`` after a failure."""
        try:
            if not self._memory.acquire():
                raise FencedOff
            self.trouble = self._exchange()
            self._failures, self.is_offline = 0, False
        except FencedOff:  # another process sends
            self.due = time.monotonic() + LOOK_SECONDS
            with suppress(OSError, ValueError):
                self.reload()
        except Exception as error:
            self._failures += 1
            self.is_offline = isinstance(error, ConnectionError) or getattr(error, "status", 0) in UNREACHABLE
            self.trouble = self._recover(error)
            retry_after, now = getattr(error, "retry_after", None), time.monotonic()
            self.not_before = now + (retry_after or 0.0)
            self.due = now + compute_pause(self._failures, self._pauses, retry_after)
            with suppress(OSError, ValueError):
                self._memory.postpone(self.due - now)

    def _exchange(self) -> str | None:
        """Enrol, send an upload or compare sums; return a problem or note, if any."""
        memory = self._memory
        self.refresh()
        if not self.has_work():
            memory.postpone(0.0)
            return None
        if not memory.state.enrolment.agent:
            self._enrol()
        if memory.state.outbox:
            return self._send()
        standing = self.client.fetch_standing()
        note = self._change(lambda state: settle(memory.policy, state, standing))
        if note is not None:
            log.warning("%s: %s", memory.title, note)
        return note if note is not None or self._failures else self.trouble

    def _send(self) -> str | None:
        """Send the oldest upload and take its answer; return the problem, if any."""
        memory = self._memory
        upload, receipt = memory.state.outbox[0], memory.state.receipt
        memory.database.sync_to_disk()
        try:
            answer = self.client.exchange(wire.UploadMessage.from_upload(upload, receipt))
        except BadReply as error:
            if self.client.fetch_standing().last_sequence < upload.sequence:
                raise
            self._change(lambda state: confirm(memory.policy, state, upload, None))
            return f"upload {upload.sequence} was counted, but {error}"
        trouble = self._change(lambda state: confirm(memory.policy, state, upload, answer))
        if trouble is None and answer.terms_id != memory.state.enrolment.terms.terms_id:
            memory.follow(self._link.fetch_terms(answer.terms_id))
        return trouble

    def _change(self, change: Callable[[SavedState], tuple[SavedState, Result]]) -> Result:
        """Change the state, unless another process has the lease now."""
        return self._memory.update(change, is_fenced=True)

    def _recover(self, error: Exception) -> str:
        """Recover from a failure before the next attempt; return the problem in one line."""
        title, trouble = self._memory.title, str(error) or type(error).__name__
        if isinstance(error, Refused):
            try:
                self._answer_refusal(error)
            except Exception as second:  # the loop must go on
                trouble = f"{trouble}; {second}"
        if isinstance(error, OSError | ValueError):
            log.info("%s waits: %s", title, trouble)
        else:
            log.error("%s waits", title, exc_info=error)
        return trouble

    def _answer_refusal(self, refusal: Refused) -> None:
        """Act on a refusal; most need only another attempt."""
        memory, before = self._memory, self._memory.title
        outbox = memory.state.outbox
        if refusal.reason == "unrecognised":  # forgotten, or lost by a restored server
            self._enrol(memory.state.enrolment.credential)
            log.warning(
                "%s was lost by its server, and enrolled again as agent %d", before, memory.state.enrolment.agent
            )
        elif refusal.reason == "revoked":  # its uploads stay at the server
            self._enrol(new_key=True)
            log.warning("%s was revoked, and enrolled again as agent %d", before, memory.state.enrolment.agent)
        elif refusal.reason == "conflict":  # a copy of this agent's file has used the number
            last = self.client.fetch_standing().last_sequence
            self._change(lambda state: (renumber(state, outbox[0], last), None))
        elif refusal.reason == "superseded":
            self._resolve_superseded(outbox[0])
        elif refusal.reason == "too-few":
            memory.follow(self._link.fetch_terms())
            self._withdraw(outbox[0], is_lost=False)
        elif refusal.reason in ("impossible", "too-heavy"):
            log.warning("%s: upload %d is lost: %s", before, outbox[0].sequence, refusal)
            self._withdraw(outbox[0], is_lost=True)

    def _enrol(self, credential: wire.Credential | None = None, *, new_key: bool = False) -> None:
        """Enrol under the server's new number."""
        self._link.enrol(self._memory, credential=credential, new_key=new_key)
        self.reload()

    def reload(self) -> None:
        """Load the state that this process or another has saved, with its key."""
        self._memory.load()
        self.client = self._link.build_client(self._memory)

    def refresh(self) -> None:
        """Load the state if another process has changed it; it may also have enrolled the agent."""
        if self._memory.has_changed() or self.client.agent != self._memory.state.enrolment.agent:
            self.reload()

    def _withdraw(self, upload: Upload, *, is_lost: bool) -> None:
        self._change(lambda state: (withdraw(self._memory.policy, state, upload, is_lost=is_lost), None))

    def _resolve_superseded(self, upload: Upload) -> None:
        """Decide by the sums whether the server counted an upload before it folded the log; drop it if in doubt."""
        memory, standing = self._memory, self.client.fetch_standing()
        confirmed = memory.state.confirmed
        if upload.cause is Cause.CHANGE:
            excess = min(0, standing.last_change - upload.sequence)
        else:
            excess = standing.rounds - confirmed.rounds - upload.statistics.rounds
        if excess < 0:
            self._change(lambda state: (renumber(state, upload, standing.last_sequence), None))
        elif excess == 0:
            self._change(lambda state: confirm(memory.policy, state, upload, None))
        else:
            self._withdraw(upload, is_lost=True)


class ExchangeLoop:
    """The threads that exchange for all agents of a pool; each agent has one request in flight at most.

    While no server can be reached, one agent tries for all, with exponential backoff. ``trouble`` is that of the last
    step.
    """

    def __init__(self, pauses: tuple[float, float], senders: int, take_over: Callable[[], None] | None = None) -> None:
        self.trouble: str | None = None
        lock = threading.RLock()
        self._changed, self._work = threading.Condition(lock), threading.Condition(lock)
        self._pauses = pauses
        self._heap: list[tuple[float, int, Exchanger]] = []
        self._ticks = itertools.count()
        self._waiting: dict[Exchanger, int] = {}  # the valid entry of the heap; older ones are stale
        self._busy: set[Exchanger] = set()
        self._failures, self._resume_at = 0, 0.0
        self._stopping = threading.Event()
        work: list[Callable[[], None]] = [self._run] * senders
        if take_over is not None:
            work.append(partial(self._watch, take_over))
        self._threads = [threading.Thread(target=each, name="fedcascade-agent", daemon=True) for each in work]
        for thread in self._threads:
            thread.start()

    def _watch(self, take_over: Callable[[], None]) -> None:
        """Look for work of other processes again and again."""
        while not self._stopping.wait(TAKE_OVER_SECONDS):
            with suppress(OSError, ValueError):
                take_over()

    def announce(self, exchanger: Exchanger) -> None:
        """Schedule an agent if it has something to send."""
        with self._work:
            if exchanger.has_work() and not self.is_scheduled(exchanger):
                self._schedule(exchanger)

    def is_scheduled(self, exchanger: Exchanger) -> bool:
        """Return whether an agent's next exchange is under way or waits for its time."""
        with self._work:
            return exchanger in self._waiting or exchanger in self._busy

    def flush(self, exchanger: Exchanger | None, timeout: float | None) -> bool:
        """Wait until an agent, or all if None, has nothing left to send or to compare; False after ``timeout`` seconds.

        Agents retry now, unless the server asked them to wait.
        """
        with self._work:
            self._resume_at = 0.0
            for waiting in list(self._waiting) if exchanger is None else [exchanger] * (exchanger in self._waiting):
                waiting.due = waiting.not_before
                self._schedule(waiting)
            self._changed.wait_for(lambda: self._is_done(exchanger) or self._stopping.is_set(), timeout)
            return self._is_done(exchanger)

    def stop(self) -> None:
        """Stop the threads after the requests in flight."""
        self._stopping.set()
        with self._work:
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
        return not self.is_scheduled(exchanger)

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
            while not self._stopping.is_set():
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
