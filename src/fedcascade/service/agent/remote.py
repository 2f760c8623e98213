"""The agent as a library: decisions never wait for the network, and nothing is lost if the process dies."""

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from nacl.signing import SigningKey
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require, require_integer
from fedcascade.federation.agent import OPEN_LISTS, Agent, Shown
from fedcascade.federation.messages import Upload
from fedcascade.federation.policies import Policy, get_policy
from fedcascade.federation.triggers import AtLeast
from fedcascade.learning.confidence import Constant, Oful, ProblemSize, Theory
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent import client
from fedcascade.service.agent.local_store import Clock, LocalStore
from fedcascade.service.agent.transport import Http, Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused

log = logging.getLogger("fedcascade.agent")
PAUSES = (0.25, 300.0)
CONFIDENCES: dict[str, type[Constant | Theory | Oful]] = {
    kind.__name__.lower(): kind for kind in (Constant, Theory, Oful)
}


class RemoteAgent:
    """A ``federation.Agent`` with a memory on disk and a server far away. Made by ``connect``."""

    def __init__(
        self,
        store: LocalStore,
        transport: Transport,
        *,
        policy: Policy | None,
        oracle: Oracle | None,
        min_observations: int | None,
        problem: ProblemSize | None,
        pauses: tuple[float, float],
    ) -> None:
        welcome = msgspec.json.decode(store.setting("welcome") or b"", type=wire.Welcome)
        self.id = welcome.agent
        self.dimension = welcome.terms.dimension
        self._oracle = oracle
        self._problem = problem
        self._store, self._transport = store, transport
        key = SigningKey(store.setting("key") or b"")
        self._client = client.Client(transport, key, welcome.agent, welcome.protocol)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._pauses = pauses
        self._clock = Clock()
        self.trouble: str | None = None
        self.floor = 2 * self.dimension if min_observations is None else min_observations
        self._agent = self._resumed(with_floor(policy or policy_of(welcome.terms), self.floor))
        self._outbox = store.outbox(self.id, self.dimension)
        self._thread = threading.Thread(target=self._exchanges, name="fedcascade-agent", daemon=True)
        self._thread.start()

    def recommend(self, items: ArrayLike, k: int = 4, *, ties: NDArray[np.uint32] | None = None) -> Shown:
        """Choose a list; it has an ``impression`` to give feedback for, and stays open for long.

        Args:
            items: one row of features per item, each of length at most 1.
            k: how many items to show.
            ties: a random word per item, by which equal scores are ordered; drawn if None.
        """
        offered = np.asarray(items, np.float32)
        words = np.frombuffer(random.randbytes(4 * len(offered)), np.uint32) if ties is None else ties
        with self._lock:
            self._require_open()
            self._agent.oracle = self._oracle or TopK(length=k)
            self._agent.set_problem_size(self._problem or self._estimated(self._agent.oracle.length))
            shown = self._agent.recommend(offered, words)
            with self._store.transaction():
                self._store.show(shown, shown.impression - OPEN_LISTS)
                self._count()
            return shown

    def feedback(
        self, impression: Shown | int, clicked: int | None, *, round_: int | None = None, draw: float | None = None
    ) -> Upload | None:
        """Learn from a list: the position that was clicked, counted from 0, or None. Returns what is to be sent.

        Args:
            impression: the list, or its number.
            clicked: the position of the click.
            round_: t, where somebody knows it; else it is extrapolated from the last download.
            draw: the round's uniform number; drawn if None.
        """
        with self._lock:
            self._require_open()
            number = impression.impression if isinstance(impression, Shown) else impression
            clock = replace(self._clock, since=self._clock.since + 1)
            upload = self._agent.observe(
                self._agent.get_open_list(number),
                clicked,
                round_=clock.round(self._agent.arrivals) if round_ is None else round_,
                draw=random.random() if draw is None else draw,
            )
            self._clock = clock
            with self._store.transaction():
                self._store.answered(number)
                self._store.hold("buffer", self._agent.buffer)
                self._count()
                if upload is not None:
                    self._store.post(upload)
            if upload is not None:
                self._outbox.append(upload)
                self._changed.notify_all()
            return upload

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every upload has been answered; False if that took too long."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._outbox or self._closed, timeout) and not self._outbox

    @property
    def unsent(self) -> int:
        """How many uploads the server has not answered yet."""
        return len(self._outbox)

    @property
    def buffered(self) -> int:
        """How many observations wait for an upload."""
        return self._agent.buffer.count

    @property
    def estimate(self) -> NDArray[np.float64]:
        """Theta, as this agent estimates it now."""
        return self._agent.decision.theta.copy()

    def leave(self) -> None:
        """Be forgotten: the server subtracts and erases what this agent sent, and the local store is emptied."""
        self._stop()
        self._client.leave()
        self._store.erase()
        self._close()

    def close(self) -> None:
        """Stop; everything is on disk already."""
        self._stop()
        self._close()

    def __enter__(self) -> "RemoteAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _close(self) -> None:
        self._store.close()
        self._transport.close()

    def _require_open(self) -> None:
        require(not self._closed, "this agent is closed: connect again")

    def _resumed(self, policy: Policy) -> Agent:
        oracle = self._oracle or TopK()
        problem = self._problem or ProblemSize(users=1, dimension=self.dimension, list_length=oracle.length, rounds=1)
        agent = Agent(id=self.id, policy=policy, problem=problem, oracle=oracle)
        store, zero = self._store, Statistics.zero(self.dimension)
        arrivals, uploads, self._clock = store.counters()
        agent.resume(
            arrivals=arrivals,
            uploads=uploads,
            buffer=store.held("buffer", self.dimension),
            unanswered=sum((one.statistics for one in store.outbox(self.id, self.dimension)), zero),
            download=store.held("download", self.dimension),
            shown=store.shown(self.id, self.dimension),
        )
        return agent

    def _estimated(self, list_length: int) -> ProblemSize:
        """The sizes of the problem, as far as this agent knows: nobody knows how many rounds there will be."""
        clock = self._clock
        rounds = clock.round(self._agent.arrivals)
        return ProblemSize(users=clock.agents, dimension=self.dimension, list_length=list_length, rounds=rounds)

    def _count(self) -> None:
        self._store.count(self._agent.arrivals, self._agent.uploads, self._clock)

    def _exchanges(self) -> None:
        """The background: one upload at a time, oldest first, until the server has answered each."""
        failures = 0
        while (upload := self._next()) is not None:
            try:
                with self._lock:
                    self._store.force()
                answer = self._client.exchange(wire.offer_of(upload, self._client.protocol))
                self._receive(upload, answer)
                failures, self.trouble = 0, None
            except (OSError, Refused) as error:
                failures += 1
                self.trouble = str(error)
                log.info("upload %d waits: %s", upload.sequence, error)
                self._pause(pause(failures, self._pauses, getattr(error, "retry_after", None)))
            except Exception:  # a reply that cannot be understood must not end the thread
                failures += 1
                log.exception("upload %d waits", upload.sequence)
                self._pause(pause(failures, self._pauses, None))

    def _next(self) -> Upload | None:
        with self._lock:
            self._changed.wait_for(lambda: self._outbox or self._closed)
            return None if self._closed else self._outbox[0]

    def _receive(self, upload: Upload, answer: wire.Answer) -> None:
        download = wire.download_of(answer, self.id, self.dimension)
        with self._lock:
            later = sum((one.statistics for one in self._outbox[1:]), Statistics.zero(self.dimension))
            self._agent.receive(download, unanswered=later)
            self._clock = Clock(download.rounds, download.agents, 0)
            with self._store.transaction():
                self._store.receive(download, upload.sequence)
                self._count()
            del self._outbox[0]
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        with self._lock:
            self._changed.wait_for(lambda: self._closed, seconds)


