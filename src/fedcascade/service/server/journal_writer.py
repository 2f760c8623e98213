"""Keeps the journal beside the log: in the transaction of a batch, it notes the exchanges and who moved where.

Clusters have names that last (``cluster_names``).
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.holdings import append_zeros
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.server.cluster_names import LiveNames, assign_names
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store

Labels = NDArray[np.int64]
NOBODY: Labels = np.zeros(0, np.int64)
FEW = 1_000  # agents; among up to so many, all names are found anew when somebody moves


class JournalWriter:
    """Knows what the journal says of clusters at some position, so that it writes only changes."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._position = -1
        self._names: dict[int, int] = {}  # of agents' clusters
        self._live = LiveNames(NOBODY, ())
        self._labels = NOBODY  # of the partition, when the journal was last written
        self._agents: list[int] = []  # in the order of the labels

    def write(self, store: Store, state: ServerState, after: int) -> None:
        """Note everything that happened beyond a position of the log."""
        now = self._clock.read_milliseconds()
        if state.position > after:
            store.record_exchanges(after, now, state.clusters)
        self._read_moves(store, after)
        labels = NOBODY if state.server is None else state.server.groups.labels
        if moved := self._find_moves(labels, state):
            store.record_moves(state.position, now, moved.items())
        self._position = state.position

    def _read_moves(self, store: Store, upto: int) -> None:
        """Read what other processes wrote; after a forgetting, places in the arrays mean other agents."""
        if self._position < 0:
            self._names = store.read_clusters(upto)
        elif self._position < upto:
            self._names |= {move.agent: move.cluster for move in store.read_moves(self._position, upto)}
        if self._position != upto or store.find_last_rewriting() > self._position:
            self._labels = NOBODY

    def _find_moves(self, labels: Labels, state: ServerState) -> dict[int, int]:
        """The agents whose cluster is another than the journal says, and that cluster."""
        size = len(self._labels)
        changed = np.flatnonzero(labels[:size] != self._labels)
        newcomers = len(labels) - size
        if not size or (changed.size and len(labels) <= FEW):
            names = self._name_all(labels, state)
        elif changed.size or newcomers:
            names = self._name_some(changed, labels, state)
        else:
            return {}
        moved = {agent: name for agent, name in names.items() if self._names.get(agent) != name}
        self._names |= moved
        return moved

    def _name_all(self, labels: Labels, state: ServerState) -> dict[int, int]:
        """Find all names anew."""
        self._labels, self._agents = labels.copy(), state.agents.tolist()
        names = assign_names(self._names, self._agents, labels)
        self._live = LiveNames(labels, list(names.values()))
        return names

    def _name_some(self, changed: NDArray[np.intp], labels: Labels, state: ServerState) -> dict[int, int]:
        """Name the clusters of those whose labels changed, and of newcomers."""
        size = len(self._labels)
        newcomers = state.agents[size:].tolist()
        agents = [self._agents[place] for place in changed.tolist()] + newcomers
        moved = np.append(labels[changed], labels[size:])
        known = [self._names.get(agent) for agent in agents]
        names = self._live.move(self._labels[changed].tolist(), moved.tolist(), known)
        self._labels[changed] = labels[changed]
        for label in labels[size:]:
            self._labels = append_zeros(self._labels)
            self._labels[-1] = label
        self._agents += newcomers
        return dict(zip(agents, names, strict=True))
