"""Who is in which group, in time that does not depend on how many agents there are.

The members of a group form a *circle*: each knows the one before and the one after it. Two circles become one, and an
agent leaves a circle, by changing four numbers. Labels that no group has wait in a heap, which is an array: a list of
a million numbers would keep Python's collector of garbage busy.
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.holdings import append_zeros
from fedcascade.numerics.jit import jit

Labels = NDArray[np.int64]
NO_LABEL = -1


class Circles:
    """The circles of all agents, and the labels of their groups."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        order = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(labels[order], prepend=NO_LABEL))
        following = np.append(order[1:], order[:1])
        following[np.append(starts[1:], labels.size)[: starts.size] - 1] = order[starts]  # the last one of a circle
        self.before, self.after = np.empty_like(order), np.empty_like(order)
        self.after[order], self.before[following] = following, order
        self._most = max(labels.size, int(labels.max(initial=-1)))
        self._heap = np.setdiff1d(np.arange(self._most + 1), labels)  # sorted, hence a heap of unused labels
        self._unused = self._heap.size

    def take_label(self) -> int:
        """The smallest label that no group has."""
        if not self._unused:
            self._most += 1
            return self._most
        self._unused -= 1
        return int(_pop_smallest(self._heap, self._unused))

    def return_label(self, label: int) -> None:
        """Let a label be used again."""
        if self._unused == self._heap.size:
            self._heap = np.append(self._heap, np.empty(max(8, self._unused), np.int64))
        _push(self._heap, self._unused, label)
        self._unused += 1

    def join(self) -> None:
        """Add an agent with a label of its own."""
        newcomer = self.labels.size
        self.labels, self.before, self.after = (append_zeros(a) for a in (self.labels, self.before, self.after))
        self.labels[newcomer] = self.take_label()
        self.before[newcomer] = self.after[newcomer] = newcomer
        if self._most < newcomer + 1:
            self._most = newcomer + 1
            self.return_label(self._most)

    def detach(self, agent: int) -> int:
        """Take an agent out of its circle; returns one that was in it, or the agent itself if none was."""
        before, after = int(self.before[agent]), int(self.after[agent])
        self.after[before], self.before[after] = after, before
        self.before[agent] = self.after[agent] = agent
        return after

    def connect(self, agent: int, member: int) -> None:
        """Make one circle of two."""
        after, other = int(self.after[agent]), int(self.after[member])
        self.after[agent], self.before[other] = other, agent
        self.after[member], self.before[after] = after, member

    def label(self, member: int, label: int) -> None:
        """Give a label to all of a circle."""
        _label_circle(self.after, self.labels, member, label)


@jit
def _label_circle(after: Labels, labels: Labels, member: int, label: int) -> None:
    agent = member
    while True:
        labels[agent] = label
        agent = after[agent]
        if agent == member:
            return


@jit
def _push(heap: Labels, size: int, label: int) -> None:
    """Add a label to a binary heap of so many, the smallest first."""
    place = size
    while place > 0 and heap[(place - 1) // 2] > label:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = label


@jit
def _pop_smallest(heap: Labels, left: int) -> int:
    """Take the smallest label out of a binary heap, of which so many are left."""
    smallest, label, place = heap[0], heap[left], 0
    while 2 * place + 1 < left:
        child = 2 * place + 1
        if child + 1 < left and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= label:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = label
    return int(smallest)
