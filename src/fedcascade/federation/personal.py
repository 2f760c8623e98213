"""A part of theta that an agent keeps to itself, beside the one that all share: theta = [theta_g; theta_u]."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.cascade import count_examined
from fedcascade.learning.ridge import LinearEstimate, Ridge, pair_estimates
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Features, Matrix, Vector

MOST_TURNS, CONVERGED = 100, 1e-12


@dataclass(frozen=True)
class AlternatingMinimisation:
    """Async-LinUCB-AM: the reward of an observation is split between the two parts once, by turns that converge.

    Either part is fitted to what the other leaves unexplained of the observation. Both are kept to length 1.
    """

    def begin(self, dimension: int, lambda_: float) -> "PersonalEstimate":
        return PersonalEstimate(Statistics.zero(dimension), lambda_)


@dataclass(frozen=True, eq=False)
class PersonalEstimate:
    """The personal part of one agent: the statistics of all its rounds, with its share of rewards as the moment."""

    statistics: Statistics
    lambda_: float

    def observe(
        self, known: Statistics, buffer: Statistics, listed: NDArray[np.float32], click: int | None
    ) -> "tuple[Statistics, PersonalEstimate]":
        """Return buffer and personal part after one more round, each with its share of rewards.

        ``known`` and ``buffer`` together are what the shared part is fitted to.
        """
        shared, own, examined = known + buffer, self.statistics, count_examined(len(listed), click)
        gram, moment, own_gram, own_moment = (
            buffer.gram.copy(), buffer.moment.copy(), own.gram.copy(), own.moment.copy(),
        )  # fmt: skip
        sums = SplitSums(shared.gram, shared.moment, own_gram, own_moment, gram, moment)
        features = np.ascontiguousarray(listed, np.float32)
        split_rewards(sums, features, examined, -1 if click is None else click, float(self.lambda_))
        counts = [(each.count + examined, each.clicks + (click is not None), each.rounds + 1) for each in (buffer, own)]
        personal = PersonalEstimate(Statistics(own_gram, own_moment, *counts[1]), self.lambda_)
        return Statistics(gram, moment, *counts[0]), personal

    def join(self, shared: Ridge) -> LinearEstimate:
        """The estimate of both parts together."""
        return pair_estimates(shared, Ridge(self.statistics, self.lambda_))


class SplitSums(NamedTuple):
    """What ``split_rewards`` changes: the sums of the shared part, of the personal part, and of the buffer."""

    gram: Matrix
    moment: Vector
    own_gram: Matrix
    own_moment: Vector
    buffer_gram: Matrix
    buffer_moment: Vector


class _Line(NamedTuple):
    """How a part's estimate depends on its share r of a reward: theta = base + r direction, seen from x."""

    start: float  # <x, base>
    slope: float  # <x, direction>
    base_square: float
    product: float  # <base, direction>
    direction_square: float


@jit
def split_rewards(sums: SplitSums, listed: Features, examined: int, click: int, lambda_: float) -> None:
    """Add the examined items of a list to all sums, one after another, each with its reward split between the parts."""
    for position in range(examined):
        item = listed[position : position + 1]
        linear.add_examined(sums.gram, sums.moment, item, 1, -1)
        linear.add_examined(sums.own_gram, sums.own_moment, item, 1, -1)
        linear.add_examined(sums.buffer_gram, sums.buffer_moment, item, 1, -1)
        shared = _draw_line(sums.gram, sums.moment, item, lambda_)
        own = _draw_line(sums.own_gram, sums.own_moment, item, lambda_)
        share, own_share = _take_turns(1.0 if position == click else 0.0, shared, own)
        for k in range(sums.moment.size):
            sums.moment[k] += item[0, k] * share
            sums.buffer_moment[k] += item[0, k] * share
            sums.own_moment[k] += item[0, k] * own_share


@jit
def _draw_line(gram: Matrix, moment: Vector, item: Features, lambda_: float) -> _Line:
    base, root, direction, x = np.empty_like(moment), np.empty_like(gram), np.empty_like(moment), np.empty_like(moment)
    x[:] = item[0]
    linear.solve_ridge_into(gram, moment, lambda_, np.empty_like(gram), root, base)
    linear.solve_into(root, x, direction)
    start, slope, base_square, product, direction_square = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(x.size):
        start += x[k] * base[k]
        slope += x[k] * direction[k]
        base_square += base[k] * base[k]
        product += base[k] * direction[k]
        direction_square += direction[k] * direction[k]
    return _Line(start, slope, base_square, product, direction_square)


@jit
def _predict(line: _Line, share: float) -> float:
    """<x, theta> for that share of the reward, theta being kept to length 1."""
    square = line.base_square + share * (2.0 * line.product + share * line.direction_square)
    return (line.start + share * line.slope) / math.sqrt(max(square, 1.0))


@jit
def _take_turns(reward: float, shared: _Line, own: _Line) -> tuple[float, float]:
    """Let either part take what the other leaves of the reward, until that changes no more; returns both shares."""
    share, own_share = reward, 0.0
    for _ in range(MOST_TURNS):
        own_share = reward - _predict(shared, share)
        before, share = share, reward - _predict(own, own_share)
        if abs(share - before) <= CONVERGED:
            break
    return share, own_share
