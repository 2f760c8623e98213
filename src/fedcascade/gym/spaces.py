"""The space of ranked lists: distinct items, best first."""

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.learning.click_log import NOBODY

Action = NDArray[np.int64]


class RankedLists(MultiDiscrete):
    """Lists of ``length`` distinct items out of ``items``; where fewer may be on offer, filled up with -1 at the end.

    ``sample`` draws from the first ``fewest`` items, which are always on offer. With ``copies``, an element has so many
    lists, a row each: the space of a vector of environments.

    >>> space = RankedLists(items=5, length=3, seed=1)
    >>> space.contains(np.array([4, 0, 2])), space.contains(np.array([4, 0, 4])), len(set(space.sample().tolist()))
    (True, False, 3)
    """

    def __init__(
        self,
        *,
        items: int,
        length: int,
        fewest: int | None = None,
        copies: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.items, self.length, self.copies = items, length, copies
        self.fewest = items if fewest is None else fewest
        first = 0 if self.fewest >= length else NOBODY
        sizes = np.full((length,) if copies is None else (copies, length), items - first, np.int64)
        super().__init__(sizes, np.int64, seed, np.full_like(sizes, first))

    def sample(self, mask: Any = None, probability: Any = None) -> Action:
        """Draw a list; ``mask`` marks the items on offer with 1, where they are not the first ones."""
        require(probability is None, "a ranked list is drawn with a mask, or uniformly: give no probability")
        offered = np.arange(self.fewest) if mask is None else np.flatnonzero(np.asarray(mask))
        lists = np.full(self.nvec.shape, NOBODY, np.int64)
        for row in lists.reshape(-1, self.length):
            chosen = self.np_random.permutation(offered)[: self.length]
            row[: chosen.size] = chosen
        return lists

    def contains(self, x: Any) -> bool:
        """Whether each list names distinct items, with -1 at its end alone."""
        return bool(super().contains(x)) and all(map(is_list_of_distinct, np.reshape(x, (-1, self.length))))

    def __repr__(self) -> str:
        copies = "" if self.copies is None else f", copies={self.copies}"
        return f"RankedLists(items={self.items}, length={self.length}{copies})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankedLists) and super().__eq__(other) and self.fewest == other.fewest

    __hash__ = None  # type: ignore[assignment]


def is_list_of_distinct(row: Action) -> bool:
    """Whether a list has at least one item, names none twice, and is filled up at its end alone."""
    shown = row[row != NOBODY]
    return bool(shown.size > 0 and (row[: shown.size] != NOBODY).all() and np.unique(shown).size == shown.size)


@batch_space.register(RankedLists)
def _batch_lists(space: RankedLists, n: int = 1) -> RankedLists:
    random = deepcopy(space.np_random)
    return RankedLists(items=space.items, length=space.length, fewest=space.fewest, copies=n, seed=random)
