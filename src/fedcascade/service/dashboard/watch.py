"""What the pages of one server process share: the feed, a demo if there is one, refusals on their way to the store."""

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from fedcascade.service.dashboard.feed import Feed, milliseconds
from fedcascade.service.dashboard.picture import Plain
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.writer import Writer

if TYPE_CHECKING:
    from fedcascade.demo.live import Demo

FLUSH_SECONDS = 1.0


class Watch:
    """Everything for those who watch. ``run`` goes on beside the server."""

    def __init__(self, writer: Writer, demo: "Demo | None" = None) -> None:
        self.writer = writer
        self.demo = demo
        self.feed = Feed(writer.open_store, self.health)
        self.started = milliseconds()
        self._refused: Counter[str] = Counter()

    def health(self) -> Plain:
        """How this server process is."""
        return {
            "healthy": self.writer.healthy,
            "waiting": self.writer.waiting,
            "started": self.started,
            "clock": time.time(),
            "demo": None if self.demo is None else self.demo.told(),
        }

    def refused(self, reason: str) -> None:
        """Count a refused upload; counts reach the store once a second, however many there are."""
        self._refused[reason] += 1

    async def run(self) -> None:
        """Bring refusals to the store."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write the refusals that are not in the store yet; they wait while it is away."""
        counted, self._refused = self._refused, Counter()
        if not counted:
            return
        at = milliseconds()
        try:
            await asyncio.wrap_future(self.writer.submit(lambda store, _: store.record_refusals(at, counted)))
        except Refused:
            self._refused += counted
