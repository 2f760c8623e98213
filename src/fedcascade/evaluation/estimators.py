"""Estimators of what a policy would have earned, from a log of another: one number per list, and what it is divided by.

Every estimator is a ratio of two sums over lists. Intervals come from resampling users, by adding up their sums: lists
of one user are alike, so they are drawn together or not at all.

- ``replay``: Li, Chu, Langford, Wang (2011). Lists that the policy would have shown count, the rest is rejected.
- ``dm``: the direct method. A model of attraction says what the policy's own lists would earn.
- ``ips`` and ``snips``: Horvitz and Thompson's weights of whole lists, and the same divided by the sum of weights.
- ``rips``: McInerney et al. (2020), reward interaction. The reward of a position is weighted by the items down to it.
- ``cascade-dr``: Kiyohara et al. (2022). The same weights, on what a model of attraction leaves unexplained.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.evaluation.rating import RatedLists
from fedcascade.learning.click_log import ClickLog
from fedcascade.numerics.streams import RESAMPLE, uniforms

Values = NDArray[np.float64]
FEWEST_USERS = 10  # fewer say nothing about users who were not seen


class Evidence(NamedTuple):
    """What estimators see of n lists: rewards, the weights of lists down to each position, and the ratings."""

    rewards: Values  # (n, K)
    weights: Values | None  # (n, K), target over logging, multiplied down to each position
    whole: Values | None  # (n,), that of the whole list
    accepted: NDArray[np.bool_]  # (n,), whether the policy, asked once, would have shown just this list
    ratings: RatedLists


def gather_evidence(log: ClickLog, ratings: RatedLists, draws: Values, *, reward: str = "any") -> Evidence:
    """Rewards, weights and acceptance of each list; ``draws`` are uniform numbers, one per list.

    ``reward`` is ``any``, 1 for a list that was clicked, or ``clicks``, 1 for every click.
    """
    first = np.cumsum(log.clicks, axis=1) == 1
    rewards = (log.clicks & first if reward == "any" else log.clicks).astype(np.float64)
    weights = None
    if log.propensities is not None:
        weights = np.asarray(np.cumprod(ratings.target / log.propensities, axis=1), np.float64)
    shown: Values = ratings.target.prod(axis=1)
    logged = log.list_propensity
    whole = None if logged is None else np.asarray(shown / logged, np.float64)
    return Evidence(rewards, weights, whole, draws < shown, ratings)


def sum_replay(evidence: Evidence) -> tuple[Values, Values]:
    """Rewards of accepted lists, and which were accepted."""
    accepted = evidence.accepted.astype(np.float64)
    return accepted * evidence.rewards.sum(axis=1), accepted


def sum_direct(evidence: Evidence) -> tuple[Values, Values]:
    """What the model expects, and one per list."""
    return evidence.ratings.direct, np.ones(len(evidence.rewards))


def sum_ips(evidence: Evidence) -> tuple[Values, Values]:
    """Weighted rewards of whole lists, and one per list."""
    assert evidence.whole is not None
    return evidence.whole * evidence.rewards.sum(axis=1), np.ones(len(evidence.rewards))


def sum_snips(evidence: Evidence) -> tuple[Values, Values]:
    """Weighted rewards of whole lists, and their weights."""
    assert evidence.whole is not None
    return evidence.whole * evidence.rewards.sum(axis=1), evidence.whole


def sum_rips(evidence: Evidence) -> tuple[Values, Values]:
    """Rewards of positions, weighted by the items down to them, and one per list."""
    assert evidence.weights is not None
    return (evidence.weights * evidence.rewards).sum(axis=1), np.ones(len(evidence.rewards))


def sum_cascade_dr(evidence: Evidence) -> tuple[Values, Values]:
    """Sum over positions of w_k (r_k - Q_k) + w_(k-1) E[Q_k], and one per list."""
    assert evidence.weights is not None
    above = np.concatenate([np.ones((len(evidence.weights), 1)), evidence.weights[:, :-1]], axis=1)
    unexplained = evidence.weights * (evidence.rewards - evidence.ratings.baseline)
    return (unexplained + above * evidence.ratings.expected).sum(axis=1), np.ones(len(evidence.rewards))


class Estimator(NamedTuple):
    """An estimator: its numerators and denominators, and what it asks of a log."""

    sum_up: Callable[[Evidence], tuple[Values, Values]]
    needs_propensity: bool = False  # of lists
    needs_propensities: bool = False  # of positions
    is_model: bool = False  # of the first click alone


ESTIMATORS: Mapping[str, Estimator] = {
    "replay": Estimator(sum_replay),
    "dm": Estimator(sum_direct, is_model=True),
    "ips": Estimator(sum_ips, needs_propensity=True),
    "snips": Estimator(sum_snips, needs_propensity=True),
    "rips": Estimator(sum_rips, needs_propensities=True),
    "cascade-dr": Estimator(sum_cascade_dr, needs_propensities=True),
}


def divide(numerators: Values, denominators: Values) -> Values:
    """Ratios; NaN where nothing is in the denominator."""
    ratios = np.full(np.shape(numerators), np.nan)
    np.divide(numerators, denominators, out=ratios, where=np.asarray(denominators) > 0)
    return ratios


def compute_intervals(
    numerators: Values, denominators: Values, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Values:
    """Low and high ends (estimators, 2) of the intervals of ratios of sums over users (users, estimators).

    The bootstrap-t: each resampled ratio is measured in its own standard errors, so that the interval of a skewed
    estimate, such as one with few large weights, reaches further to the side where the truth may be. NaN where there
    are too few users, or too few with a denominator.
    """
    users = len(numerators)
    if users < FEWEST_USERS:
        return np.full((numerators.shape[1], 2), np.nan)
    parts = numerators, denominators, numerators**2, numerators * denominators, denominators**2
    ratio, error = _measure(np.ones(users), parts)
    steps = np.empty((resamples, ratio.size))
    for number in range(resamples):
        drawn = (uniforms(seed, RESAMPLE, number, users) * users).astype(np.int64)
        resampled, own_error = _measure(np.bincount(drawn, minlength=users).astype(np.float64), parts)
        steps[number] = divide(resampled - ratio, own_error)
    tail = (1.0 - level) / 2.0
    ends = np.full((ratio.size, 2), np.nan)
    for place in range(ratio.size):
        known = steps[np.isfinite(steps[:, place]), place]
        if known.size > 0.9 * resamples:
            ends[place] = ratio[place] - np.quantile(known, [1.0 - tail, tail]) * error[place]
    return ends


def _measure(times: NDArray[np.float64], parts: tuple[Values, ...]) -> tuple[Values, Values]:
    """Ratios and their standard errors, each user counted so many times."""
    above, below, squares, products, own = (times @ part for part in parts)
    ratio = divide(above, below)
    spread = np.maximum(squares - 2.0 * ratio * products + ratio**2 * own, 0.0)
    users = times.sum()
    return ratio, divide(np.sqrt(spread * users / (users - 1.0)), below)
