"""Names of users and items, numbered in the order in which they first appear in a log."""

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray


class Names:
    """Numbers for names; grows with every batch unless it is closed.

    >>> names = Names()
    >>> names.number(pl.Series(["b", "a", "b"])).tolist(), list(names)
    ([0, 1, 0], ['b', 'a'])
    """

    def __init__(self, names: Iterable[str] = (), *, closed: bool = False) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}
        self.closed = closed

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def find(self, name: str) -> int | None:
        """The number of a name, if it has one."""
        return self._numbers.get(name)

    def number_all(self, names: Iterable[str]) -> NDArray[np.int64]:
        """Return the number of each name; those that have none get one, in their order."""
        return np.array([self._numbers.setdefault(name, len(self._numbers)) for name in names], np.int64)

    def number(self, names: pl.Series) -> NDArray[np.int64]:
        """The number of each name; new ones are added, or are -1 where the names are closed."""
        seen = names.unique(maintain_order=True)
        known = self._numbers
        if self.closed:
            numbers = [known.get(name, -1) for name in seen.to_list()]
        else:
            numbers = [known.setdefault(name, len(known)) for name in seen.to_list()]
        table = pl.DataFrame({"name": seen, "number": pl.Series(numbers, dtype=pl.Int64)})
        joined = names.to_frame("name").join(table, on="name", how="left", maintain_order="left", nulls_equal=True)
        return joined["number"].to_numpy()
