"""Random draws that several kinds of cases share."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.protocol.wire import pack_numbers

Case = dict[str, Any]
Draws = np.random.Generator


def draw_items(draws: Draws, items: int, dimension: int) -> NDArray[np.float64]:
    """Draw features of norm at most 1, off the grid; some rows are equal, for ties, and some are zero."""
    rows = draws.normal(size=(items, dimension))
    rows *= (draws.random(items) ** 0.2 / np.maximum(np.linalg.norm(rows, axis=1), 1e-12))[:, None]
    rows[draws.random(items) < 0.05] = 0.0
    for item in range(1, items):
        if draws.random() < 0.15:
            rows[item] = rows[int(draws.integers(item))]
    return rows


def draw_words(draws: Draws, count: int) -> NDArray[np.uint32]:
    """Draw tie-breaks, some of them equal."""
    return draws.integers(0, 2**32 if draws.random() < 0.7 else 3, count, dtype=np.uint32)


def draw_click(draws: Draws, length: int) -> int | None:
    """Draw a position, or None in a third of the cases."""
    return None if draws.random() < 1 / 3 else int(draws.integers(length))


def draw_statistics(draws: Draws, dimension: int, rounds: int) -> Statistics:
    """Draw the statistics of rounds with lists of up to five items."""
    statistics = Statistics.zero(dimension)
    for _ in range(rounds):
        listed = round_to_grid(draw_items(draws, int(draws.integers(1, 6)), dimension))
        statistics = statistics.observe(listed, draw_click(draws, len(listed)))
    return statistics


def compute_or_refuse(compute: Callable[[], Any]) -> Any:
    """Return the result of a call as lists of numbers; None if it rejects its input."""
    try:
        return np.asarray(compute()).tolist()
    except ValueError:
        return None


def describe_statistics(statistics: Statistics) -> Case:
    """Return statistics for JSON: counts, and the bytes of gram and moment in hexadecimal digits."""
    counts = {"count": statistics.count, "clicks": statistics.clicks, "rounds": statistics.rounds}
    return counts | {"dimension": statistics.dimension, "numbers": pack_numbers(statistics).hex()}
