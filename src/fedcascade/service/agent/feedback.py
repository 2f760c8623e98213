"""Read what an application says of a list: which positions or items were clicked."""

from collections.abc import Iterable
from types import EllipsisType
from typing import SupportsIndex

from fedcascade.checks import read_index, require

Positions = SupportsIndex | Iterable[SupportsIndex] | None


def read_positions(
    items: list[int], clicked: Positions | EllipsisType, clicked_item: Positions | EllipsisType
) -> list[int]:
    """The positions that were clicked, from positions or from items; ``...`` is what was not given.

    >>> read_positions([7, 5, 9], 1, ...), read_positions([7, 5, 9], ..., [9, 7]), read_positions([7, 5, 9], None, ...)
    ([1], [2, 0], [])
    """
    is_one = isinstance(clicked, EllipsisType) != isinstance(clicked_item, EllipsisType)
    require(is_one, "say either clicked=... or clicked_item=..., with None if nothing was clicked")
    if not isinstance(clicked, EllipsisType):
        return _read_all("clicked", clicked)
    assert not isinstance(clicked_item, EllipsisType)
    chosen = _read_all("clicked_item", clicked_item)
    for item in chosen:
        require(item in items, f"clicked_item must be on the list, which shows items {items}, got {item}")
    return [items.index(item) for item in chosen]


def _read_all(name: str, given: Positions) -> list[int]:
    """One whole number or several as a list; an array of truth values is refused as each of its elements is."""
    if given is None:
        return []
    is_several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0 and not isinstance(given, str | bytes)
    return [read_index(name, value) for value in (given if is_several else [given])]  # type: ignore[union-attr]
