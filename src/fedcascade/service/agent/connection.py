"""Connect one agent to its server: a pool of one, which enrols at once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from fedcascade.federation.policies import Policy
from fedcascade.federation.warm_start import precompile_agent
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle
from fedcascade.numerics.code_cache import announce_compilation
from fedcascade.service.agent.client import PAUSES
from fedcascade.service.agent.pool import AgentPool
from fedcascade.service.agent.remote import RemoteAgent
from fedcascade.service.agent.saved_agent import KEEP_LISTS, KEEP_SECONDS
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock

COMPILING = "connect waits while code is compiled, once per installation; 'fedcascade warm' does it ahead"
log = logging.getLogger("fedcascade.agent")
Options = ParamSpec("Options")
Result = TypeVar("Result")


def connect(
    url: str,
    *,
    store: str = "agent.db",
    token: str | None = None,
    policy: Policy | None = None,
    oracle: Oracle | None = None,
    min_observations: int | None = None,
    problem: ProblemSize | None = None,
    keep_lists: int = KEEP_LISTS,
    keep_seconds: float = KEEP_SECONDS,
    record_lists: int = 0,
    transport: Transport | None = None,
    protocol: int = wire.PROTOCOLS[-1],
    pauses: tuple[float, float] = PAUSES,
    clock: Clock = SYSTEM_CLOCK,
    warm_up: bool = False,
) -> RemoteAgent:
    """Connect to the server at ``url``. The first time, the agent enrols and needs the server; later it starts offline.

    Args:
        url: the server's address.
        store: the agent's own file; the private key never leaves it.
        token: a one-time enrolment token (``fedcascade enroll``), needed the first time, and later only if the agent
            was revoked or forgotten, or the server has lost it and does not take its credential.
        policy: what decides when to speak and how to score; the server's if None.
        oracle: chooses lists from scores; the best k items if None.
        min_observations: an upload never holds fewer; 2 d if None, and never fewer than the server asks for. One
            observation would reveal itself.
        problem: the sizes for a beta by formula; what is known of them so far if None.
        keep_lists: a list without feedback is dropped once so many others were shown after it.
        keep_seconds: it is dropped after so long, too; a year if not given.
        record_lists: so many lists are kept with all that was on offer, for ``agent.export_log()``; none if 0.
        transport: how requests travel; HTTP to ``url`` if None.
        protocol: the version to speak.
        pauses: seconds before the first retry, which double with every failure, and the longest they become.
        clock: what time signatures carry; the system's if not given.
        warm_up: compile, or load, everything that lists and feedback need before this returns, so that no user waits
            for a compiler. On a machine where ``fedcascade warm`` ran, that takes a moment.
    """
    pool = AgentPool(url, store=store, policy=policy, oracle=oracle, min_observations=min_observations,
                     problem=problem, keep_lists=keep_lists, keep_seconds=keep_seconds,
                     record_lists=record_lists, transport=transport,
                     protocol=protocol, pauses=pauses, clock=clock, senders=1, kind=RemoteAgent)  # fmt: skip
    try:
        with announce_compilation(lambda: log.warning(COMPILING)):
            agent = cast(RemoteAgent, pool.enrol("", token))
            if warm_up:
                precompile_agent(agent.agent.policy, agent.dimension)
    except BaseException:
        pool.close()
        raise
    agent.close_pool = pool.close
    return agent


def _run_in_thread(
    method: Callable[Concatenate[RemoteAgent, Options], Result],
) -> Callable[Concatenate["AsyncRemoteAgent", Options], Coroutine[Any, Any, Result]]:
    """Turn a method of ``RemoteAgent`` into one that does not block the event loop while it touches the disk."""

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


async def connect_async(url: str, **options: Any) -> AsyncRemoteAgent:
    """Connect for asyncio, with the options of ``connect``."""
    return AsyncRemoteAgent(await asyncio.to_thread(connect, url, **options))
