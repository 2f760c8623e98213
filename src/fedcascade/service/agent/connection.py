"""Connect an agent to its server: enrol once, and run the server's policy with a floor on what an upload reveals."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
from nacl.signing import SigningKey
from numpy.typing import ArrayLike

from fedcascade.checks import require, require_integer
from fedcascade.federation.agent import ShownList
from fedcascade.federation.messages import Upload
from fedcascade.federation.policies import Policy, get_policy
from fedcascade.federation.triggers import AtLeast
from fedcascade.learning.confidence import Constant, Oful, ProblemSize, Theory
from fedcascade.learning.oracles import Oracle
from fedcascade.service.agent.client import PAUSES, AgentClient, enrol_agent
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.agent.remote import RemoteAgent
from fedcascade.service.agent.transport import HttpTransport, Transport
from fedcascade.service.protocol import wire

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
) -> RemoteAgent:
    """Connect to the server at ``url``. The first time, the agent enrols and needs the server; later it starts offline.

    Args:
        url: the server's address.
        store: the agent's own file; the private key never leaves it.
        token: a one-time enrolment token (``fedcascade enroll``), needed the first time.
        policy: what decides when to speak and how to score; the server's if None.
        oracle: chooses lists from scores; the best k items if None.
        min_observations: an upload never holds fewer; 2 d if None. One observation would reveal itself.
        problem: the sizes for a beta by formula; what is known of them so far if None.
        transport: how requests travel; HTTP to ``url`` if None.
        protocol: the version to speak.
        pauses: seconds before the first retry, which double with every failure, and the longest they become.
    """
    if min_observations is not None:
        require_integer("min_observations", min_observations, 0)
    transport = transport or HttpTransport(url)
    local_store = LocalStore(store)
    try:
        welcome = _load_welcome(local_store) or _enrol(local_store, transport, token, protocol)
        key = SigningKey(local_store.get_setting("key") or b"")
        floor = 2 * welcome.terms.dimension if min_observations is None else min_observations
        return RemoteAgent(
            local_store,
            AgentClient(transport, key, welcome.agent, welcome.protocol),
            dimension=welcome.terms.dimension,
            policy=_add_floor(policy or build_policy(welcome.terms), floor),
            floor=floor,
            oracle=oracle,
            problem=problem,
            pauses=pauses,
        )
    except BaseException:
        local_store.close()
        raise


def _load_welcome(store: LocalStore) -> wire.Welcome | None:
    """Load the server's reply to an earlier enrolment, if there was one."""
    body = store.get_setting("welcome")
    return None if body is None else msgspec.json.decode(body, type=wire.Welcome)


def _enrol(store: LocalStore, transport: Transport, token: str | None, protocol: int) -> wire.Welcome:
    """Enrol with a key that is stored before it is sent: if the reply is lost, the same key gets the same number."""
    require(token is not None, "the first connect needs an enrolment token: ask the operator for one")
    assert token is not None
    seed = store.get_setting("key")
    key = SigningKey.generate() if seed is None else SigningKey(seed)
    if seed is None:
        with store.transaction():
            store.set_setting("key", bytes(key))
    welcome = enrol_agent(transport, token, key, protocol)
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


def _add_floor(policy: Policy, observations: int) -> Policy:
    """Keep a policy from uploading fewer observations than the floor."""
    floor = AtLeast(trigger=policy.trigger, observations=observations)
    return replace(policy, trigger=floor) if observations else policy


class AsyncRemoteAgent:
    """A ``RemoteAgent`` for asyncio: what touches the disk runs in a thread, so the event loop never waits."""

    def __init__(self, agent: RemoteAgent) -> None:
        self.agent = agent

    async def recommend(self, items: ArrayLike, k: int = 4) -> ShownList:
        return await asyncio.to_thread(self.agent.recommend, items, k)

    async def feedback(self, impression: ShownList | int, clicked: int | None) -> Upload | None:
        return await asyncio.to_thread(self.agent.feedback, impression, clicked)

    async def flush(self, timeout: float | None = None) -> bool:
        return await asyncio.to_thread(self.agent.flush, timeout)

    async def leave(self) -> None:
        await asyncio.to_thread(self.agent.leave)

    async def close(self) -> None:
        await asyncio.to_thread(self.agent.close)

    async def __aenter__(self) -> "AsyncRemoteAgent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect_async(url: str, **options: Any) -> AsyncRemoteAgent:
    """Connect for asyncio, with the options of ``connect``."""
    return AsyncRemoteAgent(await asyncio.to_thread(connect, url, **options))
