"""The agents of one process, which share a file, a network client and a few threads: decisions wait for no network."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from fedcascade.checks import require
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.agent.enrolment import TOKEN, ServerLink
from fedcascade.service.agent.exchange_loop import ExchangeLoop, Exchanger
from fedcascade.service.agent.local_store import WELCOME, LocalMemory, LocalStore
from fedcascade.service.agent.options import AgentOptions, PolicyCache
from fedcascade.service.agent.saved_agent import SavedAgent
from fedcascade.service.agent.store_file import StoreFile
from fedcascade.service.agent.transport import HttpTransport


class PoolAgent(SavedAgent):
    """An agent with a memory on disk and a server far away. Made by ``AgentPool.get``.

    Uploads travel in the background, one at a time, oldest first.
    """

    def __init__(self, memory: LocalMemory, options: AgentOptions, exchanger: Exchanger, loop: ExchangeLoop) -> None:
        super().__init__(memory, options, lambda: loop.announce(exchanger))
        self._loop, self._exchanger = loop, exchanger
        exchanger.owner = self
        if exchanger.has_work():
            loop.announce(exchanger)

    @property
    def client(self) -> AgentClient:
        return self._exchanger.client

    @property
    def trouble(self) -> str | None:
        """Why uploads wait, or what went wrong last; None if nothing did."""
        return self._exchanger.trouble

    def flush(self, timeout: float | None = None) -> bool:
        """Try at once, and wait until every upload was answered and counted; False after ``timeout`` seconds."""
        return self._loop.flush(self._exchanger, timeout)

    def leave(self) -> None:
        """Be forgotten: the server subtracts and erases what this agent sent, and the local store is emptied.

        If that fails, nothing has changed, and the agent can be used as before.
        """
        self.memory.store.file.require_same_process()
        with self._loop.silence(self._exchanger):
            if self.id:
                self.client.leave()
            self.erase()


class RemoteAgent(PoolAgent):
    """A ``PoolAgent`` that has a file, a network client and a background thread for itself. Made by ``connect``."""

    close_pool: Callable[[], None]

    def leave(self) -> None:
        """Be forgotten, as ``PoolAgent.leave``, and close."""
        super().leave()
        self.close()

    def close(self) -> None:
        """Stop the background thread and close the local store; everything is on disk already."""
        self.close_pool()

    def __enter__(self) -> "RemoteAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AgentPool:
    """The agents of many users, each with its own key, statistics and number at the server, in one file.

    An agent enrols when it has something to send for the first time, with a token of the stock. Until then it decides
    by itself, with the prior that the server gave to the last one of the pool that enrolled. What is not used for long
    leaves the memory, and is read from the file when it is asked for again.
    """

    kind: type[PoolAgent] = PoolAgent

    def __init__(
        self,
        url: str,
        options: AgentOptions | None = None,
        *,
        store: str = "agents.db",
        tokens: Iterable[str] = (),
        **changes: Any,
    ) -> None:
        """Open the pool; agents that have something to send begin at once.

        Args:
            url: the server's address.
            options: those of ``AgentOptions``; its defaults if None.
            store: the file of all agents; private keys never leave it.
            tokens: one-time enrolment tokens (``fedcascade enroll``) for agents to come; more by ``add_tokens``.
            changes: single options.
        """
        self._options = chosen = replace(options or AgentOptions(), **changes)
        self._policies = PolicyCache(chosen)
        self._link = ServerLink(chosen.transport or HttpTransport(url), chosen.clock)
        self._agents: WeakValueDictionary[str, PoolAgent] = WeakValueDictionary()
        self._recent: OrderedDict[str, PoolAgent] = OrderedDict()
        self._file = StoreFile(store)
        try:
            self._file.add_tokens(tokens)
            self._loop = ExchangeLoop(self._file.lock, chosen.pauses, chosen.senders)
        except BaseException:
            self._file.close()
            raise
        for name in self._file.find_unfinished():
            self.get(name)

    def get(self, name: str) -> PoolAgent:
        """Return the agent of a user, by any name that the application has for that user; a new one if there is none.

        Only the first agent of a new file waits for the server, which says what its terms are.
        """
        with self._hold():
            agent = self._agents.get(name)
            if agent is None or agent.memory.has_left:
                agent = self._agents[name] = self._load(name)
            self._recent[name] = agent
            self._recent.move_to_end(name)
            if len(self._recent) > self._options.in_memory:
                self._recent.popitem(last=False)
            return agent

    def enrol(self, name: str, token: str | None = None) -> PoolAgent:
        """Return the agent of a user, which has a number at the server: wait for the server if it has none yet.

        ``token`` is kept for this agent, for now or for the day when the server does not know it any more.
        """
        with self._hold():
            store = self._open_store(name)
            if token is not None:
                with store.transaction():
                    store.put_entry(TOKEN, token.encode())
        if store.get_entry(WELCOME) is None:
            self._link.terms = self._link.enrol(store).terms
        agent = self.get(name)
        if not agent.id:  # it was used before it enrolled
            agent._exchanger.reload()
        return agent

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

    def _open_store(self, name: str) -> LocalStore:
        with self._file.transaction():
            return LocalStore(self._file, self._file.find_agent(name))

    def _load(self, name: str) -> PoolAgent:
        store = self._open_store(name)
        welcome = self._link.introduce(self._file) if store.get_entry(WELCOME) is None else None
        memory = LocalMemory(store, self._policies, welcome)
        exchanger = Exchanger(memory, self._link, self._options.pauses)
        return self.kind(memory, self._options, exchanger, self._loop)


class SinglePool(AgentPool):
    """A pool of the one agent that ``connect`` returns."""

    kind = RemoteAgent
