"""The base of environments with clustered users: arrivals, items on offer, clicks and random draws."""

import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require, require_integer
from fedcascade.environments import draws
from fedcascade.environments.behaviours import Behaviour, Logistic, compute_weights
from fedcascade.environments.history import History, Moment
from fedcascade.environments.options import ClusteredOptions
from fedcascade.learning.oracles import ItemAttributes
from fedcascade.numerics import streams

_this_thread = threading.local()


class Clustered:
    """An ``Environment`` in which clicks follow the theta of each user; all draws come from one seed.

    ``history`` holds thetas and clusters by round; the attributes ``clusters`` and ``thetas`` are those of round 1.
    Items are columns of ``catalogue``, or random (and possibly ``lifted``) without one. ``link`` maps <theta, x> to a
    probability; None clips it.
    """

    categories = 0
    has_costs = False
    value_thetas: NDArray[np.float64] | None = None  # of each cluster: the mean reward of a click is <theta, x>

    def __init__(
        self,
        options: ClusteredOptions,
        *,
        seed: int,
        history: History,
        lifted: bool,
        catalogue: NDArray[np.float32] | None = None,
        link: Logistic | None = None,
    ) -> None:
        self.seed, self.options = np.uint64(seed), options
        self.behaviour: Behaviour | None = None  # None is the cascade
        if options.clicks != "cascade":
            level = {} if options.click_level is None else {"level": options.click_level}
            self.behaviour = Behaviour(model=options.clicks, **level)
        self.link = link
        self.history = history
        first = history.find_moment(1)
        self.thetas, self.clusters = first.thetas, first.clusters
        self.users, self.dimension = first.thetas.shape
        self.item_range = self.fewest_items, self.most_items = options.item_range
        self.lifted = lifted
        self.catalogue = np.empty((self.dimension, 0), np.float32) if catalogue is None else catalogue
        offered, most = self.catalogue.shape[1], self.most_items
        require(offered == 0 or most <= offered, f"items must be <= {offered}, the size of the catalogue, got {most}")
        self._arrival_weights = compute_arrival_weights(self.users, options.arrivals)
        self._arrival_steps = first, compute_arrival_steps(self._arrival_weights * first.present)

    def __repr__(self) -> str:
        shown = {name: getattr(self.options, name) for name in ("users", "clusters", "dimension", "items")}
        values = {each: getattr(self.options, each.name) for each in fields(self.options)}
        shown |= {each.name: value for each, value in values.items() if value != each.default}
        words = [f"{name}={value!r}" for name, value in shown.items()]
        return f"{type(self).__name__}({', '.join([*words, f'seed={self.seed}'])})"

    def find_moment(self, round_: int) -> Moment:
        """Return the population in a round."""
        return self.history.find_moment(round_)

    def get_thetas(self, round_: int) -> NDArray[np.float64]:
        return self.history.find_moment(round_).thetas

    def count_unchanged_rounds(self, round_: int, most: int) -> int:
        """Count the rounds from ``round_`` on without a change of the population, up to ``most``."""
        return min(most, self.history.find_next(round_) - round_)

    def with_other_rounds(self, seed: int) -> Self:
        """Return an environment with the same users and other draws of arrivals, items and clicks."""
        check_seed(seed)
        other = copy(self)
        other.seed = np.uint64(seed)
        return other

    def arrival(self, round_: int) -> int:
        return int(self.arrivals(round_, 1)[0])

    def arrivals(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the users of ``count`` rounds from ``first`` on."""
        users, done = np.empty(count, np.int64), 0
        while done < count:
            part = self.count_unchanged_rounds(first + done, count - done)
            moment = self.history.find_moment(first + done)
            if moment is not self._arrival_steps[0]:
                self._arrival_steps = moment, compute_arrival_steps(self._arrival_weights * moment.present)
            draws.draw_arrivals_into(self.seed, first + done, self._arrival_steps[1], users[done : done + part])
            done += part
        return users

    def items(self, round_: int) -> NDArray[np.float32]:
        columns = np.empty((self.dimension, self.count_items(round_)), np.float32)
        draws.draw_items_into(self.seed, round_, columns, self.lifted, self.catalogue, _get_word_buffer())
        return columns.T

    def item_numbers(self, round_: int) -> NDArray[np.int64]:
        """Return the place in the catalogue of each item on offer."""
        sizes = self.catalogue.shape[1], self.count_items(round_)
        return streams.sample_indices(self.seed, streams.ITEMS, np.uint64(round_), *sizes)

    def count_items(self, round_: int) -> int:
        return int(draws.count_items(self.seed, round_, self.fewest_items, self.most_items))

    def attributes(self, round_: int, items: int) -> ItemAttributes:
        categories = draws.draw_categories(self.seed, round_, items, self.categories) if self.categories else None
        return ItemAttributes(categories, draws.draw_costs(self.seed, round_, items) if self.has_costs else None)

    def weights(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return <theta, x>, clipped to [0, 1] or mapped by ``link``."""
        return compute_weights(self.link, self.get_thetas(round_)[user], np.ascontiguousarray(features.T))

    def expected_rewards(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """Return the mean reward of a click on each item; None if each click is worth 1."""
        if self.value_thetas is None:
            return None
        cluster = self.find_moment(round_).clusters[user]
        return compute_weights(None, self.value_thetas[cluster], np.ascontiguousarray(features.T))

    def draw_reward(self, round_: int, item: int, mean: float) -> float:
        """Draw the reward of a click on an item."""
        return float(draws.draw_reward(self.seed, round_, item, mean))

    def attracted(self, round_: int, items: NDArray[np.intp], weights: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Draw w_t(i). The draw of an item does not depend on its position."""
        return draws.draw_attracted(self.seed, round_, items, weights)

    def ties(self, round_: int, items: int) -> NDArray[np.uint32]:
        return streams.words(self.seed, streams.TIE, round_, items)

    def draw(self, round_: int) -> float:
        return float(streams.uniform(self.seed, streams.AUXILIARY, round_, 0))


def check_seed(seed: int) -> None:
    """Reject a seed that is not a 64-bit whole number."""
    require_integer("seed", seed, 0)
    require(seed < 2**64, f"seed must be in 0..2^64 - 1, got {seed}")


def lift(units: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map each row z to (z, 1) / sqrt(2), so that products of two rows of length 1 are in [0, 1]."""
    lifted: NDArray[np.float64] = np.hstack([units, np.ones((len(units), 1))]) * 0.5**0.5
    return lifted


def _get_word_buffer() -> streams.WordBuffer:
    """Return the buffer of this thread. Making one per round would take 5% of a reference round."""
    if not hasattr(_this_thread, "buffer"):
        _this_thread.buffer = streams.make_word_buffer()
    buffer: streams.WordBuffer = _this_thread.buffer
    return buffer


def compute_arrival_weights(users: int, arrivals: Sequence[float] | str) -> NDArray[np.float64]:
    """Return the unnormalised probability of each user's arrival."""
    if isinstance(arrivals, str):
        return np.ones(users) if arrivals == "uniform" else 1.0 / np.arange(1, users + 1)
    require(len(arrivals) == users, f"arrivals must be {users} finite numbers > 0, one per user")
    return np.asarray(arrivals, np.float64)


def compute_arrival_steps(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inner steps of the cumulative distribution; the number of steps <= a draw is the user."""
    sums: NDArray[np.float64] = np.cumsum(weights / weights.max())
    steps: NDArray[np.float64] = sums[:-1] / sums[-1]
    return steps
