"""A personal part of theta besides the shared one: theta = [theta_g; theta_u]."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.cascade import Examination
from fedcascade.learning.ridge import LinearEstimate, Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Features, Matrix, Vector

MAX_ITERATIONS = 100
TOLERANCE = 1e-12  # change of a share at which the iteration stops
Sums = tuple[Matrix, Vector]  # gram and moment


@dataclass(frozen=True)
class AlternatingMinimisation:
    """Async-LinUCB-AM: each reward is split once between the shared and the personal part of theta.

    Each part is fitted in turn to the residual of the other, until convergence. Both are limited to length 1.
    """

    def begin(self, dimension: int, lambda_: float) -> "PersonalEstimate":
        return PersonalEstimate(Statistics.zero(dimension), lambda_)


@dataclass(frozen=True, eq=False)
class PersonalEstimate:
    """The personal part of one agent: the statistics of all its rounds, with its share of the rewards."""

    statistics: Statistics
    lambda_: float

    def observe(
        self, known: Statistics, buffer: Statistics, listed: NDArray[np.float32], seen: Examination
    ) -> "tuple[Statistics, PersonalEstimate]":
        """Return buffer and personal part after one more round, each with its share of the reward.

        The shared part is fitted to ``known`` plus ``buffer``.
        """
        shared, own, examined = known + buffer, self.statistics, seen.examined
        clicks, click = len(seen.clicks), seen.clicks[0] if seen.clicks else -1
        missing = clicks - seen.reward
        own_sums, buffer_sums = (own.gram.copy(), own.moment.copy()), (buffer.gram.copy(), buffer.moment.copy())
        features = np.ascontiguousarray(listed, np.float32)
        known_sums, lambda_ = (shared.gram, shared.moment), float(self.lambda_)
        split_rewards(known_sums, own_sums, buffer_sums, features, examined, click, seen.reward, lambda_)
        sums = [
            Statistics(*arrays, each.count + examined, each.clicks + clicks, each.rounds + 1, each.shortfall + missing)
            for each, arrays in ((buffer, buffer_sums), (own, own_sums))
        ]
        return sums[0], PersonalEstimate(sums[1], self.lambda_)

    def join(self, shared: Ridge) -> LinearEstimate:
        """Return the estimate of both parts together, each theta limited to length 1."""
        own = Ridge(self.statistics, self.lambda_)
        theta = linear.limit_length(shared.theta) + linear.limit_length(own.theta)
        return LinearEstimate(theta, shared.root, shared.log_det, shared.lambda_, own.root)


class _Line(NamedTuple):
    """The estimate of a part as a function of its share r of a reward, theta = base + r direction, along x."""

    start: float  # <x, base>
    slope: float  # <x, direction>
    base_square: float
    product: float  # <base, direction>
    direction_square: float


@jit
def split_rewards(
    shared: Sums, own: Sums, buffer: Sums, listed: Features, examined: int, click: int, reward: float, lambda_: float
) -> None:
    """Add the examined items of a list to all sums in order, and split each reward between the parts."""
    (gram, moment), (own_gram, own_moment), (buffer_gram, buffer_moment) = shared, own, buffer
    for position in range(examined):
        item = listed[position : position + 1]
        linear.add_examined(gram, item, 1)
        linear.add_examined(own_gram, item, 1)
        linear.add_examined(buffer_gram, item, 1)
        line, own_line = _draw_line(gram, moment, item, lambda_), _draw_line(own_gram, own_moment, item, lambda_)
        share, own_share = _take_turns(reward if position == click else 0.0, line, own_line)
        for k in range(moment.size):
            moment[k] += item[0, k] * share
            buffer_moment[k] += item[0, k] * share
            own_moment[k] += item[0, k] * own_share


@jit
def _draw_line(gram: Matrix, moment: Vector, item: Features, lambda_: float) -> _Line:
    base, direction, x = np.empty_like(moment), np.empty_like(moment), np.empty_like(moment)
    root = np.empty_like(gram)
    x[:] = item[0]
    linear.solve_ridge_into(gram, moment, lambda_, np.empty_like(gram), root, base)
    linear.solve_into(root, x, direction)
    along = linear.multiply(x, base), linear.multiply(x, direction)
    product = linear.multiply(base, direction)
    return _Line(*along, linear.multiply(base, base), product, linear.multiply(direction, direction))


@jit
def _predict(line: _Line, share: float) -> float:
    """Return <x, theta> for a share of the reward, with theta limited to length 1."""
    square = line.base_square + share * (2.0 * line.product + share * line.direction_square)
    return (line.start + share * line.slope) / math.sqrt(max(square, 1.0))


@jit
def _take_turns(reward: float, shared: _Line, own: _Line) -> tuple[float, float]:
    """Assign each part in turn the residual of the other until convergence, and return both shares."""
    share, own_share = reward, 0.0
    for _ in range(MAX_ITERATIONS):
        own_share = reward - _predict(shared, share)
        before, share = share, reward - _predict(own, own_share)
        if abs(share - before) <= TOLERANCE:
            break
    return share, own_share
