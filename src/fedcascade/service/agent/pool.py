"""The agents of many users in one store, which any number of processes share. Decisions do not wait for the server."""

import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from fedcascade.service.agent.client import AgentClient
from fedcascade.service.agent.database import FAILURES, AgentDatabase, AgentFile
from fedcascade.service.agent.enrolment import ServerLink, TokenSource
from fedcascade.service.agent.entries import IDENTITY, TOKEN
from fedcascade.service.agent.exchange_loop import ExchangeLoop, Exchanger
from fedcascade.service.agent.memory import LEASE_SECONDS, LocalMemory
from fedcascade.service.agent.options import AgentOptions, PolicyCache
from fedcascade.service.agent.saved_agent import SavedAgent
from fedcascade.service.agent.sealed_rows import UNSETTLED, DamagedAgents, insert_agent, unseal
from fedcascade.service.agent.transport import HttpTransport

log = logging.getLogger("fedcascade.agent")
UNFINISHED = 1_000  # agents with work of other processes that are taken over at once


class PoolAgent(SavedAgent):
    """An agent with a store and a server. Made by ``AgentPool.get``. Uploads are sent in the background."""

    def __init__(self, memory: LocalMemory, options: AgentOptions, exchanger: Exchanger, loop: ExchangeLoop) -> None:
        super().__init__(memory, options, lambda: loop.announce(exchanger))
        self._loop, self._exchanger = loop, exchanger
        exchanger.owner = self
        loop.announce(exchanger)

    def resume(self) -> None:
        """Send what another process has left."""
        if not self._loop.is_scheduled(self._exchanger):
            self._exchanger.reload()
            self._loop.announce(self._exchanger)

    @property
    def client(self) -> AgentClient:
        """The signed requests of this agent."""
        self._exchanger.refresh()
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
        self.memory.database.require_same_process()
        with self._loop.suspend(self._exchanger):
            self._take_lease()
            if self.id:
                self.client.leave()
            self.erase()

    def _take_lease(self) -> None:
        """Wait until no other process sends for this agent, and read what it has changed."""
        end = time.monotonic() + 2 * LEASE_SECONDS
        while not self.memory.acquire():
            if time.monotonic() > end:
                raise OSError(f"another process sends the uploads of {self.memory.title}: retry later")
            time.sleep(0.05)
        self._exchanger.reload()


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
    """The agents of many users in one store, each with its own key, statistics and number at the server.

    Any process that has opened the store serves any user, and one at a time sends a user's uploads. An agent enrols
    before its first upload, with a token of the pool. Until then it decides with the prior of the last agent that
    enrolled. Agents that are not used for long leave the memory, and are loaded from the store again.
    """

    kind: type[PoolAgent] = PoolAgent
    takes_over = True  # whether to send what other processes have left

    def __init__(
        self,
        url: str,
        options: AgentOptions | None = None,
        *,
        store: str = "agents.db",
        tokens: TokenSource = (),
        **changes: Any,
    ) -> None:
        """Open the pool, and start sending uploads that wait.

        Args:
            url: the server's address.
            options: options of all agents; defaults if None.
            store: a file, which processes of one machine may share, or the URL of a PostgreSQL database, as in
                ``postgresql://user@host/database``. Private keys never leave it.
            tokens: one-time enrolment tokens for new agents, or a function that makes one or several when they are
                needed, or an enrolment key (``fedcascade enrolment-key``) with which the pool makes them.
            changes: single options.
        """
        self._options = chosen = replace(options or AgentOptions(), **changes)
        self._policies = PolicyCache(chosen)
        self._link = ServerLink(chosen.transport or HttpTransport(url), chosen.clock, chosen.features)
        self._link.check = self._policies.follow_terms
        self._agents: WeakValueDictionary[str, PoolAgent] = WeakValueDictionary()
        self._recent: OrderedDict[str, PoolAgent] = OrderedDict()
        self._lock = threading.RLock()
        self._database = open_database(store, start_over=chosen.start_over)
        try:
            self._link.use_tokens(tokens, self._database)
            self._loop = ExchangeLoop(chosen.pauses, chosen.senders, self.take_over if self.takes_over else None)
        except BaseException:
            self._database.close()
            raise
        self.take_over()

    def get(self, name: str) -> PoolAgent:
        """Return the agent of a user, by any name of the user; create one for a new name.

        Only the first agent of a new store waits for the server, for its terms.
        """
        self._database.require_same_process()
        with self._lock:
            known = self._agents.get(name)
        if known is not None and known.memory.has_changed() and known.memory.has_left:
            known = None
        memory = None
        if known is None:
            options, introduce = self._options, partial(self._link.introduce, self._database)
            memory = LocalMemory(self._database, name, self._policies, introduce, start_over=options.start_over)
        with self._lock:
            agent = self._agents.get(name)
            if memory is not None and (agent is None or agent.memory.has_left):
                exchanger = Exchanger(memory, self._link, self._options.pauses)
                agent = self._agents[name] = self.kind(memory, self._options, exchanger, self._loop)
            assert agent is not None
            self._recent[name] = agent
            self._recent.move_to_end(name)
            if len(self._recent) > self._options.in_memory:
                self._recent.popitem(last=False)
            return agent

    def enrol(self, name: str, token: str | None = None) -> PoolAgent:
        """Return the agent of a user, enrolled: wait for the server if it has no number yet.

        ``token`` is saved for this agent, which may need it again if the server loses it.
        """
        agent = self.get(name)
        memory = agent.memory
        if token is not None:
            with suppress(ConnectionError):
                self._link.check_terms(memory.state.enrolment)
            memory.put({TOKEN: token.encode()})
        if not agent.id:
            self._link.terms = self._link.enrol(memory).terms
            agent._exchanger.reload()
        return agent

    def take_over(self) -> None:
        """Send uploads that no process sends, such as those of one that was killed."""
        for name in self._database.find_unfinished(UNFINISHED):
            self.get(name).resume()

    def add_tokens(self, tokens: Iterable[str]) -> None:
        """Add one-time enrolment tokens for new agents."""
        self._database.add_tokens(tokens)

    def list_names(self) -> list[str]:
        """List the names of all users with an agent."""
        return self._database.list_names()

    @property
    def unsent(self) -> int:
        """The number of unanswered uploads of all agents."""
        return self._database.count_uploads()

    @property
    def trouble(self) -> str | None:
        """The last problem of an exchange, or None."""
        return self._loop.trouble

    def flush(self, timeout: float | None = None) -> bool:
        """Retry now, and wait until all uploads of this process are answered; False after ``timeout`` seconds."""
        return self._loop.flush(None, timeout)

    def close(self) -> None:
        """Stop the threads and close the store; a fork of the process closes nothing."""
        if self._database.is_same_process():
            self._loop.stop()
            with suppress(OSError, ValueError):  # of a store that is away, or closed already: they expire
                self._database.release_leases()
            self._database.close()
            self._link.transport.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class SinglePool(AgentPool):
    """A pool of the one agent that ``connect`` returns."""

    kind = RemoteAgent
    takes_over = False


