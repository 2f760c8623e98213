"""Keeps the journal beside the log: in the transaction of a batch, it notes the exchanges and who moved where.

A grouping names its groups as it likes and may rename them at any upload. The scribe gives clusters names that last:
a group keeps the name under which most of its members were known.
"""

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedcascade.service.fold import Fold
from fedcascade.service.store import Store
from fedcascade.simulation.trace import canonical

Labels = NDArray[np.int64]


class Scribe:
    """What the journal says of clusters at some position, so that only changes are written."""

    def __init__(self) -> None:
        self._position = -1
        self._names: dict[int, int] = {}
        self._labels: Labels | None = None

    def write(self, store: Store, fold: Fold, after: int) -> None:
        """Note everything that happened beyond a position of the log."""
        now = time.time_ns() // 1_000_000
        if fold.position > after:
            store.note(after, now, fold.clusters)
        self._read_on(store, after)
        labels = fold.server.groups.labels if fold.server is not None else np.zeros(0, np.int64)
        if self._labels is None or not np.array_equal(labels, self._labels):
            names = lasting_names(self._names, list(fold.numbers), labels)
            moved = [(agent, name) for agent, name in names.items() if self._names.get(agent) != name]
            if moved:
                store.move(fold.position, now, moved)
            self._names, self._labels = names, labels.copy()
        self._position = fold.position

    def _read_on(self, store: Store, upto: int) -> None:
        """What others wrote meanwhile."""
        if self._position < 0:
            self._names = store.placed(upto)
        elif self._position < upto:
            self._names |= {move.agent: move.cluster for move in store.moves(self._position, upto)}


def lasting_names(known: Mapping[int, int], agents: list[int], labels: Labels) -> dict[int, int]:
    """The cluster of each agent under its lasting name; groups that are new get new names.

    Args:
        known: the names until now; of agents that have left, too.
        agents: in the order of ``labels``.
        labels: the group of each, under a name that need not last.

    >>> lasting_names({7: 1, 8: 1, 9: 1}, [7, 8, 9, 10], np.array([5, 0, 5, 0]))
    {7: 1, 8: 2, 9: 1, 10: 2}
    """
    labels = np.array(canonical(labels), np.int64)  # so that ties go by the order of agents, not by passing names
    before = np.array([known.get(agent, -1) for agent in agents], np.int64)
    pairs, shared = np.unique(np.stack([labels, before])[:, before >= 0], axis=1, return_counts=True)
    names: dict[int, int] = {}
    used: set[int] = set()
    for group, name in pairs.T[np.argsort(-shared, kind="stable")].tolist():
        if group not in names and name not in used:
            names[group] = name
            used.add(name)
    fresh = max(known.values(), default=0)
    for group in dict.fromkeys(labels.tolist()):
        if group not in names:
            fresh += 1
            names[group] = fresh
    return {agent: names[label] for agent, label in zip(agents, labels.tolist(), strict=True)}
