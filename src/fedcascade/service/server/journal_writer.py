"""Keeps the journal beside the log: in the transaction of a batch, it notes the exchanges and who moved where.

Names of clusters last: a partition names its groups as it likes and may rename them at any upload. A group keeps the
name under which most of its members were known. Among few agents all names are recomputed whenever one moves. Among
many, only those that moved are looked at, so that a batch costs what happened in it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.partition import relabel_by_appearance
from fedcascade.federation.holdings import append_zeros, drop_row
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.server.state import ServerState
from fedcascade.service.store.contract import Store

Labels = NDArray[np.int64]
NO_LABEL = -1
NOBODY: Labels = np.zeros(0, np.int64)
FEW = 1_000  # agents; among up to so many, all names are found anew when somebody moves


class JournalWriter:
    """Knows what the journal says of clusters at some position, so that it writes only changes."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._position = -1
        self._state: Callable[[], ServerState | None] = lambda: None  # whose places those of the arrays are
        self._labels = self._names = NOBODY  # of each place, when the journal was last written; 0 is no name
        self._live = LiveNames(NOBODY, NOBODY)

    def write(self, store: Store, state: ServerState, after: int) -> None:
        """Note everything that happened beyond a position of the log."""
        now = self._clock.read_milliseconds()
        labels = NOBODY if state.server is None else state.server.groups.labels
        self._follow(store, state, after)
        changed = self._find_changed(labels)
        is_new = not len(self._labels)
        moved = self._name_all(labels, changed) if is_new or len(labels) <= FEW else self._name_some(labels, changed)
        if state.position > after or moved.size:
            moves = zip(state.agents[moved].tolist(), self._names[moved].tolist(), strict=True)
            store.record_batch(after, now, state.clusters, moves)
        self._position, state.names = state.position, (state.position, self._names)

    def _follow(self, store: Store, state: ServerState, upto: int) -> None:
        """Read what other processes wrote, and let who has another place since somebody was forgotten have it here."""
        vacated, state.vacated = state.vacated, []
        if self._state() is not state or (vacated and self._position < upto):
            self._state = ref(state)  # so that a large one that is not needed any more goes
            self._names, self._labels = read_names(store, state, upto, None if vacated else state.names), NOBODY
            return
        if self._position < upto:
            self._labels = NOBODY
            self._names = np.append(self._names, np.zeros(max(0, state.agents.size - self._names.size), np.int64))
            follow_moves(store, state, self._names, self._position, upto)
        for gone, last in vacated:
            if gone < len(self._labels) and self._labels[gone] != NO_LABEL:
                self._live.leave(int(self._labels[gone]))
            if last < len(self._labels):
                self._labels, self._names = drop_row(self._labels, gone), drop_row(self._names, gone)
            elif gone < len(self._labels):  # a newcomer has it, of whom the journal does not know yet
                self._labels[gone], self._names[gone] = NO_LABEL, 0

    def _find_changed(self, labels: Labels) -> NDArray[np.intp]:
        """The places whose labels are others than when the journal was last written; newcomers come last."""
        size = len(self._labels)
        return np.append(np.flatnonzero(labels[:size] != self._labels), np.arange(size, len(labels)))

    def _name_all(self, labels: Labels, changed: NDArray[np.intp]) -> NDArray[np.intp]:
        """Find all names anew, unless nobody has changed; returns the places of those whose names are others now."""
        if not changed.size:
            return changed
        before = np.zeros(len(labels), np.int64)
        size = min(len(self._names), len(labels))
        before[:size] = self._names[:size]
        if are_consistent(labels, before):
            self._names = before
        else:
            known = {place: name for place, name in enumerate(before.tolist()) if name}
            names = assign_names(known, list(range(len(labels))), labels)
            self._names = np.fromiter(names.values(), np.int64, len(labels))
        self._labels, self._live = labels.copy(), LiveNames(labels, self._names)
        return np.flatnonzero(self._names != before)

    def _name_some(self, labels: Labels, changed: NDArray[np.intp]) -> NDArray[np.intp]:
        """Name the clusters of those who have changed; returns the places of those whose names are others now."""
        size = len(self._labels)
        while len(self._labels) < len(labels):
            self._labels, self._names = append_zeros(self._labels), append_zeros(self._names)
        self._labels[size:] = NO_LABEL
        former = [label for label in self._labels[changed].tolist() if label != NO_LABEL]
        before = self._names[changed]
        known = [name or None for name in before.tolist()]
        self._names[changed] = self._live.move(former, labels[changed].tolist(), known)
        self._labels[changed] = labels[changed]
        is_moved: NDArray[np.bool_] = self._names[changed] != before
        return changed[is_moved]


