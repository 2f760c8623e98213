"""The agent as a library: decisions never wait for the network, and nothing is lost if the process dies."""

from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.agent.exchange_loop import ExchangeLoop
from fedcascade.service.agent.local_store import LocalStore
from fedcascade.service.agent.saved_agent import FollowTerms, SavedAgent
from fedcascade.service.protocol import wire


class RemoteAgent(SavedAgent):
    """A ``federation.Agent`` with a memory on disk and a server far away. Made by ``connect``.

    A thread in the background sends uploads, one at a time, oldest first. ``trouble`` says why it waits or what went
    wrong last, None if nothing did. ``lost`` is how many rounds the server will never learn from.
    """

    def __init__(
        self, store: LocalStore, client: AgentClient, welcome: wire.Welcome, *, follow_terms: FollowTerms,
        token: str | None, oracle: Oracle | None, problem: ProblemSize | None, pauses: tuple[float, float],
    ) -> None:  # fmt: skip
        super().__init__(store, welcome, follow_terms=follow_terms, oracle=oracle, problem=problem)
        self.client = client
        self._loop = ExchangeLoop(self, client, token, pauses)

    @property
    def trouble(self) -> str | None:
        return self._loop.trouble

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every upload has been answered and counted; False after ``timeout`` seconds."""
        return self._loop.flush(timeout)

    def leave(self) -> None:
        """Be forgotten: the server subtracts and erases what this agent sent, and the local store is emptied."""
        self._loop.stop()
        self.client.leave()
        self.store.erase()
        self.close()

    def close(self) -> None:
        """Stop the background thread and close the local store; everything is on disk already."""
        self._loop.stop()
        self.store.close()
        self.client.transport.close()

    def __enter__(self) -> "RemoteAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
