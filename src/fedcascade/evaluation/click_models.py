"""Click models, estimated from a log and compared by perplexity on held-out lists.

- ``cascade``: a user examines from the top and stops at the first click (Craswell et al. 2008).
- ``dcm``: after a click at position k, a user continues with probability lambda_k (Guo et al. 2009).
- ``dbn``: after a click, a user stops with the satisfaction of the item as probability (Chapelle and Zhang 2009).
- ``pbm``: a user examines position k with probability gamma_k, regardless of clicks (Richardson 2007).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import PROBABILITY, require
from fedcascade.data.logs.reader import slice_rows
from fedcascade.learning.click_log import MISSING, ClickLog, concatenate

Shares = NDArray[np.float64]
STEPS = 50  # of expectation maximisation
MOST_LISTS = 500_000  # for estimation
LEAST = 1e-6  # smallest probability of a click or of none


@dataclass(frozen=True, eq=False)
class ClickModel:
    """The estimated parameters of a model.

    ``attraction`` is by item. ``going_on`` is lambda of ``dcm`` or gamma of ``pbm``, by position. ``satisfaction`` of
    ``dbn`` is by item.
    """

    name: str
    attraction: Shares
    going_on: Shares | None = None
    satisfaction: Shares | None = None

    def predict(self, items: NDArray[np.int64]) -> Shares:
        """Return the click probability of each position of lists (n, K); meaningless beyond the end of a list."""
        attraction = self.attraction[np.maximum(items, 0)]
        looked, going_on = np.ones(items.shape), np.zeros(items.shape)
        if self.going_on is not None:
            going_on[:] = self.going_on[: items.shape[1]]
        if self.satisfaction is not None:
            going_on = 1.0 - self.satisfaction[np.maximum(items, 0)]
        if self.name == "pbm":
            looked = going_on
        else:
            np.cumprod((1.0 - attraction + attraction * going_on)[:, :-1], axis=1, out=looked[:, 1:])
        return np.clip(looked * attraction, LEAST, 1.0 - LEAST)


def _share(part: Shares, whole: Shares) -> Shares:
    """Return a share, smoothed by one success in two trials."""
    shares: Shares = (part + 1.0) / (whole + 2.0)
    return shares


def _count(log: ClickLog, values: NDArray[np.generic]) -> Shares:
    """Sum values (n, K) by item and position."""
    items, positions = int(log.items.max()) + 1, log.items.shape[1]
    there = log.items != MISSING
    cells = (log.items * positions + np.arange(positions))[there]
    sums = np.bincount(cells, values[there].astype(np.float64), items * positions)
    return np.asarray(sums, np.float64).reshape(items, positions)


def fit_cascade(log: ClickLog) -> ClickModel:
    """Fit attraction: first clicks among positions down to the first click."""
    until: NDArray[np.bool_] = np.asarray(np.cumsum(log.clicks, axis=1) - log.clicks) == 0
    return ClickModel("cascade", _share(_count(log, log.clicks & until).sum(axis=1), _count(log, until).sum(axis=1)))


def fit_dcm(log: ClickLog) -> ClickModel:
    """Fit attraction by item, and by position the probability to continue after a click."""
    attraction, going_on = _fit_chain(log, axis=0)
    return ClickModel("dcm", attraction, going_on=going_on)


def fit_dbn(log: ClickLog) -> ClickModel:
    """Fit attraction and satisfaction by item."""
    attraction, going_on = _fit_chain(log, axis=1)
    return ClickModel("dbn", attraction, satisfaction=1.0 - going_on)


def _fit_chain(log: ClickLog, axis: int) -> tuple[Shares, Shares]:
    """Fit attraction by item, and the probability to continue after a click, by position (axis 0) or item (axis 1).

    The latent variable of expectation maximisation is whether a user stopped at the last click.
    """
    place, there = np.arange(log.items.shape[1]), log.items != MISSING
    later: NDArray[np.int64] = np.cumsum(log.clicks[:, ::-1], axis=1)[:, ::-1] - log.clicks  # clicks below a position
    has_click: NDArray[np.bool_] = np.asarray(log.clicks.any(axis=1))
    last, below = log.clicks & (later == 0), there & (later == 0) & ~log.clicks & has_click[:, None]
    rows, columns = np.nonzero(last)
    final = log.items[rows, columns] if axis == 1 else place[columns]
    clicks, followed = _count(log, log.clicks), _count(log, log.clicks & ~last)
    attraction = _share(clicks.sum(axis=1), _count(log, there).sum(axis=1))
    stay = np.full(clicks.shape[1 - axis], 0.5)
    for _ in range(STEPS):
        missed = np.where(below, 1.0 - attraction[np.maximum(log.items, 0)], 1.0).prod(axis=1)[rows]
        went_on = stay[final] * missed / (stay[final] * missed + 1.0 - stay[final])
        looked = np.where(below, 0.0, 1.0)
        looked[rows] += below[rows] * went_on[:, None]
        attraction = _share(clicks.sum(axis=1), _count(log, looked).sum(axis=1))
        stay = _share(followed.sum(axis=axis) + np.bincount(final, went_on, stay.size), clicks.sum(axis=axis))
    return attraction, stay


def fit_pbm(log: ClickLog) -> ClickModel:
    """Fit attraction by item and examination by position, by expectation maximisation."""
    shown, clicked = _count(log, np.ones(log.items.shape)), _count(log, log.clicks)
    attraction, looked = np.full(len(shown), 0.5), np.linspace(1.0, 0.5, shown.shape[1])
    for _ in range(STEPS):
        both = looked[None, :] * attraction[:, None]
        missed = (shown - clicked) / (1.0 - np.minimum(both, 1.0 - LEAST))
        attraction = _share((clicked + missed * attraction[:, None] * (1.0 - looked)).sum(axis=1), shown.sum(axis=1))
        looked = _share((clicked + missed * looked * (1.0 - attraction[:, None])).sum(axis=0), shown.sum(axis=0))
        scale = looked.max()  # only products are identified: set the largest examination probability to 1
        looked, attraction = looked / scale, np.minimum(attraction * scale, 1.0 - LEAST)
    return ClickModel("pbm", attraction, going_on=looked)


MODELS: Mapping[str, Callable[[ClickLog], ClickModel]] = {
    "cascade": fit_cascade,
    "dcm": fit_dcm,
    "dbn": fit_dbn,
    "pbm": fit_pbm,
}


class Fit(NamedTuple):
    """A model, and its perplexity on held-out lists by position and on average. 1 is certain, 2 a fair coin."""

    model: ClickModel
    by_position: Shares
    perplexity: float


def compare_models(batches: Callable[[], Iterator[ClickLog]], lists: int, *, train: float) -> list[Fit]:
    """Estimate all models on the first share of a log (at most ``MOST_LISTS``), and compare them on the rest.

    The best model comes first.
    """
    PROBABILITY.check("train", train)
    split = int(train * lists)
    require(0 < split < lists, f"a log of {lists} lists is too short to compare models")
    log = concatenate([batch for _, batch in slice_rows(batches(), 0, min(split, MOST_LISTS))])
    models = [fit(log) for fit in MODELS.values()]
    positions, known_items = log.items.shape[1], int(log.items.max()) + 1
    surprise, shown = np.zeros((len(models), positions)), np.zeros(positions)
    for _, held in slice_rows(batches(), split):
        known = (held.items[:, :positions] != MISSING) & (held.items[:, :positions] < known_items)
        shown[: known.shape[1]] += known.sum(axis=0)
        items = np.where(known, held.items[:, :positions], 0)
        for place, model in enumerate(models):
            chances = model.predict(items)
            seen = np.where(held.clicks[:, :positions], chances, 1.0 - chances)
            surprise[place, : known.shape[1]] -= np.where(known, np.log2(seen), 0.0).sum(axis=0)
    by_position = 2.0 ** (surprise / np.maximum(shown, 1.0))
    fits = [Fit(model, row, float(row.mean())) for model, row in zip(models, by_position, strict=True)]
    return sorted(fits, key=lambda fit: fit.perplexity)
