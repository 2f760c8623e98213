"""The threads that speak to the server for all agents of a file: as many as there are, the agents are many more."""

import heapq
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fedcascade.service.agent.client import compute_pause
from fedcascade.service.agent.exchanger import Exchanger


class ExchangeLoop:
    """Lets agents speak when they are due, each one request at a time. Whatever happens, it goes on.

    While no server can be reached, one agent tries for all, less and less often. ``trouble`` is what was said last.
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
        """Take note that an agent has something to say."""
        with self._work:
            if exchanger not in self._waiting and exchanger not in self._busy:
                self._schedule(exchanger)

    def flush(self, exchanger: Exchanger | None, timeout: float | None) -> bool:
        """Wait until an agent, or all if None, has nothing left to send or to compare; False after ``timeout`` seconds.

        Whoever waits by its own patience tries at once; what the server asked for is kept.
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
        """Keep an agent from speaking by itself; it goes on afterwards if it has something to say."""
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
        """Let everybody wait while no server can be reached; several threads that find it at once count as one."""
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
        exchanger.due = max(exchanger.due, time.monotonic())  # who came first speaks first
        tick = next(self._ticks)
        self._waiting[exchanger] = tick
        heapq.heappush(self._heap, (exchanger.due, tick, exchanger))
        self._work.notify()
