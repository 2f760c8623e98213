"""The feed of the dashboard: one reader of the journal per server process, which sends updates to all open pages.

While pages are open, it builds at most four updates per second, and every page gets the same bytes. A page starts with
the whole view, also after it lost its connection. If only the server's health changed, pages get that alone.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

import msgspec
from litestar import Litestar

from fedcascade.service.dashboard.view import (
    Crowd,
    FeedState,
    Measure,
    Plain,
    add_refusals,
    build_update,
    build_view,
    read_feed_state,
)
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.errors import Refused, Unavailable
from fedcascade.service.server.app import run_meanwhile
from fedcascade.service.server.service import Service
from fedcascade.service.store.contract import Store

log = logging.getLogger("fedcascade.service")
POLL_SECONDS = 0.25
KEEPALIVE_SECONDS = 15.0
MAX_PAGES = 64
MAX_QUEUED_EVENTS = 64
MAX_MISSED_EXCHANGES = 20_000  # between a cached view and now
FLUSH_SECONDS = 1.0
MAX_OUTSIZED = 3  # agents with abnormal weight on a page
Result = TypeVar("Result")


def encode_event(kind: str, data: Plain) -> bytes:
    """Encode a server-sent event."""
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def _drop_clock(health: Plain) -> Plain:
    """Remove the clock, which changes all the time, from the health."""
    return {name: value for name, value in health.items() if name != "clock"}


class Feed:
    """Reader of the journal that streams updates to all open pages."""

    def __init__(
        self, open_store: Callable[[], Store], describe_health: Callable[[], Plain], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self._open_store = open_store
        self._describe_health = describe_health
        self._store: Store | None = None
        self._state: FeedState | None = None
        self._last_view: tuple[int, int, bytes] | None = None  # of many agents: position, measures and bytes
        self._last_health: Plain = {}
        self._reading = asyncio.Lock()
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._closed = False
        self._measures: list[tuple[int, Measure]] = []  # with times in milliseconds
        self._dropped = 0  # number of measures of earlier simulations

    def add_measures(self, measures: Sequence[Measure], *, fresh: bool) -> None:
        """Add measures of a simulation; ``fresh`` drops those of earlier ones."""
        if fresh:
            self._dropped += len(self._measures)
            self._measures.clear()
        now = self._clock.read_milliseconds()
        self._measures += [(now, measure) for measure in measures]

    def _read_measures(self, after: int, upto: int | None = None) -> list[Measure]:
        """Read a range of measures by number."""
        rows = self._measures[max(0, after - self._dropped) : None if upto is None else max(0, upto - self._dropped)]
        return [measure for _, measure in rows]

    async def read_view(self, position: int | None = None, at: int | None = None) -> Plain:
        """Read the whole view now, or at a past position or time."""

        def read(store: Store) -> Plain:
            head = store.find_head().position
            until = head if at is None else store.find_head(at).position
            until = until if position is None else min(position, head)
            view = build_view(store, until, self._clock.read_milliseconds() if until == head else None)
            measures = [measure for then, measure in self._measures if then <= view["at"]]
            return view | {"health": self._describe_health(), "head": head, "measures": measures}

        return await self.run_on_store(read)

    async def follow(self) -> AsyncIterator[bytes]:
        """Stream the events of one page: the whole view, then every update."""
        if len(self._pages) >= MAX_PAGES:
            raise Refused(503, "too-many-pages", f"{MAX_PAGES} pages are open already", retry_after=10.0)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUED_EVENTS)
        first = await self.run_on_store(lambda store: self._build_first_event(store, queue))
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        return self._stream(first, queue)

    async def _stream(self, first: bytes, queue: "asyncio.Queue[bytes | None]") -> AsyncIterator[bytes]:
        try:
            yield b"retry: 500\n\n" + first
            while not self._closed:
                try:
                    event = await asyncio.wait_for(queue.get(), KEEPALIVE_SECONDS)
                except TimeoutError:
                    event = b": still here\n\n"
                if event is None:
                    return
                yield event
        finally:
            self._pages.discard(queue)

    async def close_streams(self) -> None:
        """End every page's stream, so that a server can stop."""
        self._closed = True
        for queue in self._pages:
            _push(queue, None)

    def _build_first_event(self, store: Store, queue: "asyncio.Queue[bytes | None]") -> bytes:
        """Build a page's first event at the current state, from which the shared updates continue.

        Many agents make a view expensive: pages then get a cached one and an update.
        """
        if not self._pages or self._state is None:
            self._state = self._read_state(store, None if self._state is None else self._state.crowd)
            self._last_health = _drop_clock(self._describe_health())
        self._pages.add(queue)
        state, health = self._state, self._describe_health()
        if state.crowd is not None and self._last_view is not None:
            position, measure, view = self._last_view
            is_recent = 0 <= state.position - position <= MAX_MISSED_EXCHANGES
            if is_recent and store.find_head().rewritten <= position:
                cached = FeedState(position, measure, crowd=state.crowd)
                measures = self._read_measures(measure, state.measure)
                update = build_update(cached, store, state.position, self._clock.read_milliseconds(), measures)
                return view if update is None else view + encode_event("update", update | {"health": health})
        view = self._encode_view(store, state, health)
        self._last_view = (state.position, state.measure, view) if state.crowd is not None else None
        return view

    async def _poll(self) -> None:
        """Push updates to all pages, four times per second, until no page is left."""
        while self._pages and not self._closed:
            try:
                event = await self.run_on_store(self._build_next_event)
            except Refused as refusal:
                event = encode_event("trouble", {"detail": refusal.detail})
            if event is not None:
                for queue in self._pages:
                    _push(queue, event)
            await asyncio.sleep(POLL_SECONDS)

    def _build_next_event(self, store: Store) -> bytes | None:
        state, health = self._state, self._describe_health()
        head, now = store.find_head(), self._clock.read_milliseconds()
        last_health, self._last_health = self._last_health, _drop_clock(health)
        if state is None or head.rewritten > state.position:  # an agent was forgotten
            self._state = self._read_state(store)
            return self._encode_view(store, self._state, health)
        update = build_update(state, store, head.position, now, self._read_measures(state.measure))
        if update is not None:
            return encode_event("update", update | {"health": health})
        return None if self._last_health == last_health else encode_event("health", health)

    def _read_state(self, store: Store, crowd: Crowd | None = None) -> FeedState:
        state = read_feed_state(store, store.find_head().position, self._clock.read_milliseconds(), crowd)
        state.measure = self._dropped + len(self._measures)
        return state

    def _encode_view(self, store: Store, state: FeedState, health: Plain) -> bytes:
        view = build_view(store, state.position, self._clock.read_milliseconds(), crowd=state.crowd)
        measures = self._read_measures(0, state.measure)
        return encode_event("view", view | {"health": health, "head": state.position, "measures": measures})

    async def run_on_store(self, job: Callable[[Store], Result]) -> Result:
        """Run a job in a thread on the feed's own connection, which is reopened after a failure."""

        def run() -> Result:
            if self._store is None:
                self._store = self._open_store()
            return job(self._store)

        try:
            async with self._reading:
                return await asyncio.to_thread(run)
        except Exception as error:
            is_bug = self._store is not None and not isinstance(error, self._store.failures)
            self.close_store()
            if is_bug:
                raise
            log.warning("the journal cannot be read: %s", error)
            raise Unavailable(f"the store cannot be read: {error}") from None

    async def stop(self) -> None:
        await self.close_streams()
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
        self.close_store()

    def close_store(self) -> None:
        """Close the connection to the store; the next job opens another."""
        store, self._store, self._state = self._store, None, None
        if store is not None:
            with suppress(*store.failures):
                store.close()