class AsyncRemoteAgent:
    """The same agent for asyncio: what touches the disk runs in a thread."""

    def __init__(self, agent: RemoteAgent) -> None:
        self.agent = agent

    async def recommend(self, items: ArrayLike, k: int = 4) -> Shown:
        """Choose a list."""
        return await asyncio.to_thread(self.agent.recommend, items, k)

    async def feedback(self, impression: Shown | int, clicked: int | None) -> Upload | None:
        """Learn from a list."""
        return await asyncio.to_thread(self.agent.feedback, impression, clicked)

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until every upload has been answered."""
        return await asyncio.to_thread(self.agent.flush, timeout)

    async def leave(self) -> None:
        """Be forgotten."""
        await asyncio.to_thread(self.agent.leave)

    async def close(self) -> None:
        """Stop."""
        await asyncio.to_thread(self.agent.close)

    async def __aenter__(self) -> "AsyncRemoteAgent":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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
    """An agent of the server at ``url``. The first time it enrols, and needs the server; later it also starts offline.

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
    carrier = transport or Http(url)
    kept = LocalStore(store)
    try:
        if kept.setting("welcome") is None:
            _enrol(kept, carrier, token, protocol)
        return RemoteAgent(
            kept,
            carrier,
            policy=policy,
            oracle=oracle,
            min_observations=min_observations,
            problem=problem,
            pauses=pauses,
        )
    except BaseException:
        kept.close()
        raise


async def connect_async(url: str, **options: Any) -> AsyncRemoteAgent:
    """``connect`` for asyncio, with the same options."""
    return AsyncRemoteAgent(await asyncio.to_thread(lambda: connect(url, **options)))


def _enrol(store: LocalStore, transport: Transport, token: str | None, protocol: int) -> None:
    """The key is kept before it is sent: if the reply is lost, the same key enrols again and gets the same number."""
    require(token is not None, "the first connect needs an enrolment token: ask the operator for one")
    assert token is not None
    kept = store.setting("key")
    key = SigningKey.generate() if kept is None else SigningKey(kept)
    if kept is None:
        with store.transaction():
            store.set_setting("key", bytes(key))
    welcome = client.enrol(transport, token, key, protocol)
    with store.transaction():
        store.set_setting("welcome", msgspec.json.encode(welcome))
    store.force()


def policy_of(terms: wire.Terms) -> Policy:
    """The policy that a server runs, with its constants and its kind of beta."""
    row = get_policy(terms.policy)
    kind = CONFIDENCES.get(terms.constants.get("confidence", ""), type(row.confidence))
    row = row if isinstance(row.confidence, kind) else replace(row, confidence=kind())
    return row.with_known_constants(terms.constants)


def with_floor(row: Policy, observations: int) -> Policy:
    """The policy, but no upload holds fewer observations."""
    return replace(row, trigger=AtLeast(trigger=row.trigger, observations=observations)) if observations else row


def pause(
    failures: int, pauses: tuple[float, float], retry_after: float | None, luck: Callable[[], float] = random.random
) -> float:
    """Seconds until the next try: exponential backoff with jitter, and never sooner than the server asked for."""
    first, longest = pauses
    return max(retry_after or 0.0, min(longest, first * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * luck()))
