"""Many agents in one process: they share a file, a network client and a few threads."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import msgspec

from fedcascade.checks import require, require_integer
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle
from fedcascade.service.agent.client import PAUSES
from fedcascade.service.agent.enrolment import TOKEN, WELCOME, ServerLink, begin_with_shared_download
from fedcascade.service.agent.exchange_loop import ExchangeLoop
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.agent.remote import PoolAgent
from fedcascade.service.agent.saved_agent import KEEP_LISTS, KEEP_SECONDS, AgentOptions
from fedcascade.service.agent.store_file import EVERYBODY, StoreFile
from fedcascade.service.agent.terms import PolicyCache
from fedcascade.service.agent.transport import HttpTransport, Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock

TERMS = "terms"  # a setting that belongs to no single agent
SENDERS = 16
IN_MEMORY = 10_000


class AgentPool:
    """The agents of many users, each with its own key, statistics and number at the server, in one file.

    An agent enrols when it has something to send for the first time, with a token of the stock. Until then it decides
    by itself, from what the server told the last one of the pool that enrolled of anybody. What is not used for long
    leaves the memory, and is read from the file when it is asked for again.
    """

    def __init__(
        self,
        url: str,
        *,
        store: str = "agents.db",
        tokens: Iterable[str] = (),
        policy: Policy | None = None,
        oracle: Oracle | None = None,
        min_observations: int | None = None,
        problem: ProblemSize | None = None,
        keep_lists: int = KEEP_LISTS,
        keep_seconds: float = KEEP_SECONDS,
        record_lists: int = 0,
        senders: int = SENDERS,
        in_memory: int = IN_MEMORY,
        transport: Transport | None = None,
        protocol: int = wire.PROTOCOLS[-1],
        pauses: tuple[float, float] = PAUSES,
        clock: Clock = SYSTEM_CLOCK,
        kind: type[PoolAgent] = PoolAgent,
    ) -> None:
        """Open the pool; agents that have something to send begin at once.

        Args:
            url: the server's address.
            store: the file of all agents; private keys never leave it.
            tokens: one-time enrolment tokens (``fedcascade enroll``) for agents to come; more by ``add_tokens``.
            policy: what decides when to speak and how to score; the server's if None.
            oracle: chooses lists from scores; the best k items if None.
            min_observations: an upload never holds fewer; 2 d if None, and never fewer than the server asks for.
            problem: the sizes for a beta by formula; what is known of them so far if None.
            keep_lists: a list without feedback is dropped once so many others were shown to the same user.
            keep_seconds: it is dropped after so long, too; a year if not given.
            record_lists: so many lists of each user are kept for ``agent.export_log()``; none if 0.
            senders: how many requests may be under way at once; each has a thread.
            in_memory: how many agents stay in memory though nobody uses them.
            transport: how requests travel; HTTP to ``url`` if None.
            protocol: the version to speak.
            pauses: seconds before the first retry, which double with every failure, and the longest they become.
            clock: what time signatures and lists carry; the system's if not given.
            kind: the class of the agents.
        """
        if min_observations is not None:
            require_integer("min_observations", min_observations, 0)
        require_integer("senders", senders)
        require_integer("in_memory", in_memory)
        follow = PolicyCache(policy, min_observations).follow_terms
        self._options = AgentOptions(follow_terms=follow, oracle=oracle, problem=problem, keep_lists=keep_lists,
                                     keep_seconds=keep_seconds, record_lists=record_lists, clock=clock)  # fmt: skip
        self._link = ServerLink(transport or HttpTransport(url), protocol, clock)
        self._kind, self._pauses, self._in_memory = kind, pauses, in_memory
        self._agents: WeakValueDictionary[str, PoolAgent] = WeakValueDictionary()
        self._recent: OrderedDict[str, PoolAgent] = OrderedDict()
        self._file = StoreFile(store)
        try:
            self._file.add_tokens(tokens)
            self._loop = ExchangeLoop(self._file.lock, pauses, senders)
        except BaseException:
            self._file.close()
            raise
        for name in self._file.find_unfinished():
            self.get(name)

    def get(self, name: str) -> PoolAgent:
        """The agent of a user, by any name that the application has for that user; a new one if there is none yet.

        Only the first agent of a new file waits for the server, which says what its terms are.
        """
        with self._hold():
            agent = self._agents.get(name)
            if agent is None or agent.has_left:
                agent = self._agents[name] = self._load(name)
            self._recent[name] = agent
            self._recent.move_to_end(name)
            if len(self._recent) > self._in_memory:
                self._recent.popitem(last=False)
            return agent

    def enrol(self, name: str, token: str | None = None) -> PoolAgent:
        """The agent of a user, which has a number at the server: waits for the server if it has none yet.

        ``token`` is kept for this agent, for now or for the day when the server does not know it any more.
        """
        with self._hold(), self._file.transaction():
            store = LocalStore(self._file, self._file.find_agent(name))
            if token is not None:
                store.set_setting(TOKEN, token.encode())
        if store.get_setting(WELCOME) is None:
            self._link.terms = self._link.enrol(store).terms
        return self.get(name)

    def add_tokens(self, tokens: Iterable[str]) -> None:
        """Add one-time enrolment tokens to the stock, for agents that have not enrolled yet."""
        with self._hold():
            self._file.add_tokens(tokens)

    def list_names(self) -> list[str]:
        """The names of all users that have an agent here."""
        with self._hold():
            return self._file.list_names()

    @property
    def unsent(self) -> int:
        """How many uploads of all agents wait for an answer."""
        with self._hold():
            return self._file.count_uploads()

    @property
    def trouble(self) -> str | None:
        """Why uploads of some agent wait, or what went wrong last; None if nothing did."""
        return self._loop.trouble

    def flush(self, timeout: float | None = None) -> bool:
        """Try at once, and wait until every agent's uploads were answered; False after ``timeout`` seconds."""
        return self._loop.flush(None, timeout)

    def close(self) -> None:
        """Stop the threads and close the file; everything is on disk already. A fork of the process closes nothing."""
        if self._file.is_mine():
            self._loop.stop()
            self._file.close()
            self._link.transport.close()

    def __enter__(self) -> "AgentPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _hold(self) -> Iterator[None]:
        self._file.require_same_process()
        with self._file.lock:
            require(not self._file.is_closed, "this pool is closed: open it again")
            yield

    def _load(self, name: str) -> PoolAgent:
        with self._file.transaction():
            store = LocalStore(self._file, self._file.find_agent(name))
        stored = store.get_setting(WELCOME)
        if stored is None:
            welcome = wire.Welcome(protocol=self._link.protocol, agent=0, terms=self._get_terms())
            begin_with_shared_download(store, welcome.terms)
        else:
            welcome = msgspec.json.decode(stored, type=wire.Welcome)
        return self._kind(store, self._link, welcome, options=self._options, loop=self._loop, pauses=self._pauses)

    def _get_terms(self) -> wire.Terms:
        """The terms that were fetched last, also by an earlier process; only the first of a file waits for them."""
        shared = LocalStore(self._file, EVERYBODY)
        stored = shared.get_setting(TERMS)
        if self._link.terms is None and stored is not None:
            self._link.terms = msgspec.json.decode(stored, type=wire.Terms)
        terms = self._link.terms or self._link.fetch_terms()
        if (content := msgspec.json.encode(terms)) != stored:
            with self._file.transaction():
                shared.set_setting(TERMS, content)
        return terms
