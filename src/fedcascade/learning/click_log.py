"""Click logs in memory, as columns: lists that were shown and their clicks; how often they had each item."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require

MOST_PADDED = 1 << 26  # items, counting the padding; a log with few short lists may have more
MISSING = -1  # pads short lists, and marks unknown values


@dataclass(frozen=True, eq=False, kw_only=True)
class ClickLog:
    """A batch of a log: n lists with up to K positions. Columns that the log lacks are None.

    Users and items are numbers; ``data.logs`` maps them to names.

    >>> clicks = np.array([[False, True], [False, False]])
    >>> log = ClickLog(users=np.array([0, 1]), items=np.array([[3, 1], [2, -1]]), clicks=clicks)
    >>> len(log), log.lengths.tolist(), log.count_looked().tolist()
    (2, [2, 1], [2, 1])
    """

    users: NDArray[np.int64]  # (n,)
    items: NDArray[np.int64]  # (n, K), padded with MISSING
    clicks: NDArray[np.bool_]  # (n, K)
    rewards: NDArray[np.float64] | None = None  # (n, K), in [0, 1], 0 without a click; None: 1 for each click
    times: NDArray[np.float64] | None = None  # (n,), increasing
    looked: NDArray[np.int64] | None = None  # (n,), number of positions that the user examined, or MISSING
    propensity: NDArray[np.float64] | None = None  # (n,), probability of the list
    propensities: NDArray[np.float64] | None = None  # (n, K), of each item given those above it; padded with 1
    offered: NDArray[np.int64] | None = None  # (n, M), the items on offer, padded; None: all items of the table
    features: NDArray[np.float32] | None = None  # (n, M or K, d), of the items on offer, or of those in the list

    def __len__(self) -> int:
        return len(self.users)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of items of each list."""
        return np.asarray((self.items != MISSING).sum(axis=1))

    @property
    def list_propensity(self) -> NDArray[np.float64] | None:
        """Probability of each list, given or computed from its positions."""
        if self.propensity is not None or self.propensities is None:
            return self.propensity
        product: NDArray[np.float64] = self.propensities.prod(axis=1)
        return product

    @property
    def values(self) -> NDArray[np.float64]:
        """The reward of each position, (n, K)."""
        return self.clicks.astype(np.float64) if self.rewards is None else self.rewards

    def count_looked(self) -> NDArray[np.int64]:
        """Count the examined positions of each list; if unknown, up to the last click or to the end."""
        positions = np.arange(1, self.items.shape[1] + 1)
        last = np.where(self.clicks, positions, 0).max(axis=1, initial=0)
        assumed = np.where(last > 0, last, self.lengths)
        return assumed if self.looked is None else np.where(self.looked == MISSING, assumed, self.looked)

    def select(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "ClickLog":
        """Return some of the rows."""
        columns: dict[str, Any] = {column.name: getattr(self, column.name) for column in fields(self)}
        chosen: dict[str, Any] = {name: None if column is None else column[rows] for name, column in columns.items()}
        return ClickLog(**chosen)


def concatenate(batches: Sequence[ClickLog]) -> ClickLog:
    """Concatenate batches; lists are padded to the longest, and a column that one batch lacks is dropped."""
    require(len(batches) > 0, "a log must have at least one batch")
    longest, lists = max(batch.items.shape[1] for batch in batches), sum(map(len, batches))
    filled = sum(int(batch.lengths.sum()) for batch in batches)
    is_even = longest * lists <= max(MOST_PADDED, 16 * filled)
    require(is_even, f"a list of {longest} items would pad {lists} lists to {longest * lists:.3g}: leave it out")
    joined: dict[str, Any] = {}
    for column in fields(ClickLog):
        parts = [getattr(batch, column.name) for batch in batches]
        joined[column.name] = None if any(part is None for part in parts) else _stack(column.name, parts)
    return ClickLog(**joined)


FILLED = {"items": MISSING, "clicks": False, "rewards": 0.0, "propensities": 1.0, "offered": MISSING, "features": 0.0}


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


@dataclass(frozen=True, eq=False)
class Exposure:
    """The number of times that each item of a catalogue was shown, by its number.

    >>> even, uneven = Exposure(np.array([5, 5, 5, 5])), Exposure(np.array([0, 0, 0, 20]))
    >>> even.coverage, even.gini, uneven.coverage, uneven.gini
    (1.0, 0.0, 0.25, 0.75)
    """

    shown: NDArray[np.int64]

    def add(self, items: NDArray[np.int64]) -> None:
        """Count items by number; a negative one is none, and without a catalogue nothing is counted."""
        if self.shown.size:
            self.shown[:] += np.bincount(items[items >= 0], minlength=self.shown.size)

    @property
    def coverage(self) -> float:
        """Share of the catalogue that was shown at least once."""
        return float(np.mean(self.shown > 0))

    @property
    def gini(self) -> float:
        """Gini coefficient: 0 if all items are shown equally often, near 1 if few items have all positions."""
        items, total = self.shown.size, int(self.shown.sum())
        ranked = np.sort(self.shown) @ np.arange(1, items + 1)
        return 2.0 * float(ranked) / (items * total) - (items + 1) / items if total else 0.0

    def describe(self) -> dict[str, Any]:
        """Return coverage, Gini coefficient and counts, for JSON."""
        return {"coverage": self.coverage, "gini": self.gini, "shown": self.shown.tolist()}

    def format(self) -> tuple[str, str]:
        return f"{self.coverage:.0%}", f"{self.gini:.2f}"
