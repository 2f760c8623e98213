"""The journal beside the log: the exchanges of a batch and the moves between clusters.

Names of clusters are stable, while labels of a partition may change at any upload: a group keeps the name that most of
its members had. Up to ``MOST_RENAMED`` agents all names are recomputed when a label changes. Beyond that only groups of
changed agents are renamed, so that the cost of a batch does not grow with the number of agents.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.partition import Labels, relabel_by_appearance
from fedcascade.federation.holdings import append_zeros, drop_row
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store

NO_LABEL = -1
NO_LABELS: Labels = np.zeros(0, np.int64)
MOST_RENAMED = 1_000  # agents


class JournalWriter:
    """Writer of changes to the journal; it holds the names of clusters at a position."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._written: tuple[int, Labels] = (-1, NO_LABELS)  # the ``names`` of the state to which the arrays belong
        self._labels = self._names = NO_LABELS  # by place, as last written; 0 is no name
        self._live = LiveNames(NO_LABELS, NO_LABELS)

    def write(self, store: Store, state: ServerState, after: int) -> None:
        """Write the exchanges and moves beyond a position of the log."""
        now = self._clock.read_milliseconds()
        labels = state.server.groups.labels
        self._follow(store, state, after)
        size = len(self._labels)
        # New agents come last.
        changed = np.append(np.flatnonzero(labels[:size] != self._labels), np.arange(size, len(labels)))
        rename = self._name_some if size and len(labels) > MOST_RENAMED else self._name_all
        moved = rename(labels, changed)
        if state.position > after or moved.size:
            moves = zip(state.agents[moved].tolist(), self._names[moved].tolist(), strict=True)
            store.record_batch(after, now, state.clusters, moves)
        self._written = state.names = (state.position, self._names)

    def _follow(self, store: Store, state: ServerState, upto: int) -> None:
        """Read the moves of other processes, and follow agents whose places changed when another was forgotten."""
        vacated, state.vacated = state.vacated, []
        if state.names is not self._written or self._written[0] < upto:
            self._names, self._labels = read_names(store, state, upto, None if vacated else state.names), NO_LABELS
            return
        for gone, last in vacated:
            if gone < len(self._labels) and self._labels[gone] != NO_LABEL:
                self._live.move([int(self._labels[gone])], [], [])
            if last < len(self._labels):
                self._labels, self._names = drop_row(self._labels, gone), drop_row(self._names, gone)
            elif gone < len(self._labels):  # a new agent has it, which is not in the journal yet
                self._labels[gone], self._names[gone] = NO_LABEL, 0

    def _name_all(self, labels: Labels, changed: NDArray[np.intp]) -> NDArray[np.intp]:
        """Recompute all names if a label changed; return the places whose names changed."""
        if not changed.size:
            return changed
        before = np.zeros(len(labels), np.int64)
        size = min(len(self._names), len(labels))
        before[:size] = self._names[:size]
        self._names = assign_names(before, labels)
        self._labels, self._live = labels.copy(), LiveNames(labels, self._names)
        return np.flatnonzero(self._names != before)

    def _name_some(self, labels: Labels, changed: NDArray[np.intp]) -> NDArray[np.intp]:
        """Name the clusters of changed agents; return the places whose names changed."""
        size = len(self._labels)
        while len(self._labels) < len(labels):
            self._labels, self._names = append_zeros(self._labels), append_zeros(self._names)
        self._labels[size:] = NO_LABEL
        former = [label for label in self._labels[changed].tolist() if label != NO_LABEL]
        before = self._names[changed]
        self._names[changed] = self._live.move(former, labels[changed].tolist(), before.tolist())
        self._labels[changed] = labels[changed]
        is_moved: NDArray[np.bool_] = self._names[changed] != before
        return changed[is_moved]


def read_names(store: Store, state: ServerState, upto: int, known: tuple[int, Labels] | None) -> Labels:
    """Read the cluster names of all agents at a position, by place; 0 for none.

    ``known`` are the names at an earlier position: then only later moves are read.
    """
    if known is not None and known[0] <= upto:
        position, earlier = known
        names = np.zeros(state.agents.size, np.int64)
        names[: earlier.size] = earlier
        for move in store.read_changes(position, upto).moves:
            if move.agent in state.places:
                names[state.places[move.agent]] = move.cluster
        return names
    clusters = {totals.agent: totals.cluster for totals in store.sum_by_agent(upto)}
    return np.fromiter((clusters.get(agent, 0) for agent in state.agents.tolist()), np.int64, state.agents.size)


class LiveNames:
    """Names of non-empty groups by label, and the free names."""

    def __init__(self, labels: Labels, names: Labels) -> None:
        distinct, first, sizes = np.unique(labels, return_index=True, return_counts=True)
        used = names[first]
        self.names = dict(zip(distinct.tolist(), used.tolist(), strict=True))
        self._sizes = Counter(dict(zip(distinct.tolist(), sizes.tolist(), strict=True)))
        self._next = int(used.max(initial=0)) + 1
        self._free: list[int] = np.setdiff1d(np.arange(1, self._next), used).tolist()  # sorted, hence a heap

    def move(self, former: Sequence[int], labels: Sequence[int], known: Sequence[int]) -> list[int]:
        """Move agents to other groups; return the name of each agent's new group.

        ``former`` are their earlier labels and those of agents that leave; new agents have none. ``known`` are earlier
        names, 0 for none. A new group takes the released name that most of its members had, else the smallest free one.
        """
        for label in former:
            self._sizes[label] -= 1
        vacated = [label for label in dict.fromkeys(former) if not self._sizes[label]]
        released = {self.names.pop(label) for label in vacated}
        for label in vacated:
            del self._sizes[label]
        members: dict[int, Counter[int]] = {}
        for label, name in zip(labels, known, strict=True):
            self._sizes[label] += 1
            if label not in self.names:
                members.setdefault(label, Counter())[name] += 1
        for label, earlier in members.items():
            name = next((name for name, _ in earlier.most_common() if name in released), 0)
            released.discard(name)
            self.names[label] = name or self._take_free()
        for name in released:
            heappush(self._free, name)
        return [self.names[label] for label in labels]

    def _take_free(self) -> int:
        """Take the smallest name that no group has."""
        if self._free:
            return heappop(self._free)
        self._next += 1
        return self._next - 1


def assign_names(earlier: Labels, labels: Labels) -> Labels:
    """Return the cluster name of each agent from their earlier names, 0 for none.

    A group takes the name that most of its members had, unless a group that shares more members takes it. Other groups
    take the smallest names that no agent had.

    >>> assign_names(np.array([1, 1, 1, 0]), np.array([5, 0, 5, 0]))
    array([1, 2, 1, 2])
    """
    groups = relabel_by_appearance(labels)[1]  # so that ties depend on the order of agents alone
    known, base = earlier > 0, int(earlier.max(initial=0)) + 1
    pairs, shared = np.unique(groups[known] * base + earlier[known], return_counts=True)
    names: dict[int, int] = {}
    used: set[int] = set()
    for pair in pairs[np.argsort(-shared, kind="stable")].tolist():
        group, name = divmod(pair, base)
        if group not in names and name not in used:
            names[group] = name
            used.add(name)
    had = set(earlier.tolist())
    free = (name for name in count(1) if name not in had)
    named = [names[group] if group in names else next(free) for group in range(int(groups.max(initial=-1)) + 1)]
    return np.array(named, np.int64)[groups]
