"""One reader of the journal per server process, whatever the number of pages; it rests while nobody looks.

At most four times a second it makes one frame of everything that is new, and every page gets the same bytes; where only
the server's health changed, or how far a demo is, that alone. The id of an event is the position in the log up to which
a page has seen everything, so a page that lost its connection goes on from there, at this server or another, with no
gap and nothing twice.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from fedcascade.service.dashboard.picture import Known, Plain, frame, known_at, picture
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.store.contract import Store

log = logging.getLogger("fedcascade.service")
PAUSE = 0.25
PING = 15.0
PAGES = 64
WAITING_FRAMES = 64
CATCH_UP = 20_000
Health = Callable[[], Plain]
Result = TypeVar("Result")


def milliseconds() -> int:
    """The time."""
    return time.time_ns() // 1_000_000


def event(kind: str, position: int, measure: int, data: Plain) -> bytes:
    """An event of a stream of server-sent events."""
    return f"event: {kind}\nid: {position}.{measure}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def mark_of(text: str) -> tuple[int, int] | None:
    """Position and measure of an event's id; None for anything else.

    >>> mark_of("17.3"), mark_of("17"), mark_of("")
    ((17, 3), None, None)
    """
    position, _, measure = text.partition(".")
    good = position.isascii() and position.isdecimal() and measure.isascii() and measure.isdecimal()
    return (int(position), int(measure)) if good and len(text) < 40 else None


def lasting(health: Plain) -> Plain:
    """What of the health stays as it is while nothing happens."""
    return {name: value for name, value in health.items() if name != "clock"}


class Feed:
    """Reads the journal and tells pages."""

    def __init__(self, open_store: Callable[[], Store], health: Health) -> None:
        self._open = open_store
        self._health = health
        self._store: Store | None = None
        self._known: Known | None = None
        self._lasting: Plain = {}
        self._reading = asyncio.Lock()
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def picture(self, position: int | None = None, at: int | None = None, span: int | None = None) -> Plain:
        """The whole picture, at a position, at a time, or now."""

        def read(store: Store) -> Plain:
            head = store.find_head()
            until = head if at is None else store.find_position_at(at)
            until = until if position is None else min(position, head)
            now = milliseconds() if until == head else store.find_time_range(until)[1]
            return picture(store, until, now, span) | {"health": self._health(), "head": head}

        async with self._reading:
            return await self._read(read)

    async def follow(self, mark: tuple[int, int] | None) -> AsyncIterator[bytes]:
        """The events of one page: a picture, or what it missed since ``mark``; then every frame."""
        if len(self._pages) >= PAGES:
            raise Refused(503, "too-many-pages", f"{PAGES} pages are open already", retry_after=10.0)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_FRAMES)
        async with self._reading:
            first = await self._read(lambda store: self._first(store, mark))
            self._pages.add(queue)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        return self._events(first, queue)

    async def _events(self, first: bytes, queue: "asyncio.Queue[bytes | None]") -> AsyncIterator[bytes]:
        try:
            yield b"retry: 500\n\n" + first
            while not self._closed:
                try:
                    told = await asyncio.wait_for(queue.get(), PING)
                except TimeoutError:
                    told = b": still here\n\n"
                if told is None:
                    return
                yield told
        finally:
            self._pages.discard(queue)

    def close(self) -> None:
        """End every page's stream, so that a server can stop."""
        self._closed = True
        for queue in self._pages:
            _tell(queue, None)

    def _first(self, store: Store, mark: tuple[int, int] | None) -> bytes:
        """Brings the feed up to date, so that the shared frames begin where the first event ends."""
        if not self._pages or self._known is None:
            self._known = known_at(store, store.find_head(), milliseconds())
            self._lasting = lasting(self._health())
        known, now = self._known, milliseconds()
        if mark is not None and 0 <= known.position - mark[0] <= CATCH_UP and store.find_last_forgetting() <= mark[0]:
            missed = Known(mark[0], mark[1], dict(known.clusters), dict(known.last), {})
            told = frame(missed, store, known.position, now)
            if told is not None:
                return event("frame", known.position, known.measure, told | {"health": self._health()})
            return event("health", known.position, known.measure, self._health())
        whole = picture(store, known.position, now) | {"health": self._health(), "head": known.position}
        return event("picture", known.position, known.measure, whole)

    async def _watch(self) -> None:
        """Look, tell, rest; until nobody is left."""
        while self._pages and not self._closed:
            try:
                async with self._reading:
                    told = await self._read(self._look)
            except Refused as refusal:
                told = b"event: trouble\ndata: " + msgspec.json.encode({"detail": refusal.detail}) + b"\n\n"
            if told is not None:
                for queue in self._pages:
                    _tell(queue, told)
            await asyncio.sleep(PAUSE)
        self._known = None

    def _look(self, store: Store) -> bytes | None:
        known, health = self._known, self._health()
        head, now = store.find_head(), milliseconds()
        before, self._lasting = self._lasting, lasting(health)
        if known is None or store.find_last_forgetting() > known.position:  # show what is left without them
            known = self._known = known_at(store, head, now)
            return event("picture", head, known.measure, picture(store, head, now) | {"health": health, "head": head})
        told = frame(known, store, head, now)
        if told is not None:
            return event("frame", head, known.measure, told | {"health": health})
        return None if self._lasting == before else event("health", head, known.measure, health)

    async def _read(self, job: Callable[[Store], Result]) -> Result:
        """Run a job on the feed's own connection, away from the event loop; a broken one is opened anew."""

        def work() -> Result:
            if self._store is None:
                self._store = self._open()
            return job(self._store)

        try:
            return await asyncio.to_thread(work)
        except Exception as error:
            ours = self._store is not None and not isinstance(error, self._store.failures)
            self.close_store()
            if ours:
                raise
            log.warning("the journal cannot be read: %s", error)
            raise Refused(503, "store-unavailable", f"the store cannot be read: {error}", retry_after=1.0) from None

    async def stop(self) -> None:
        """Stop reading and let go of the store."""
        self.close()
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        self.close_store()

    def close_store(self) -> None:
        """Close the connection to the store; the next reader opens another."""
        store, self._store, self._known = self._store, None, None
        if store is not None:
            with suppress(*store.failures):
                store.close()


def _tell(queue: "asyncio.Queue[bytes | None]", told: bytes | None) -> None:
    """A page that does not keep up is cut off; it comes back with the id of what it has seen."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        told = None
    queue.put_nowait(told)
