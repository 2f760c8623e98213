"""Exposure: how often each item of a catalogue was shown."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
