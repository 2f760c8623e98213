"""Connect an agent to its server: enrol once, and run the server's policy with a floor on what an upload reveals."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from nacl.signing import SigningKey
from nacl.utils import random as random_bytes

from fedcascade.checks import require_integer
from fedcascade.federation.policies import Policy, get_policy
from fedcascade.federation.triggers import AtLeast
from fedcascade.learning.confidence import Constant, Oful, ProblemSize, Theory
from fedcascade.learning.oracles import Oracle
from fedcascade.service.agent.client import PAUSES, AgentClient, enrol_agent
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.agent.remote import RemoteAgent
from fedcascade.service.agent.transport import HttpTransport, Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock

Options = ParamSpec("Options")
Result = TypeVar("Result")
CONFIDENCES: dict[str, type[Constant | Theory | Oful]] = {"constant": Constant, "theory": Theory, "oful": Oful}


def connect(
    url: str,
    *,
    store: str = "agent.db",
    token: str | None = None,
    policy: Policy | None = None,
    oracle: Oracle | None = None,
    min_observations: int | None = None,
    problem: ProblemSize | None = None,
    transport: Transport | None = None,
    protocol: int = wire.PROTOCOLS[-1],
    pauses: tuple[float, float] = PAUSES,
    clock: Clock = SYSTEM_CLOCK,
) -> RemoteAgent:
    """Connect to the server at ``url``. The first time, the agent enrols and needs the server; later it starts offline.

    Args:
        url: the server's address.
        store: the agent's own file; the private key never leaves it.
        token: a one-time enrolment token (``fedcascade enroll``), needed the first time, and later only if the server
            neither knows this agent nor takes its credential.
        policy: what decides when to speak and how to score; the server's if None.
        oracle: chooses lists from scores; the best k items if None.
        min_observations: an upload never holds fewer; 2 d if None, and never fewer than the server asks for. One
            observation would reveal itself.
        problem: the sizes for a beta by formula; what is known of them so far if None.
        transport: how requests travel; HTTP to ``url`` if None.
        protocol: the version to speak.
        pauses: seconds before the first retry, which double with every failure, and the longest they become.
        clock: what time signatures carry; the system's if not given.
    """
    if min_observations is not None:
        require_integer("min_observations", min_observations, 0)
    transport = transport or HttpTransport(url)
    local_store = LocalStore(store)
    try:
        welcome = _enrol(local_store, transport, token, protocol, clock)
        key = SigningKey(local_store.get_setting("key") or b"")
        client = AgentClient(transport, key, welcome.agent, protocol, clock)
        follow = partial(follow_terms, policy=policy, min_observations=min_observations)
        return RemoteAgent(local_store, client, welcome, follow_terms=follow, token=token, oracle=oracle,
                           problem=problem, pauses=pauses)  # fmt: skip
    except BaseException:
        local_store.close()
        raise


def follow_terms(terms: wire.Terms, *, policy: Policy | None, min_observations: int | None) -> tuple[Policy, int]:
    """The policy that an agent runs under the server's terms, and the fewest observations of an upload.

    ``policy`` and ``min_observations`` are what the caller of ``connect`` wants, None for the server's.
    """
    wanted = 2 * terms.dimension if min_observations is None else min_observations
    floor = max(wanted, terms.min_observations)
    chosen = policy or build_policy(terms)
    if floor:
        chosen = replace(chosen, trigger=AtLeast(trigger=chosen.trigger, observations=floor))
    return chosen, floor


def _enrol(store: LocalStore, transport: Transport, token: str | None, protocol: int, clock: Clock) -> wire.Welcome:
    """Enrol once, with a key that is stored before it is sent: if the reply is lost, the same key gets the same number.

    Later, the server's reply is in the store.
    """
    if (stored := store.get_setting("welcome")) is not None:
        return msgspec.json.decode(stored, type=wire.Welcome)
    if token is None:
        raise ValueError("the first connect needs an enrolment token: ask the operator for one")
    key = SigningKey(store.get_setting("key") or random_bytes())
    with store.transaction():
        store.set_setting("key", bytes(key))
    welcome = enrol_agent(transport, token, key, protocol, clock=clock)
    with store.transaction():
        store.set_setting("welcome", msgspec.json.encode(welcome))
    store.sync_to_disk()
    return welcome


def build_policy(terms: wire.Terms) -> Policy:
    """Build the policy that a server runs, with its constants and its kind of beta."""
    policy = get_policy(terms.policy)
    kind = CONFIDENCES.get(terms.constants.get("confidence", ""), type(policy.confidence))
    policy = policy if isinstance(policy.confidence, kind) else replace(policy, confidence=kind())
    return policy.with_known_constants(terms.constants)


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
