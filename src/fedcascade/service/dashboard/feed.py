"""One reader of the journal per server process, whatever the number of pages; it rests while nobody looks.

At most four times a second it builds one update of everything that is new, and every page gets the same bytes; where
only the server's health changed, or how far a demo is, that alone. The id of an event is the position in the log up to
which a page has seen everything, so a page that lost its connection goes on from there, at this server or another, with
no gap and nothing twice.
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
from fedcascade.service.server.service import Service
from fedcascade.service.store.contract import Store

log = logging.getLogger("fedcascade.service")
POLL_SECONDS = 0.25
KEEPALIVE_SECONDS = 15.0
MAX_PAGES = 64
MAX_QUEUED_EVENTS = 64
MAX_MISSED_EXCHANGES = 20_000
FLUSH_SECONDS = 1.0
OUTSIZED = 3  # agents that a page names for their weight
EventId = tuple[int, int]  # the position in the log, and the number of the last measure
Result = TypeVar("Result")


def encode_event(kind: str, state: FeedState, data: Plain) -> bytes:
    """Encode a server-sent event, with an id that says up to where its page has then seen everything."""
    head = f"event: {kind}\nid: {state.position}.{state.measure}\ndata: "
    return head.encode() + msgspec.json.encode(data) + b"\n\n"


def parse_event_id(text: str) -> EventId | None:
    """Parse position and measure from an event's id; None for anything else.

    >>> parse_event_id("17.3"), parse_event_id("17"), parse_event_id("")
    ((17, 3), None, None)
    """
    position, _, measure = text.partition(".")
    valid = position.isascii() and position.isdecimal() and measure.isascii() and measure.isdecimal()
    return (int(position), int(measure)) if valid and len(text) < 40 else None


def _drop_clock(health: Plain) -> Plain:
    """Leave out of the health what changes although nothing happens."""
    return {name: value for name, value in health.items() if name != "clock"}


def _can_catch_up(store: Store, state: FeedState, position: int) -> bool:
    """Whether a page that saw everything up to a position needs only an update: not much, and nobody forgotten."""
    return 0 <= state.position - position <= MAX_MISSED_EXCHANGES and store.find_head().rewritten <= position


class Feed:
    """Reads the journal and streams what is new to all open pages."""

    def __init__(
        self, open_store: Callable[[], Store], describe_health: Callable[[], Plain], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self._open_store = open_store
        self._describe_health = describe_health
        self._store: Store | None = None
        self._state: FeedState | None = None
        self._last_view: tuple[EventId, bytes] | None = None  # of many agents, and up to where it goes
        self._last_health: Plain = {}
        self._reading = asyncio.Lock()
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._closed = False
        self._measures: list[tuple[int, Measure]] = []  # with the time of each, in milliseconds
        self._dropped = 0  # measures of earlier simulations, before these

    def add_measures(self, measures: Sequence[Measure], *, fresh: bool) -> None:
        """Add what a simulation reports; ``fresh`` drops what earlier ones reported."""
        if fresh:
            self._dropped += len(self._measures)
            self._measures.clear()
        now = self._clock.read_milliseconds()
        self._measures += [(now, measure) for measure in measures]

    def _read_measures(self, after: int, upto: int | None = None) -> list[Measure]:
        """Read the measures beyond a number, up to another one."""
        rows = self._measures[max(0, after - self._dropped) : None if upto is None else max(0, upto - self._dropped)]
        return [measure for _, measure in rows]

    async def read_view(self, position: int | None = None, at: int | None = None, span: int | None = None) -> Plain:
        """Read the whole view at a position or time of the past, or with curves of another span."""

        def read(store: Store) -> Plain:
            head = store.find_head().position
            until = head if at is None else store.find_head(at).position
            until = until if position is None else min(position, head)
            view = build_view(store, until, self._clock.read_milliseconds() if until == head else None, span)
            measures = [measure for then, measure in self._measures if then <= view["at"]]
            return view | {"health": self._describe_health(), "head": head, "measures": measures}

        return await self.run_on_store(read)

    async def follow(self, event_id: EventId | None) -> AsyncIterator[bytes]:
        """Stream the events of one page: the whole view, or what it missed since ``event_id``; then every update."""
        if len(self._pages) >= MAX_PAGES:
            raise Refused(503, "too-many-pages", f"{MAX_PAGES} pages are open already", retry_after=10.0)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUED_EVENTS)
        first = await self.run_on_store(lambda store: self._build_first_event(store, event_id, queue))
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

    def _build_first_event(self, store: Store, event_id: EventId | None, queue: "asyncio.Queue[bytes | None]") -> bytes:
        """Build a page's first event, and bring the feed up to date: the shared updates begin where this event ends."""
        if not self._pages or self._state is None:
            self._state = self._read_state(store, None if self._state is None else self._state.crowd)
            self._last_health = _drop_clock(self._describe_health())
        self._pages.add(queue)
        state, health = self._state, self._describe_health()
        if event_id is not None and _can_catch_up(store, state, event_id[0]):
            page_state = FeedState(*event_id, dict(state.clusters), dict(state.last), {}, state.crowd)
            return self._encode_update(store, page_state, state, health) or encode_event("health", state, health)
        if state.crowd is not None and self._last_view is not None:
            # Among many agents, send the view of a moment ago and what came since.
            event_id, view = self._last_view
            if _can_catch_up(store, state, event_id[0]):
                page_state = FeedState(*event_id, crowd=state.crowd)
                return view + (self._encode_update(store, page_state, state, health) or b"")
        view = self._encode_view(store, state, health)
        self._last_view = ((state.position, state.measure), view) if state.crowd is not None else None
        return view

    def _encode_update(self, store: Store, page_state: FeedState, state: FeedState, health: Plain) -> bytes | None:
        """Encode what a page lacks that has seen everything up to its state; None if that is nothing."""
        measures = self._read_measures(page_state.measure, state.measure)
        update = build_update(page_state, store, state.position, self._clock.read_milliseconds(), measures)
        return None if update is None else encode_event("update", state, update | {"health": health})

    async def _poll(self) -> None:
        """Push what is new to all pages, four times a second, until no page is left."""
        while self._pages and not self._closed:
            try:
                event = await self.run_on_store(self._build_next_event)
            except Refused as refusal:
                event = b"event: trouble\ndata: " + msgspec.json.encode({"detail": refusal.detail}) + b"\n\n"
            if event is not None:
                for queue in self._pages:
                    _push(queue, event)
            await asyncio.sleep(POLL_SECONDS)

    def _build_next_event(self, store: Store) -> bytes | None:
        state, health = self._state, self._describe_health()
        head, now = store.find_head(), self._clock.read_milliseconds()
        last_health, self._last_health = self._last_health, _drop_clock(health)
        if state is None or head.rewritten > state.position:  # show what is left without the forgotten
            self._state = self._read_state(store)
            return self._encode_view(store, self._state, health)
        update = build_update(state, store, head.position, now, self._read_measures(state.measure))
        if update is not None:
            return encode_event("update", state, update | {"health": health})
        return None if self._last_health == last_health else encode_event("health", state, health)

    def _read_state(self, store: Store, crowd: Crowd | None = None) -> FeedState:
        state = read_feed_state(store, store.find_head().position, self._clock.read_milliseconds(), crowd)
        state.measure = self._dropped + len(self._measures)
        return state

    def _encode_view(self, store: Store, state: FeedState, health: Plain) -> bytes:
        view = build_view(store, state.position, self._clock.read_milliseconds(), crowd=state.crowd)
        measures = self._read_measures(0, state.measure)
        return encode_event("view", state, view | {"health": health, "head": state.position, "measures": measures})

    async def run_on_store(self, job: Callable[[Store], Result]) -> Result:
        """Run a job on the feed's own connection, away from the event loop; a broken one is opened anew."""

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
        """Close the connection to the store; the next reader opens another."""
        store, self._store, self._state = self._store, None, None
        if store is not None:
            with suppress(*store.failures):
                store.close()


