"""The state of a server as a fold over its log: the same uploads in the same order give the same bits."""

from typing import Any

import numpy as np

from fedcascade.federation.holdings import ARRAYS
from fedcascade.federation.messages import Download, Upload
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics
from fedcascade.service.store.contract import LogEntry, Store
from fedcascade.service.store.snapshot import decode_state, encode_state

FORMAT = 1


class Fold:
    """A ``federation.Server`` that meets its agents at their first uploads, and knows how far it has read."""

    def __init__(self, policy: Policy, dimension: int) -> None:
        self.policy = policy
        self.dimension = dimension
        self.position = 0
        self.server: Server | None = None
        self.numbers: dict[int, int] = {}  # an agent's number in the store -> its place in the server's arrays

    @property
    def rounds(self) -> int:
        """How many rounds the server knows of."""
        return 0 if self.server is None else self.server.rounds

    @property
    def clusters(self) -> int:
        """How many groups there are."""
        return 0 if self.server is None else len(self.server.groups)

    def labels(self) -> dict[int, int]:
        """The group of every agent that has spoken."""
        return {} if self.server is None else {a: int(self.server.groups.labels[n]) for a, n in self.numbers.items()}

    def group_agents(self, agent: int) -> int:
        """How many agents share the group of this one."""
        assert self.server is not None
        labels = self.server.groups.labels
        return int(np.count_nonzero(labels == labels[self.numbers[agent]]))

    def statistics(self, agent: int) -> Statistics:
        """What the server holds of an agent."""
        if self.server is None or agent not in self.numbers:
            return Statistics.zero(self.dimension)
        return self.server.holdings[self.numbers[agent]]

    def total(self) -> Statistics:
        """What the server holds of all agents."""
        if self.server is None:
            return Statistics.zero(self.dimension)
        return self.server.holdings.total(np.arange(len(self.server.holdings)))

    def apply(self, entry: LogEntry) -> Download:
        """Take the next upload of the log; the agent's download."""
        upload, place = entry.upload, self._place(entry.upload.agent)
        assert self.server is not None
        downloads = self.server.take(
            Upload(agent=place, sequence=upload.sequence, cause=upload.cause, statistics=upload.statistics)
        )
        self.position = entry.position
        return next(download for download in downloads if download.agent == place)  # others are told when they ask

    def forget(self, agent: int, position: int) -> None:
        """Remove an agent; what is left holds nothing of it."""
        self.position = position
        place = self.numbers.pop(agent, None)
        if place is None or self.server is None:
            return
        if not self.numbers:
            self.server = None
            return
        self.server.forget(place)
        self.numbers = {other: at - (at > place) for other, at in self.numbers.items()}

    def _place(self, agent: int) -> int:
        if agent not in self.numbers:
            if self.server is None:
                self.server = Server(policy=self.policy, agents=1, dimension=self.dimension)
                self.numbers[agent] = 0
            else:
                self.numbers[agent] = self.server.join()
        return self.numbers[agent]

    def dump(self) -> bytes:
        """The state as bytes."""
        return encode_state(self.state())

    def state(self) -> dict[str, Any]:
        """The state as values that this fold goes on changing."""
        server = self.server
        return {
            "key": snapshot_key(self.policy, self.dimension),
            "position": self.position,
            "numbers": self.numbers,
            "rounds": self.rounds,
            "holdings": None if server is None else {name: getattr(server.holdings, name) for name in ARRAYS},
            "groups": None if server is None else _groups_state(server),
        }

    @classmethod
    def load(cls, policy: Policy, dimension: int, body: bytes) -> "Fold | None":
        """The state of a snapshot; None if it is that of another policy, dimension or format."""
        state = decode_state(body)
        if state["key"] != snapshot_key(policy, dimension):
            return None
        fold = cls(policy, dimension)
        fold.position, fold.numbers = state["position"], state["numbers"]
        if fold.numbers:
            fold.server = Server(policy=policy, agents=len(fold.numbers), dimension=dimension)
            fold.server.rounds = state["rounds"]
            vars(fold.server.holdings).update(state["holdings"])
            vars(fold.server.groups).update(state["groups"])
        return fold


def snapshot_key(policy: Policy, dimension: int) -> str:
    """What a state depends on beside the log."""
    constants = sorted((name, str(value)) for name, value in policy.constants().items())
    return repr((FORMAT, policy.name, constants, dimension))


def _groups_state(server: Server) -> dict[str, Any]:
    kept_elsewhere = (server.holdings, server.policy.grouping)
    groups = vars(server.groups).items()
    return {name: value for name, value in groups if not any(value is other for other in kept_elsewhere)}


def caught_up(store: Store, policy: Policy, dimension: int, fold: Fold | None = None) -> Fold:
    """The state at the end of the log: from ``fold`` on, or else from the last snapshot on."""
    if fold is None or store.find_last_forgetting() > fold.position:
        kept = store.load_snapshot()
        loaded_fold = None if kept is None else Fold.load(policy, dimension, kept[1])
        fold = loaded_fold or Fold(policy, dimension)
    for entry in store.read_entries(after=fold.position):
        fold.apply(entry)
    fold.position = max(fold.position, store.find_last_forgetting())
    return fold
