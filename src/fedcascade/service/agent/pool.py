"""The agents of one process, which share a file, a transport and threads. Decisions do not wait for the network."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from fedcascade.checks import require
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.agent.enrolment import TOKEN, ServerLink
from fedcascade.service.agent.exchange_loop import ExchangeLoop, Exchanger
from fedcascade.service.agent.local_store import ENROLMENT, LocalMemory, LocalStore
from fedcascade.service.agent.options import AgentOptions, PolicyCache
from fedcascade.service.agent.saved_agent import SavedAgent
from fedcascade.service.agent.store_file import StoreFile
from fedcascade.service.agent.transport import HttpTransport


class PoolAgent(SavedAgent):
    """An agent with a store and a server. Made by ``AgentPool.get``. Uploads are sent in the background."""

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
        """The last problem of an exchange, or None."""
        return self._exchanger.trouble

    def flush(self, timeout: float | None = None) -> bool:
        """Retry now, and wait until all uploads are answered; False after ``timeout`` seconds."""
        return self._loop.flush(self._exchanger, timeout)

    def leave(self) -> None:
        """Delete this agent at the server, which subtracts its uploads, and in its file; it continues if that fails."""
        self.memory.store.file.require_same_process()
        with self._loop.suspend(self._exchanger):
            if self.id:
                self.client.leave()
            self.erase()


class RemoteAgent(PoolAgent, AbstractContextManager["RemoteAgent", None]):
    """A ``PoolAgent`` with a file, a transport and a thread of its own. Made by ``connect``."""

    close_pool: Callable[[], None]

    def leave(self) -> None:
        """Delete this agent as ``PoolAgent.leave`` does, and close it."""
        super().leave()
        self.close()

    def close(self) -> None:
        """Stop the background thread and close the file, which holds everything already."""
        self.close_pool()

    def __exit__(self, *_: object) -> None:
        self.close()


class AgentPool(AbstractContextManager["AgentPool", None]):
    """The agents of many users in one file, each with its own key, statistics and number at the server.

    An agent enrols before its first upload, with a token of the pool. Until then it decides with the prior of the last
    agent that enrolled. Agents that are not used for long leave the memory, and are loaded from the file again.
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
        """Open the pool, and start sending uploads that wait.

        Args:
            url: the server's address.
            options: options of all agents; defaults if None.
            store: the file of all agents; private keys never leave it.
            tokens: one-time enrolment tokens (``fedcascade enroll``) for new agents; ``add_tokens`` adds more.
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
        """Return the agent of a user, by any name of the user; create one for a new name.

        Only the first agent of a new file waits for the server, for its terms.
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
        """Return the agent of a user, enrolled: wait for the server if it has no number yet.

        ``token`` is saved for this agent, which may need it again if the server loses it.
        """
        with self._hold():
            store = self._open_store(name)
            if token is not None:
                with store.transaction():
                    store.put_entry(TOKEN, token.encode())
        if store.get_entry(ENROLMENT) is None:
            self._link.terms = self._link.enrol(store).terms
        agent = self.get(name)
        if not agent.id:  # it was used before it enrolled
            agent._exchanger.reload()
        return agent

    def add_tokens(self, tokens: Iterable[str]) -> None:
        """Add one-time enrolment tokens for new agents."""
        with self._hold():
            self._file.add_tokens(tokens)

    def list_names(self) -> list[str]:
        """List the names of all users with an agent."""
        with self._hold():
            return self._file.list_names()

    @property
    def unsent(self) -> int:
        """The number of unanswered uploads of all agents."""
        with self._hold():
            return self._file.count_uploads()

    @property
    def trouble(self) -> str | None:
        """The last problem of an exchange, or None."""
        return self._loop.trouble

    def flush(self, timeout: float | None = None) -> bool:
        """Retry now, and wait until all uploads are answered; False after ``timeout`` seconds."""
        return self._loop.flush(None, timeout)

    def close(self) -> None:
        """Stop the threads and close the file; a fork of the process closes nothing."""
        if self._file.is_same_process():
            self._loop.stop()
            self._file.close()
            self._link.transport.close()

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
        enrolment = self._link.introduce(self._file) if store.get_entry(ENROLMENT) is None else None
        memory = LocalMemory(store, self._policies, enrolment)
        exchanger = Exchanger(memory, self._link, self._options.pauses)
        return self.kind(memory, self._options, exchanger, self._loop)


class SinglePool(AgentPool):
    """A pool of the one agent that ``connect`` returns."""

    kind = RemoteAgent