def _push(queue: "asyncio.Queue[bytes | None]", event: bytes | None) -> None:
    """Queue an event for a page; disconnect a page that does not keep up, so that it reconnects."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)


class DemoView(Protocol):
    """The demo that runs beside the server, as pages show it. Its key opens them, in place of a login."""

    key: str

    def describe_progress(self) -> Plain:
        """Return state, pace and round of the demo, which are sent with the server's health."""

    def introduce(self) -> Plain:
        """Return the progress and the demo's story, for a new page."""


class Dashboard:
    """The dashboard of a server process: its feed, and the counts of refused uploads."""

    def __init__(self, service: Service, demo: DemoView | None = None) -> None:
        self.service = service
        self.demo = demo
        self.feed = Feed(service.writer.open_store, self.describe_health, service.clock)
        self._started = service.clock.read_milliseconds()

    def describe_health(self) -> Plain:
        writer, state = self.service.writer, self.service.writer.last_state
        return {
            "healthy": writer.healthy,
            "waiting": writer.waiting,
            "started": self._started,
            "outsized": [
                (outsized.agent, round(outsized.share, 2), round(outsized.ratio))
                for outsized in self.service.find_outsized_agents()[:MAX_OUTSIZED]
            ],
            "paused": self.service.paused,
            "trial": self.service.describe_trial(),
            "joined": self.service.joined,
            "left": self.service.left,
            "resets": state.resets,
            "rates": state.reward_rates,
            "privacy": [(round(epsilon, 2), agents) for epsilon, agents in state.count_spent()],
            "clock": self.service.clock.now(),
            "demo": None if self.demo is None else self.demo.describe_progress(),
        }

    @asynccontextmanager
    async def run(self, _: Litestar) -> AsyncIterator[None]:
        """Write the counts of refusals to the store once per second and at the end."""
        async with run_meanwhile(self._flush_forever()):
            yield
        await self._flush()
        await self.feed.stop()

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._flush()

    async def _flush(self) -> None:
        """Write new counts of refusals to the store; keep them if it is not available."""
        counts, self.service.refused_uploads = self.service.refused_uploads, Counter()
        if not counts:
            return
        try:
            await self.service.writer.run(lambda store, _: add_refusals(store, counts))
        except Refused:
            self.service.refused_uploads += counts
