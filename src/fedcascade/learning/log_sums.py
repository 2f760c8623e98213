"""What a log teaches about each user: gram, moment and counts, added up batch by batch."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.learning.click_log import NOBODY, ClickLog
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, add_examined

NO_FEATURES = "this log has no features: give a table of items"


class LogSums:
    """Statistics of every user of a log, as arrays over users that grow as users appear."""

    def __init__(self, dimension: int) -> None:
        self.dimension, self.users = dimension, 0
        self.gram, self.moment = np.zeros((0, dimension, dimension)), np.zeros((0, dimension))
        self.counts = np.zeros((0, 3), np.int64)  # looked at, clicks, rounds

    def add(self, log: ClickLog, table: NDArray[np.float32] | None) -> None:
        """Learn from every position that users looked at, whoever chose the lists.

        ``table`` has the features of all items, one row each; None where the log has its own.
        """
        self._grow(int(log.users.max(initial=-1)) + 1)
        add_lists(
            self.gram, self.moment, self.counts, log.users, gather_features(log, table), log.clicks, log.count_looked()
        )

    def merge(self, other: "LogSums", users: NDArray[np.int64]) -> None:
        """Add other sums; ``users`` are the numbers here of the users there, each once."""
        count = other.users
        self._grow(int(users.max(initial=-1)) + 1)
        self.gram[users] += other.gram[:count]
        self.moment[users] += other.moment[:count]
        self.counts[users] += other.counts[:count]

    def __getitem__(self, user: int) -> Statistics:
        looked, clicks, rounds = (int(count) for count in self.counts[user])
        return Statistics(self.gram[user].copy(), self.moment[user].copy(), looked, clicks, rounds)

    def total(self) -> Statistics:
        """The statistics of all users together."""
        looked, clicks, rounds = (int(count) for count in self.counts.sum(axis=0))
        return Statistics(self.gram.sum(axis=0), self.moment.sum(axis=0), looked, clicks, rounds)

    def _grow(self, users: int) -> None:
        if users > len(self.gram):
            more = max(users, 2 * len(self.gram)) - len(self.gram)
            for name in ("gram", "moment", "counts"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)]))
        self.users = max(self.users, users)


def gather_features(log: ClickLog, table: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """The features of each position of each list, (n, K, d); zeros beyond the end of a list."""
    if log.features is None:
        require(table is not None, NO_FEATURES)
        assert table is not None
        return np.asarray(table[np.maximum(log.items, 0)])
    if log.offered is None:
        return log.features
    rows = np.arange(len(log))[:, None]
    return np.asarray(log.features[rows, find_places(log)])


def find_places(log: ClickLog) -> NDArray[np.int64]:
    """Where each item of a list is among those on offer, (n, K); 0 beyond the end of a list."""
    if log.offered is None:
        return np.maximum(log.items, 0)
    places = np.zeros(log.items.shape, np.int64)
    for position in range(log.items.shape[1]):
        places[:, position] = (log.offered == log.items[:, position, None]).argmax(axis=1)
    return np.where(log.items == NOBODY, 0, places)


@jit
def add_lists(
    gram: NDArray[np.float64], moment: Matrix, counts: NDArray[np.int64], users: NDArray[np.int64],
    features: NDArray[np.float32], clicks: NDArray[np.bool_], looked: NDArray[np.int64],
) -> None:  # fmt: skip
    """Add what was looked at to the grams of its users, and what was clicked to their moments (Algorithm 2, 5, 6)."""
    for row in range(users.size):
        user, listed, clicked = users[row], features[row], 0
        add_examined(gram[user], moment[user], listed, looked[row], -1)
        for position in range(looked[row]):
            if clicks[row, position]:
                add_examined(gram[user], moment[user], listed, 0, position)
                clicked += 1
        counts[user, 0] += looked[row]
        counts[user, 1] += clicked
        counts[user, 2] += max(1, clicked)  # a list with several clicks counts as so many cascades