def _push(queue: "asyncio.Queue[bytes | None]", event: bytes | None) -> None:
    """Queue an event for a page. One that does not keep up is cut off, and comes back with the id of its last event."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = None
    queue.put_nowait(event)


class DemoView(Protocol):
    """What pages show of a demo that runs beside the server. Where there is one, anyone on this machine may look."""

    def describe_progress(self) -> Plain:
        """State, pace and round of the demo, as plain data; sent with the server's health."""

    def introduce(self) -> Plain:
        """The progress and the demo's story, for a page that has just been opened."""


class Dashboard:
    """Feeds all pages of one server process, and writes the counts of refused uploads to the store."""

    def __init__(self, service: Service, demo: DemoView | None = None) -> None:
        self.service = service
        self.demo = demo
        self.feed = Feed(service.writer.open_store, self.describe_health, service.clock)
        self._started = service.clock.read_milliseconds()

    def describe_health(self) -> Plain:
        """Whether the store answers, what waits, who weighs too much, who came and left, the clock, and the demo."""
        writer, state = self.service.writer, self.service.writer.state
        return {
            "healthy": writer.healthy,
            "waiting": writer.waiting,
            "started": self._started,
            "outsized": [
                (outsized.agent, round(outsized.share, 2), round(outsized.ratio))
                for outsized in self.service.find_outsized_agents()[:OUTSIZED]
            ],
            "joined": self.service.joined,
            "left": self.service.left,
            "resets": 0 if state is None else state.resets,
            "clock": self.service.clock.now(),
            "demo": None if self.demo is None else self.demo.describe_progress(),
        }

    @asynccontextmanager
    async def run(self, _: Litestar) -> AsyncIterator[None]:
        """Write refusals to the store once a second, however many there are; at the end write the rest, and stop."""
        flushing = asyncio.create_task(self._flush_forever())
        yield
        flushing.cancel()
        with suppress(asyncio.CancelledError):
            await flushing
        await self._flush()
        await self.feed.stop()

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._flush()

    async def _flush(self) -> None:
        """Write the refusals that are not in the store yet; they wait while it is away."""
        counts, self.service.refused_uploads = self.service.refused_uploads, Counter()
        if not counts:
            return
        try:
            await self.service.writer.run(lambda store, _: add_refusals(store, counts))
        except Refused:
            self.service.refused_uploads += counts
