"""Connections of a single agent, a pool of one that enrols at once, and of agents and pools for asyncio."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from numpy.typing import ArrayLike

from fedcascade.federation.agent import ShownList
from fedcascade.federation.messages import Upload
from fedcascade.federation.warm_start import precompile_agent
from fedcascade.numerics.code_cache import announce_compilation
from fedcascade.service.agent.options import AgentOptions
from fedcascade.service.agent.pool import AgentPool, PoolAgent, RemoteAgent, SinglePool

COMPILING = "connect waits while code is compiled, once per installation; run 'fedcascade warm' to do it ahead"
log = logging.getLogger("fedcascade.agent")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def connect(
    url: str,
    options: AgentOptions | None = None,
    *,
    store: str = "agent.db",
    token: str | Callable[[], str] | None = None,
    warm_up: bool = False,
    **changes: Any,
) -> RemoteAgent:
    """Connect to the server at ``url``. The first time, the agent enrols and needs the server; later it starts offline.

    Args:
        url: the server's address.
        options: options of the agent; defaults if None.
        store: the agent's own file; the private key never leaves it.
        token: a one-time enrolment token (``fedcascade enroll``), needed the first time, and later if the agent was
            revoked or forgotten, or lost by a server that rejects its credential. A function is called for a token the
            first time.
        warm_up: compile, or load, all code for lists and feedback before this returns.
        changes: single options, as in ``connect(url, keep_lists=100)``.
    """
    chosen = replace(options or AgentOptions(), **changes | {"senders": 1})
    pool = SinglePool(url, chosen, store=store, tokens=token if callable(token) else ())
    try:
        with announce_compilation(lambda: log.warning(COMPILING)):
            agent = cast(RemoteAgent, pool.enrol("", None if callable(token) else token))
            if warm_up:
                precompile_agent(agent.memory.policy, agent.memory.state.local.dimension)
    except BaseException:
        pool.close()
        raise
    agent.close_pool = pool.close
    return agent


def _run_in_thread(
    method: Callable[Concatenate[PoolAgent, Arguments], Result],
) -> Callable[Concatenate["AsyncRemoteAgent", Arguments], Coroutine[Any, Any, Result]]:
    """Turn a method of an agent into a coroutine that runs it in a thread."""

    async def run(self: "AsyncRemoteAgent", /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await asyncio.to_thread(getattr(self.agent, method.__name__), *args, **options)

    return run


class AsyncRemoteAgent(AbstractAsyncContextManager["AsyncRemoteAgent", None]):
    """An agent for asyncio. Made by ``connect_async``, or by ``AsyncAgentPool.get``, which closes it."""

    recommend = _run_in_thread(PoolAgent.recommend)
    feedback = _run_in_thread(PoolAgent.feedback)
    reward = _run_in_thread(PoolAgent.reward)
    learn = _run_in_thread(PoolAgent.learn)
    open_lists = _run_in_thread(PoolAgent.open_lists)
    flush = _run_in_thread(PoolAgent.flush)
    leave = _run_in_thread(PoolAgent.leave)
    erase = _run_in_thread(PoolAgent.erase)

    def __init__(self, agent: PoolAgent) -> None:
        self.agent = agent

    @property
    def trouble(self) -> str | None:
        """The last problem of an exchange, or None."""
        return self.agent.trouble

    async def close(self) -> None:
        """Close the agent of ``connect_async``; its store holds everything already."""
        if isinstance(self.agent, RemoteAgent):
            await asyncio.to_thread(self.agent.close)

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect_async(url: str, options: AgentOptions | None = None, **more: Any) -> AsyncRemoteAgent:
    """Connect for asyncio, with the parameters of ``connect``."""
    return AsyncRemoteAgent(await asyncio.to_thread(connect, url, options, **more))


class AsyncAgentPool(AbstractAsyncContextManager["AsyncAgentPool", None]):
    """An ``AgentPool`` for asyncio, with its parameters. Each call runs in a thread."""

    def __init__(self, url: str, options: AgentOptions | None = None, **more: Any) -> None:
        self.pool = AgentPool(url, options, **more)

    async def get(self, name: str) -> AsyncRemoteAgent:
        """Return the agent of a user, by any name of the user; create one for a new name."""
        return AsyncRemoteAgent(await asyncio.to_thread(self.pool.get, name))

    async def recommend(self, name: str, items: ArrayLike, k: int = 4, **more: Any) -> ShownList:
        """Choose a list for a user, with the parameters of ``SavedAgent.recommend``."""
        return await asyncio.to_thread(lambda: self.pool.get(name).recommend(items, k, **more))

    async def feedback(self, name: str, impression: int, clicked: Any = ..., **more: Any) -> Upload | None:
        """Learn from a list of a user, with the parameters of ``SavedAgent.feedback``."""
        return await asyncio.to_thread(lambda: self.pool.get(name).feedback(impression, clicked, **more))

    async def reward(self, name: str, impression: int, value: float | Sequence[float]) -> None:
        """Give a list of a user its reward, with the parameters of ``SavedAgent.reward``."""
        await asyncio.to_thread(lambda: self.pool.get(name).reward(impression, value))

    async def close(self) -> None:
        """Stop the threads and close the store."""
        await asyncio.to_thread(self.pool.close)

    async def __aexit__(self, *_: object) -> None:
        await self.close()
