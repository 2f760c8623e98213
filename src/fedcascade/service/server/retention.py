"""Folds old uploads while a server runs, a piece at a time, so that its store does not grow for ever."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from litestar import Litestar

from fedcascade.service.protocol.clock import Clock
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server import operations
from fedcascade.service.server.app import Extension
from fedcascade.service.server.service import Service

PAUSE_SECONDS = 3_600.0  # between two looks for what is old
BREATH_SECONDS = 0.5  # between two pieces, for uploads that wait
TICK_SECONDS = 0.5  # between two looks at the clock


async def retain_for_ever(service: Service, days: float) -> None:
    """Fold what is older than so many days, now and every hour. Where the store is away, the next look comes sooner."""
    while True:
        pause = PAUSE_SECONDS
        with suppress(Refused):
            pause = BREATH_SECONDS
            has_more = await service.writer.run(operations.retain(days, service.clock.now()))
            pause = BREATH_SECONDS if has_more else PAUSE_SECONDS
        await sleep_by_clock(service.clock, pause)


async def sleep_by_clock(clock: Clock, seconds: float) -> None:
    """Sleep until so many seconds have passed on a clock, which may be faster than this machine's."""
    end = clock.elapsed() + seconds
    while (left := end - clock.elapsed()) > 0:
        await asyncio.sleep(min(left, TICK_SECONDS))


def keep_retaining(service: Service, days: float | None) -> Sequence[Extension]:
    """An extension that folds old uploads while the application runs; none if all are to be kept."""
    if days is None:
        return ()

    @asynccontextmanager
    async def run(_: Litestar) -> AsyncIterator[None]:
        task = asyncio.create_task(retain_for_ever(service, days))
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    return (Extension(lifespan=run),)
