"""Keeps the journal beside the log: in the transaction of a batch, it notes the exchanges and who moved where.

A partition names its groups as it likes and may rename them at any upload. The journal gives clusters names that last:
a group keeps the name under which most of its members were known.
"""

from collections.abc import Iterator, Mapping
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.partition import relabel_by_appearance
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store

Labels = NDArray[np.int64]
NOBODY: Labels = np.zeros(0, np.int64)


class JournalWriter:
    """Knows what the journal says of clusters at some position, so that it writes only changes."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._position = -1
        self._names: dict[int, int] = {}  # of agents' clusters
        self._groups: dict[int, int] = {}  # of the partition's own labels
        self._labels = NOBODY

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
        if not size or not np.array_equal(labels[:size], self._labels):
            names = assign_names(self._names, list(state.places), labels)
            self._groups = dict(zip(labels.tolist(), names.values(), strict=True))
        elif len(labels) > size:  # newcomers alone, which is what happens while many agents join
            names = self._place_newcomers(list(islice(state.places, size, None)), labels[size:].tolist())
        else:
            return {}
        moved = {agent: name for agent, name in names.items() if self._names.get(agent) != name}
        self._names |= moved
        self._labels = labels.copy()
        return moved

    def _place_newcomers(self, agents: list[int], labels: list[int]) -> dict[int, int]:
        """The clusters of newcomers: those of others in their groups, or new ones."""
        free = generate_names(self._names)
        new = [label for label in dict.fromkeys(labels) if label not in self._groups]
        self._groups |= zip(new, free, strict=False)
        return {agent: self._groups[label] for agent, label in zip(agents, labels, strict=True)}


def generate_names(names: Mapping[int, int]) -> Iterator[int]:
    """Names that no cluster has now, the smallest first: people should not have to read large numbers."""
    taken = set(names.values())  # computed when the first name is asked for
    yield from (name for name in count(1) if name not in taken)


def assign_names(earlier: Mapping[int, int], agents: list[int], labels: Labels) -> dict[int, int]:
    """The cluster of each agent under its lasting name; groups that are new get new names.

    Args:
        earlier: the names until now; of agents that have left, too.
        agents: in the order of ``labels``.
        labels: the group of each, under a name that need not last.

    >>> assign_names({7: 1, 8: 1, 9: 1}, [7, 8, 9, 10], np.array([5, 0, 5, 0]))
    {7: 1, 8: 2, 9: 1, 10: 2}
    """
    labels = relabel_by_appearance(labels)[1]  # so that ties go by the order of agents, not by passing names
    before = np.array([earlier.get(agent, -1) for agent in agents], np.int64)
    pairs, shared = np.unique(np.stack([labels, before])[:, before >= 0], axis=1, return_counts=True)
    names: dict[int, int] = {}
    used: set[int] = set()
    for group, name in pairs.T[np.argsort(-shared, kind="stable")].tolist():
        if group not in names and name not in used:
            names[group] = name
            used.add(name)
    new = [group for group in dict.fromkeys(labels.tolist()) if group not in names]
    names |= zip(new, generate_names(earlier), strict=False)
    return {agent: names[label] for agent, label in zip(agents, labels.tolist(), strict=True)}
