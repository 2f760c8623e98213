"""Connections of a single agent: a pool of one, which enrols at once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from fedcascade.federation.warm_start import precompile_agent
from fedcascade.numerics.code_cache import announce_compilation
from fedcascade.service.agent.options import AgentOptions
from fedcascade.service.agent.pool import RemoteAgent, SinglePool

COMPILING = "connect waits while code is compiled, once per installation; run 'fedcascade warm' to do it ahead"
log = logging.getLogger("fedcascade.agent")
Options = ParamSpec("Options")
Result = TypeVar("Result")


def connect(
    url: str,
    options: AgentOptions | None = None,
    *,
    store: str = "agent.db",
    token: str | None = None,
    warm_up: bool = False,
    **changes: Any,
) -> RemoteAgent:
    """Connect to the server at ``url``. The first time, the agent enrols and needs the server; later it starts offline.

    Args:
        url: the server's address.
        options: options of the agent; defaults if None.
        store: the agent's own file; the private key never leaves it.
        token: a one-time enrolment token (``fedcascade enroll``), needed the first time, and later if the agent was
            revoked or forgotten, or lost by a server that rejects its credential.
        warm_up: compile, or load, all code for lists and feedback before this returns.
        changes: single options, as in ``connect(url, keep_lists=100)``.
    """
    pool = SinglePool(url, replace(options or AgentOptions(), **changes | {"senders": 1}), store=store)
    try:
        with announce_compilation(lambda: log.warning(COMPILING)):
            agent = cast(RemoteAgent, pool.enrol("", token))
            if warm_up:
                precompile_agent(agent.memory.policy, agent.memory.state.local.dimension)
    except BaseException:
        pool.close()
        raise
    agent.close_pool = pool.close
    return agent


def _run_in_thread(
    method: Callable[Concatenate[RemoteAgent, Options], Result],
) -> Callable[Concatenate["AsyncRemoteAgent", Options], Coroutine[Any, Any, Result]]:
    """Turn a method of ``RemoteAgent`` into a coroutine that runs it in a thread."""

    async def run(self: "AsyncRemoteAgent", /, *args: Options.args, **options: Options.kwargs) -> Result:
        return await asyncio.to_thread(method, self.agent, *args, **options)

    return run


class AsyncRemoteAgent:
    """A ``RemoteAgent`` for asyncio. Made by ``connect_async``."""

    recommend = _run_in_thread(RemoteAgent.recommend)
    feedback = _run_in_thread(RemoteAgent.feedback)
    open_lists = _run_in_thread(RemoteAgent.open_lists)
    flush = _run_in_thread(RemoteAgent.flush)
    leave = _run_in_thread(RemoteAgent.leave)
    close = _run_in_thread(RemoteAgent.close)

    def __init__(self, agent: RemoteAgent) -> None:
        self.agent = agent

    async def __aenter__(self) -> "AsyncRemoteAgent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect_async(url: str, options: AgentOptions | None = None, **more: Any) -> AsyncRemoteAgent:
    """Connect for asyncio, with the parameters of ``connect``."""
    return AsyncRemoteAgent(await asyncio.to_thread(connect, url, options, **more))
