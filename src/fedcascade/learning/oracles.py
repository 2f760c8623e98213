"""Oracles: from scores to a feasible list. Each declares its alpha, the share of the optimum that it guarantees."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import require, require_integer
from fedcascade.numerics.jit import jit, jit_inline

Scores = NDArray[np.float64]
Ties = NDArray[np.uint32]
Chosen = NDArray[np.intp]
Categories = NDArray[np.int64]
Costs = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ItemAttributes:
    """What beside its features is known of each item on offer; with it, an oracle's limits say what A_t is."""

    categories: Categories | None = None
    costs: Costs | None = None

    def get_categories(self) -> Categories:
        require(self.categories is not None, "this oracle needs categories, one per item on offer: none were given")
        assert self.categories is not None
        return self.categories

    def get_costs(self) -> Costs:
        require(self.costs is not None, "this oracle needs costs, one per item on offer: none were given")
        assert self.costs is not None
        return self.costs


NO_ATTRIBUTES = ItemAttributes()


def read_attributes(items: int, categories: ArrayLike | None, costs: ArrayLike | None) -> ItemAttributes:
    """Check what a caller says of the items on offer: a whole number and a cost >= 0 for each, where they are given.

    >>> read_attributes(2, [0, 3], None).get_categories().tolist()
    [0, 3]
    """
    kinds = None if categories is None else np.asarray(categories)
    if kinds is not None:
        whole = kinds.shape == (items,) and kinds.dtype.kind in "iu"
        require(whole, f"categories must be a whole number for each of {items} items")
    prices = None if costs is None else np.asarray(costs, np.float64)
    if prices is not None:
        good = prices.shape == (items,) and bool(np.all(np.isfinite(prices) & (prices >= 0)))
        require(good, f"costs must be a finite number >= 0 for each of {items} items")
    return ItemAttributes(None if kinds is None else kinds.astype(np.int64), prices)


class Oracle(Protocol):
    """Chooses a list of at most ``length`` distinct items that is feasible for what is known of them."""

    @property
    def length(self) -> int:
        """K, the longest list it may choose."""

    @property
    def alpha(self) -> float:
        """f(choose(w), w) >= alpha * f(best(w), w) for all weights w in [0, 1]; in (0, 1]."""

    def choose(self, scores: Scores, ties: Ties, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        """The list to play, first position first; equal scores go by the larger tie-break."""

    def best(self, weights: Scores, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        """An optimal feasible list for known weights, against which regret is counted."""


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The ``length`` best items, best first; all of them where fewer are on offer. Exact: alpha is 1."""

    alpha: ClassVar[float] = 1.0
    length: int = 4

    def __post_init__(self) -> None:
        require_integer("list length", self.length)

    def choose(self, scores: Scores, ties: Ties, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:  # noqa: ARG002
        return select_top(scores, ties, self.length)

    def best(self, weights: Scores, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:  # noqa: ARG002
        """The best items; which of equal ones does not matter to the reward."""
        return select_top(weights, np.zeros(weights.size, np.uint32), self.length)


@dataclass(frozen=True, kw_only=True)
class PerCategory:
    """The best items with at most ``limit`` of any category: a partition matroid, where greedy is exact, so alpha is 1.

    The reward 1 - prod(1 - w) grows with the sum of -ln(1 - w), which is additive over items, so taking the
    best item that still fits, again and again, is optimal.

    >>> items = read_attributes(4, categories=[0, 0, 1, 1], costs=None)
    >>> PerCategory(length=3).choose(np.array([0.9, 0.8, 0.1, 0.3]), np.zeros(4, np.uint32), items).tolist()
    [0, 3]
    """

    alpha: ClassVar[float] = 1.0
    length: int = 4
    limit: int = 1

    def __post_init__(self) -> None:
        require_integer("list length", self.length)
        require_integer("limit", self.limit)

    def choose(self, scores: Scores, ties: Ties, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        return select_per_category(scores, ties, attributes.get_categories(), self.limit, self.length)

    def best(self, weights: Scores, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        return self.choose(weights, np.zeros(weights.size, np.uint32), attributes)


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


@jit
def select_per_category(scores: Scores, ties: Ties, categories: Categories, limit: int, length: int) -> Chosen:
    """The items of the largest scores, in the order of ``select_top``, with at most ``limit`` of any category."""
    chosen, count = np.empty(min(length, scores.size), np.intp), 0
    for item in select_top(scores, ties, scores.size):
        alike = 0
        for listed in chosen[:count]:
            alike += categories[listed] == categories[item]
        if count < chosen.size and alike < limit:
            chosen[count] = item
            count += 1
    return chosen[:count]


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
