"""The remote agent for asyncio: what touches the disk runs in a thread, so the event loop never waits."""

import asyncio
from typing import Any

from numpy.typing import ArrayLike

from fedcascade.federation.agent import ShownList
from fedcascade.federation.messages import Upload
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.remote import RemoteAgent


class AsyncRemoteAgent:
    """A ``RemoteAgent`` whose methods are coroutines. Made by ``connect_async``."""

    def __init__(self, agent: RemoteAgent) -> None:
        self.agent = agent

    async def recommend(self, items: ArrayLike, k: int = 4) -> ShownList:
        """Choose a list of ``k`` items, see ``RemoteAgent.recommend``."""
        return await asyncio.to_thread(self.agent.recommend, items, k)

    async def feedback(self, impression: ShownList | int, clicked: int | None) -> Upload | None:
        """Learn from a list, see ``RemoteAgent.feedback``."""
        return await asyncio.to_thread(self.agent.feedback, impression, clicked)

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until every upload has been answered; False after ``timeout`` seconds."""
        return await asyncio.to_thread(self.agent.flush, timeout)

    async def leave(self) -> None:
        """Let the server forget this agent, and empty the local store."""
        await asyncio.to_thread(self.agent.leave)

    async def close(self) -> None:
        """Stop the background thread and close the local store."""
        await asyncio.to_thread(self.agent.close)

    async def __aenter__(self) -> "AsyncRemoteAgent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect_async(url: str, **options: Any) -> AsyncRemoteAgent:
    """Connect for asyncio, with the options of ``connect``."""
    return AsyncRemoteAgent(await asyncio.to_thread(lambda: connect(url, **options)))
