"""Names of clusters that last: a partition names its groups as it likes and may rename them at any upload.

A group keeps the name under which most of its members were known. Among few agents all names are found anew whenever
somebody moves. Among many, only those who moved are looked at, so that a batch costs what happened in it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.partition import relabel_by_appearance

Labels = NDArray[np.int64]


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
