"""Oracles: from scores to a list. Each declares its alpha, the share of the optimum that it guarantees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require, require_integer
from fedcascade.numerics.jit import jit, jit_inline

Scores = NDArray[np.float64]
Ties = NDArray[np.uint32]
Chosen = NDArray[np.intp]


class Oracle(Protocol):
    """Chooses a list of at most ``length`` distinct items."""

    @property
    def length(self) -> int:
        """K, the longest list it may choose."""

    @property
    def alpha(self) -> float:
        """f(choose(w), w) >= alpha * f(best(w), w) for all weights w in [0, 1]; in (0, 1]."""

    def choose(self, scores: Scores, ties: Ties) -> Chosen:
        """The list to play, first position first; equal scores go by the larger tie-break."""

    def best(self, weights: Scores) -> Chosen:
        """An optimal list for known weights, against which regret is counted."""


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The ``length`` best items, best first; all of them where fewer are on offer. Exact: alpha is 1."""

    alpha: ClassVar[float] = 1.0
    length: int = 4

    def __post_init__(self) -> None:
        require_integer("list length", self.length)

    def choose(self, scores: Scores, ties: Ties) -> Chosen:
        return select_top(scores, ties, self.length)

    def best(self, weights: Scores) -> Chosen:
        """The best items; which of equal ones does not matter to the reward."""
        return select_top(weights, np.zeros(weights.size, np.uint32), self.length)


@dataclass(frozen=True, kw_only=True)
class PerCategory:
    """The best items with at most ``limit`` of any category: a partition matroid, where greedy is exact.

    The reward 1 - prod(1 - w) grows with the sum of -ln(1 - w), which is additive over items, so taking the
    best item that still fits, again and again, is optimal.

    >>> oracle = PerCategory(length=3, categories=(0, 0, 1, 1))
    >>> oracle.choose(np.array([0.9, 0.8, 0.1, 0.3]), np.zeros(4, np.uint32)).tolist()
    [0, 3]
    """

    alpha: ClassVar[float] = 1.0
    length: int = 4
    categories: Sequence[int]
    limit: int = 1

    def __post_init__(self) -> None:
        require_integer("list length", self.length)
        require_integer("limit", self.limit)

    def choose(self, scores: Scores, ties: Ties) -> Chosen:
        items, named = scores.size, len(self.categories)
        require(items <= named, f"categories must name a category for each of {items} items, got {named}")
        chosen: list[int] = []
        chosen_of: dict[int, int] = {}  # items chosen of each category
        for item in select_top(scores, ties, scores.size):
            category = self.categories[item]
            if len(chosen) < self.length and chosen_of.get(category, 0) < self.limit:
                chosen_of[category] = chosen_of.get(category, 0) + 1
                chosen.append(int(item))
        return np.array(chosen, np.intp)

    def best(self, weights: Scores) -> Chosen:
        return self.choose(weights, np.zeros(weights.size, np.uint32))


def check_list(chosen: Chosen, items: int, length: int) -> None:
    """Refuse a list that is empty, too long, repeats an item or names one that is not on offer."""
    require(1 <= chosen.size <= length, f"a list must hold 1 to {length} items, got {chosen.size}")
    listed = set(chosen.tolist())
    require(len(listed) == chosen.size, f"a list must hold distinct items, got {chosen.tolist()}")
    require(min(listed) >= 0 and max(listed) < items, f"a list must name items 0..{items - 1}, got {chosen.tolist()}")


@jit
def select_top(scores: Scores, ties: Ties, length: int) -> Chosen:
    """The items of the largest scores in falling order; equal scores by the larger tie-break, then by index."""
    chosen = np.empty(min(length, scores.size), np.intp)
    select_top_into(scores, ties, chosen)
    return chosen


@jit_inline
def select_top_into(scores: Scores, ties: Ties, chosen: Chosen) -> None:
    """Fill ``chosen``, which is at most as long as ``scores``, in the order of ``select_top``."""
    size, filled = chosen.size, 0
    for item in range(scores.size):
        if filled == size and not _goes_before(scores, ties, item, chosen[size - 1]):
            continue
        place = filled if filled < size else size - 1
        while place > 0 and _goes_before(scores, ties, item, chosen[place - 1]):
            chosen[place] = chosen[place - 1]
            place -= 1
        chosen[place] = item
        filled = min(filled + 1, size)


@jit_inline
def _goes_before(scores: Scores, ties: Ties, item: int, listed: int) -> bool:
    """Whether ``item``, the later index, goes before an item that is listed already."""
    if scores[item] != scores[listed]:
        return bool(scores[item] > scores[listed])
    return bool(ties[item] > ties[listed])
