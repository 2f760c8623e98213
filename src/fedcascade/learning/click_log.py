"""Lists that were shown and what users clicked, as columns: what a log is in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require

NOBODY = -1  # fills up lists that are shorter than others, and stands for 'how far is not known'


@dataclass(frozen=True, eq=False, kw_only=True)
class ClickLog:
    """A batch of a log: one row per list that was shown, n in all, with up to K positions.

    Users and items are numbers; ``data.logs`` keeps the names that they stand for. None means: not in this log.

    >>> clicks = np.array([[False, True], [False, False]])
    >>> log = ClickLog(users=np.array([0, 1]), items=np.array([[3, 1], [2, -1]]), clicks=clicks)
    >>> len(log), log.lengths.tolist(), log.count_looked().tolist()
    (2, [2, 1], [2, 1])
    """

    users: NDArray[np.int64]  # (n,)
    items: NDArray[np.int64]  # (n, K), first position first, filled up with NOBODY
    clicks: NDArray[np.bool_]  # (n, K)
    times: NDArray[np.float64] | None = None  # (n,), seconds or any number that grows with time
    looked: NDArray[np.int64] | None = None  # (n,), how many positions the user looked at; NOBODY where not known
    propensity: NDArray[np.float64] | None = None  # (n,), the chance that just this list was shown
    propensities: NDArray[np.float64] | None = None  # (n, K), that of each item, given those above it; 1 beyond the end
    offered: NDArray[np.int64] | None = None  # (n, M), the items on offer, filled up; None: all items of the table
    features: NDArray[np.float32] | None = None  # (n, M or K, d), of the items on offer, or else of those in the list

    def __len__(self) -> int:
        return len(self.users)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many items each list has."""
        return np.asarray((self.items != NOBODY).sum(axis=1))

    @property
    def list_propensity(self) -> NDArray[np.float64] | None:
        """The chance of each list, from its own column or from those of its positions."""
        if self.propensity is not None or self.propensities is None:
            return self.propensity
        product: NDArray[np.float64] = self.propensities.prod(axis=1)
        return product

    def count_looked(self) -> NDArray[np.int64]:
        """How many positions each user looked at; where the log does not say, a cascade: to the last click, or all."""
        positions = np.arange(1, self.items.shape[1] + 1)
        last = np.where(self.clicks, positions, 0).max(axis=1, initial=0)
        assumed = np.where(last > 0, last, self.lengths)
        return assumed if self.looked is None else np.where(self.looked == NOBODY, assumed, self.looked)

    def select(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "ClickLog":
        """Some of the rows."""
        columns: dict[str, Any] = {column.name: getattr(self, column.name) for column in fields(self)}
        chosen: dict[str, Any] = {name: None if column is None else column[rows] for name, column in columns.items()}
        return ClickLog(**chosen)


def concatenate(batches: Sequence[ClickLog]) -> ClickLog:
    """One log from several batches; lists are filled up to the longest, and what one batch lacks is left out."""
    require(len(batches) > 0, "a log must have at least one batch")
    joined: dict[str, Any] = {}
    for column in fields(ClickLog):
        parts = [getattr(batch, column.name) for batch in batches]
        joined[column.name] = None if any(part is None for part in parts) else _stack(column.name, parts)
    return ClickLog(**joined)


FILLED = {"items": NOBODY, "clicks": False, "propensities": 1.0, "offered": NOBODY, "features": 0.0}


def _stack(name: str, parts: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    stacked = np.full((sum(map(len, parts)), width, *parts[0].shape[2:]), FILLED[name], parts[0].dtype)
    row = 0
    for part in parts:
        stacked[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    return stacked
