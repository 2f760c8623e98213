"""Whether the store can be written, asked by anyone and as often as they like."""

import asyncio
import secrets
import time

from fedcascade.service.server.writer import Writer

PROBE_BYTES = 64 * 1024  # with an upload's numbers on top, more than an upload takes with all pages that it splits
CACHED_SECONDS = 1.0  # a probe is good for so long: many who ask cost no more than one


class ReadinessProbe:
    """Writes something as large as an upload, at most once per second, and tells everybody what came of it."""

    def __init__(self, writer: Writer, body_bytes: int) -> None:
        self._writer, self._size = writer, PROBE_BYTES + body_bytes
        self._probe: asyncio.Task[None] | None = None
        self._expires = 0.0
        self._was_healthy = True

    async def check(self) -> None:
        """Raise what keeps the store from being written."""
        if self._probe is None or (self._probe.done() and not self._is_fresh()):
            self._probe = asyncio.get_running_loop().create_task(self._write())
        await asyncio.shield(self._probe)

    def _is_fresh(self) -> bool:
        """Whether the last probe still tells the truth; what an upload found out since then counts more."""
        return time.monotonic() < self._expires and self._writer.healthy == self._was_healthy

    async def _write(self) -> None:
        """Write random bytes, because a store does not write again what it holds already."""
        probe = secrets.token_hex(self._size // 2)
        try:
            await self._writer.run(lambda store, _: store.set_setting("ready", probe))
        finally:
            self._expires, self._was_healthy = time.monotonic() + CACHED_SECONDS, self._writer.healthy
