"""Agents as a library: decisions never wait for the network, and nothing is lost if the process dies."""

from collections.abc import Callable

from fedcascade.service.agent.client import AgentClient
from fedcascade.service.agent.enrolment import ServerLink
from fedcascade.service.agent.exchange_loop import ExchangeLoop
from fedcascade.service.agent.exchanger import Exchanger
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.agent.saved_agent import AgentOptions, SavedAgent
from fedcascade.service.protocol import wire


class PoolAgent(SavedAgent):
    """A ``federation.Agent`` with a memory on disk and a server far away. Made by ``AgentPool.get``.

    Uploads travel in the background, one at a time, oldest first. ``trouble`` says why they wait or what went wrong
    last, None if nothing did. ``lost`` is how many rounds the server will never learn from. ``id`` is 0 until the
    agent has enrolled.
    """

    def __init__(
        self, store: LocalStore, link: ServerLink, welcome: wire.Welcome, *, options: AgentOptions, loop: ExchangeLoop,
        pauses: tuple[float, float],
    ) -> None:  # fmt: skip
        super().__init__(store, welcome, options=options, announce=lambda: loop.announce(self._exchanger))
        self._loop, self._exchanger = loop, Exchanger(self, link, pauses)
        if self._exchanger.has_work():
            loop.announce(self._exchanger)

    @property
    def client(self) -> AgentClient:
        return self._exchanger.client

    @property
    def trouble(self) -> str | None:
        return self._exchanger.trouble

    def flush(self, timeout: float | None = None) -> bool:
        """Try at once, and wait until every upload was answered and counted; False after ``timeout`` seconds."""
        return self._loop.flush(self._exchanger, timeout)

    def leave(self) -> None:
        """Be forgotten: the server subtracts and erases what this agent sent, and the local store is emptied.

        If that fails, nothing has changed, and the agent can be used as before.
        """
        self.store.file.require_same_process()
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