def open_database(store: str, *, start_over: bool = False) -> AgentDatabase:
    """Open the file or PostgreSQL database of agents.

    With ``start_over``, a damaged file is renamed, and its agents go on with the keys that can be read.
    """
    if store.startswith(("postgresql://", "postgres://")):
        try:
            from fedcascade.service.agent.postgres import AgentPostgres  # here, because psycopg is an extra
        except ImportError:
            raise ValueError("PostgreSQL needs psycopg: pip install 'fedcascade[postgres]'") from None
        return AgentPostgres(store)
    try:
        return AgentFile(store)
    except DamagedAgents as damage:
        if not start_over:
            raise
        return _replace_file(store, damage)


def _replace_file(path: str, damage: DamagedAgents) -> AgentDatabase:
    """Move a damaged file away, and begin another one with the identities that can be read from it."""
    moved = f"{path}.damaged-{Path(path).stat().st_mtime_ns}"
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(path + suffix).rename(moved + suffix)
    identities = _read_identities(moved)
    log.warning("%s; the file is now '%s', and %d agents go on with their keys", damage, moved, len(identities))
    file = AgentFile(path)
    with file.transaction() as run:
        for name, values in identities.items():
            insert_agent(run, name, values | {UNSETTLED: b"true"})
    return file


def _read_identities(path: str) -> dict[str, dict[str, bytes]]:
    """Read the undamaged identities of a damaged file, as far as SQLite reads it."""
    identities: dict[str, dict[str, bytes]] = {}
    with suppress(*FAILURES), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")  # reads tables beside a damaged one
        query = "SELECT number, u.name, e.name, value FROM pool_agent u JOIN pool_entry e ON agent = number"
        for number, user, name, value in connection.execute(query):
            if name in IDENTITY and isinstance(value, bytes):
                with suppress(DamagedAgents):
                    identities.setdefault(str(user), {})[name] = unseal(path, number, name, value)
    return {user: values for user, values in identities.items() if "key" in values}