def follow_moves(store: Store, state: ServerState, names: Labels, after: int, upto: int) -> None:
    """Write the moves between two positions into the names of clusters, which are in the order of places."""
    for move in store.read_changes(after, upto).moves:
        if move.agent in state.places:
            names[state.places[move.agent]] = move.cluster


def read_names(store: Store, state: ServerState, upto: int, known: tuple[int, Labels] | None) -> Labels:
    """Read the names of the clusters of all agents at a position, in the order of their places; 0 for none.

    Where they are known of an earlier position, what came after it is read from the journal.
    """
    if known is not None and known[0] <= upto:
        position, earlier = known
        names = np.zeros(state.agents.size, np.int64)
        names[: earlier.size] = earlier
        follow_moves(store, state, names, position, upto)
        return names
    clusters = {totals.agent: totals.cluster for totals in store.sum_by_agent(upto)}
    return np.fromiter((clusters.get(agent, 0) for agent in state.agents.tolist()), np.int64, state.agents.size)


class LiveNames:
    """The name of each group that has members, by its label, and the names that are free."""

    def __init__(self, labels: Labels, names: Labels) -> None:
        distinct, first, sizes = np.unique(labels, return_index=True, return_counts=True)
        used = names[first]
        self.names = dict(zip(distinct.tolist(), used.tolist(), strict=True))
        self._sizes = Counter(dict(zip(distinct.tolist(), sizes.tolist(), strict=True)))
        self._next = int(used.max(initial=0)) + 1
        self._free: list[int] = np.setdiff1d(np.arange(1, self._next), used).tolist()  # sorted, hence a heap

    def leave(self, label: int) -> None:
        """Let an agent leave its group for good."""
        self._sizes[label] -= 1
        if not self._sizes[label]:
            del self._sizes[label]
            heappush(self._free, self.names.pop(label))

    def move(self, former: Sequence[int], labels: Sequence[int], known: Sequence[int | None]) -> list[int]:
        """Let agents change groups; returns the name of each one's new group.

        ``former`` are their labels until now, without those of newcomers, who come last; ``known`` are the names under
        which agents were known. A group that is new takes, of the names that nobody has any more, the one that most of
        its members had, else the smallest that is free.
        """
        for label in former:
            self._sizes[label] -= 1
        vacated = [label for label in dict.fromkeys(former) if not self._sizes[label]]
        released = {self.names.pop(label) for label in vacated}
        for label in vacated:
            del self._sizes[label]
        members: dict[int, Counter[int | None]] = {}
        for label, name in zip(labels, known, strict=True):
            self._sizes[label] += 1
            if label not in self.names:
                members.setdefault(label, Counter())[name] += 1
        for label, earlier in members.items():
            name = next((name for name, _ in earlier.most_common() if name in released), None)
            released.discard(name or 0)
            self.names[label] = name or self._take_free()
        for name in released:
            heappush(self._free, name)
        return [self.names[label] for label in labels]

    def _take_free(self) -> int:
        """The smallest name that no group has: people should not have to read large numbers."""
        if self._free:
            return heappop(self._free)
        self._next += 1
        return self._next - 1


def are_consistent(labels: Labels, names: Labels) -> bool:
    """Whether all agents of a group have one name, and no two groups the same; 0 is no name."""
    distinct, first, groups = np.unique(labels, return_index=True, return_inverse=True)
    used = names[first]
    return bool((used > 0).all() and (names == used[groups]).all() and np.unique(used).size == distinct.size)


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
    known, base = before >= 0, int(before.max(initial=0)) + 1
    pairs, shared = np.unique(labels[known] * base + before[known], return_counts=True)
    names: dict[int, int] = {}
    used: set[int] = set()
    for pair in pairs[np.argsort(-shared, kind="stable")].tolist():
        group, name = divmod(pair, base)
        if group not in names and name not in used:
            names[group] = name
            used.add(name)
    new = [group for group in dict.fromkeys(labels.tolist()) if group not in names]
    names |= zip(new, generate_names(earlier), strict=False)
    return {agent: names[label] for agent, label in zip(agents, labels.tolist(), strict=True)}
