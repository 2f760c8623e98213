"""Statistics of each user of a log, summed batch by batch."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.learning.click_log import MISSING, ClickLog
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_nearest
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, add_examined

NO_FEATURES = "this log has no features: give a table of items"


class LogSums:
    """Statistics of every user of a log, as arrays over users that grow as users appear."""

    def __init__(self, dimension: int) -> None:
        self.dimension, self.users = dimension, 0
        self.gram, self.moment = np.zeros((0, dimension, dimension)), np.zeros((0, dimension))
        self.counts = np.zeros((0, 3), np.int64)  # examined, clicks, rounds
        self.shortfall = np.zeros(0)  # clicks minus rewards

    def add(self, log: ClickLog, table: NDArray[np.float32] | None) -> None:
        """Add the examined positions of a batch; ``table`` has the features of all items unless the log has them."""
        self._grow(int(log.users.max(initial=-1)) + 1)
        rewards = round_to_nearest(log.values)
        listed = log.users, gather_features(log, table), log.clicks, log.count_looked(), rewards
        add_lists(self.gram, self.moment, self.counts, *listed)
        if log.rewards is not None:
            np.add.at(self.shortfall, log.users, (log.clicks - rewards).sum(axis=1))

    def merge(self, other: "LogSums", users: NDArray[np.int64]) -> None:
        """Add other sums; ``users`` maps their user numbers to those of this object, without repeats."""
        count = other.users
        self._grow(int(users.max(initial=-1)) + 1)
        self.gram[users] += other.gram[:count]
        self.moment[users] += other.moment[:count]
        self.counts[users] += other.counts[:count]
        self.shortfall[users] += other.shortfall[:count]

    def __getitem__(self, user: int) -> Statistics:
        looked, clicks, rounds = (int(count) for count in self.counts[user])
        shortfall = float(self.shortfall[user])
        return Statistics(self.gram[user].copy(), self.moment[user].copy(), looked, clicks, rounds, shortfall)

    def total(self) -> Statistics:
        """Return the sum over all users."""
        looked, clicks, rounds = (int(count) for count in self.counts.sum(axis=0))
        shortfall = float(self.shortfall.sum())
        return Statistics(self.gram.sum(axis=0), self.moment.sum(axis=0), looked, clicks, rounds, shortfall)

    def _grow(self, users: int) -> None:
        if users > len(self.gram):
            more = max(users, 2 * len(self.gram)) - len(self.gram)
            for name in ("gram", "moment", "counts", "shortfall"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)]))
        self.users = max(self.users, users)


def gather_features(log: ClickLog, table: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Return the features of each position, (n, K, d); those beyond the end of a list have no meaning."""
    if log.features is None:
        require(table is not None, NO_FEATURES)
        assert table is not None
        return np.asarray(table[np.maximum(log.items, 0)])
    if log.offered is None:
        return log.features
    rows = np.arange(len(log))[:, None]
    return np.asarray(log.features[rows, find_places(log)])


def find_places(log: ClickLog) -> NDArray[np.int64]:
    """Return the index of each item among those on offer, (n, K); 0 beyond the end of a list."""
    if log.offered is None:
        return np.maximum(log.items, 0)
    places = np.zeros(log.items.shape, np.int64)
    for position in range(log.items.shape[1]):
        places[:, position] = (log.offered == log.items[:, position, None]).argmax(axis=1)
    return np.where(log.items == MISSING, 0, places)


@jit
def add_lists(
    gram: NDArray[np.float64],
    moment: Matrix,
    counts: NDArray[np.int64],
    users: NDArray[np.int64],
    features: NDArray[np.float32],
    clicks: NDArray[np.bool_],
    looked: NDArray[np.int64],
    rewards: Matrix,
) -> None:
    """Add examined items to the grams of their users, and clicked items times their rewards to their moments."""
    for row in range(users.size):
        user, listed, clicked = users[row], features[row], 0
        add_examined(gram[user], listed, looked[row])
        for position in range(looked[row]):
            if clicks[row, position]:
                for k in range(moment.shape[1]):
                    moment[user, k] += rewards[row, position] * listed[position, k]
                clicked += 1
        counts[user, 0] += looked[row]
        counts[user, 1] += clicked
        counts[user, 2] += max(1, clicked)  # each click ends a cascade
