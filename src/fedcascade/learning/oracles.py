"""Oracles: from scores to a feasible list. Each declares its approximation factor alpha."""

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
    """Attributes of the items on offer besides features; constrained oracles need them."""

    categories: Categories | None = None
    costs: Costs | None = None

    def get_categories(self) -> Categories:
        if self.categories is None:
            raise ValueError("this oracle needs categories, one per item on offer: none were given")
        return self.categories

    def get_costs(self) -> Costs:
        if self.costs is None:
            raise ValueError("this oracle needs costs, one per item on offer: none were given")
        return self.costs


NO_ATTRIBUTES = ItemAttributes()


def read_attributes(items: int, categories: ArrayLike | None, costs: ArrayLike | None) -> ItemAttributes:
    """Check the attributes of the items on offer: whole numbers as categories, costs >= 0.

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
    """A rule that chooses a feasible list of at most ``length`` distinct items."""

    @property
    def length(self) -> int:
        """Maximum list length, K."""

    @property
    def alpha(self) -> float:
        """Approximation factor in (0, 1]: f(choose(w), w) >= alpha * f(best(w), w) for all weights w in [0, 1]."""

    def choose(self, scores: Scores, ties: Ties, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        """Choose a list, first position first; of equal scores, the larger tie-break comes first."""

    def best(self, weights: Scores, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:
        """Return an optimal feasible list for known weights, for the computation of regret."""


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The ``length`` best items, best first, or all if fewer are on offer. Exact: alpha is 1."""

    alpha: ClassVar[float] = 1.0
    length: int = 4

    def __post_init__(self) -> None:
        require_integer("list length", self.length)

    def choose(self, scores: Scores, ties: Ties, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:  # noqa: ARG002
        return select_top(scores, ties, self.length)

    def best(self, weights: Scores, attributes: ItemAttributes = NO_ATTRIBUTES) -> Chosen:  # noqa: ARG002
        return select_top(weights, np.zeros(weights.size, np.uint32), self.length)


@dataclass(frozen=True, kw_only=True)
class PerCategory:
    """The best items with at most ``limit`` of any category. Exact: alpha is 1.

    The reward 1 - prod(1 - w) grows with the sum of -ln(1 - w). That sum is additive over items and the lists form a
    partition matroid, so the greedy choice is optimal.

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
    """Reject a list that is empty, too long, repeats an item or has one that is not on offer."""
    listed = chosen.tolist()
    require(1 <= len(listed) <= length, f"a list must hold 1 to {length} items, got {len(listed)}")
    require(len(set(listed)) == len(listed), f"a list must hold distinct items, got {listed}")
    require(min(listed) >= 0 and max(listed) < items, f"a list must name items 0..{items - 1}, got {listed}")


@jit
def select_top(scores: Scores, ties: Ties, length: int) -> Chosen:
    """Select the items of the largest scores in falling order; ties by the larger tie-break, then by index."""
    chosen = np.empty(min(length, scores.size), np.intp)
    select_top_into(scores, ties, chosen)
    return chosen


@jit
def select_per_category(scores: Scores, ties: Ties, categories: Categories, limit: int, length: int) -> Chosen:
    """Select items in the order of ``select_top``, with at most ``limit`` of any category."""
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
    """Fill ``chosen`` in the order of ``select_top``; it is at most as long as ``scores``."""
    size, filled = chosen.size, 0
    for item in range(scores.size):
        if filled == size and not _is_before(scores, ties, item, chosen[size - 1]):
            continue
        place = filled if filled < size else size - 1
        while place > 0 and _is_before(scores, ties, item, chosen[place - 1]):
            chosen[place] = chosen[place - 1]
            place -= 1
        chosen[place] = item
        filled = min(filled + 1, size)


@jit_inline
def _is_before(scores: Scores, ties: Ties, item: int, listed: int) -> bool:
    """Return whether ``item`` comes before a listed item of lower index."""
    if scores[item] != scores[listed]:
        return bool(scores[item] > scores[listed])
    return bool(ties[item] > ties[listed])
