"""What the pages of one server process share: the feed, a demo's status, and refusals on their way to the store."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from litestar import Litestar

from fedcascade.service.dashboard.feed import Feed
from fedcascade.service.dashboard.view import Plain
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.service import Service

FLUSH_SECONDS = 1.0
OUTSIZED = 3  # agents that a page names for their weight


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
        self._refused: Counter[str] = Counter()
        service.refusal_listeners.append(self._count_refusal)

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

    def _count_refusal(self, path: str, reason: str) -> None:
        if path == wire.EXCHANGES:
            self._refused[reason] += 1

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
        counts, self._refused = self._refused, Counter()
        if not counts:
            return
        at = self.service.clock.read_milliseconds()
        try:
            await self.service.writer.run(lambda store, _: store.record_refusals(at, counts))
        except Refused:
            self._refused += counts
