"""Off-policy estimators: the reward per list of a policy, from a log of another policy.

Each estimator is a ratio of two sums over lists. Intervals resample users, because lists of one user are correlated.

- ``replay``: Li, Chu, Langford, Wang (2011). Accepts lists that the policy would have shown, rejects the rest.
- ``dm``: the direct method. Predicts the reward of the policy's own lists by a model of attraction.
- ``ips`` and ``snips``: importance weights of whole lists, and the same divided by the sum of weights.
- ``rips``: McInerney et al. (2020), reward interaction. Weights the reward of a position by the items down to it.
- ``cascade-dr``: Kiyohara et al. (2022). Applies these weights to the residuals of a model of attraction.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.evaluation.rating import RatedLists
from fedcascade.learning.click_log import ClickLog
from fedcascade.numerics.streams import RESAMPLE, uniforms

Values = NDArray[np.float64]
FEWEST_USERS = 10  # for an interval


class Evidence(NamedTuple):
    """The input of estimators for n lists: rewards, importance weights and ratings."""

    rewards: Values  # (n, K)
    weights: Any  # (n, K), importance weights of the items down to each position; None without propensities
    whole: Any  # (n,), importance weights of whole lists; None without propensities
    accepted: NDArray[np.bool_]  # (n,), whether a draw of the policy equals the list
    ratings: RatedLists
    clicked: NDArray[np.bool_]  # (n,), whether the list has a click

    @property
    def list_rewards(self) -> Values:
        return np.asarray(self.rewards.sum(axis=1))

    @property
    def ones(self) -> Values:
        """Denominators of means, 1 for each list."""
        return np.ones(len(self.rewards))


def gather_evidence(log: ClickLog, ratings: RatedLists, draws: Values, *, reward: str = "any") -> Evidence:
    """Compute rewards, weights and acceptance of each list; ``draws`` are uniform numbers, one per list.

    ``reward`` is ``any``, 1 for a clicked list, ``clicks``, 1 for every click, or ``value``, their rewards.
    """
    first = np.cumsum(log.clicks, axis=1) == 1
    rewards = log.values if reward == "value" else (log.clicks & (first | (reward == "clicks"))).astype(np.float64)
    weights = None
    if log.propensities is not None:
        weights = np.asarray(np.cumprod(ratings.target / log.propensities, axis=1), np.float64)
    shown: Values = ratings.target.prod(axis=1)
    logged = log.list_propensity
    whole = None if logged is None else np.asarray(shown / logged, np.float64)
    return Evidence(rewards, weights, whole, draws < shown, ratings, np.asarray(log.clicks.any(axis=1)))


def sum_cascade_dr(evidence: Evidence) -> tuple[Values, Values]:
    """Return the sum over positions of w_k (r_k - Q_k) + w_(k-1) E[Q_k], and 1 per list."""
    above = np.concatenate([np.ones((len(evidence.weights), 1)), evidence.weights[:, :-1]], axis=1)
    unexplained = evidence.weights * (evidence.rewards - evidence.ratings.baseline)
    return (unexplained + above * evidence.ratings.expected).sum(axis=1), evidence.ones


class Estimator(NamedTuple):
    """An estimator: its numerators and denominators, and its requirements on a log."""

    sum_up: Callable[[Evidence], tuple[Values, Values]]
    needs_propensity: bool = False  # of lists
    needs_propensities: bool = False  # of positions
    is_model: bool = False  # of the first click only


LOGGED_MEAN = Estimator(lambda seen: (seen.list_rewards, seen.ones))
LOGGED_CLICKS = Estimator(lambda seen: (seen.clicked.astype(np.float64), seen.ones))
ESTIMATORS: Mapping[str, Estimator] = {
    "replay": Estimator(lambda seen: (seen.accepted * seen.list_rewards, seen.accepted.astype(np.float64))),
    "dm": Estimator(lambda seen: (seen.ratings.direct, seen.ones), is_model=True),
    "ips": Estimator(lambda seen: (seen.whole * seen.list_rewards, seen.ones), needs_propensity=True),
    "snips": Estimator(lambda seen: (seen.whole * seen.list_rewards, seen.whole), needs_propensity=True),
    "rips": Estimator(lambda seen: ((seen.weights * seen.rewards).sum(axis=1), seen.ones), needs_propensities=True),
    "cascade-dr": Estimator(sum_cascade_dr, needs_propensities=True),
}


def divide(numerators: Values, denominators: Values) -> Values:
    """Return ratios; NaN for denominators of 0."""
    ratios = np.full(np.shape(numerators), np.nan)
    np.divide(numerators, denominators, out=ratios, where=np.asarray(denominators) > 0)
    return ratios


def compute_intervals(
    numerators: Values,
    denominators: Values,
    *,
    contrasts: Sequence[tuple[int, int]] = (),
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Values:
    """Compute the ends (estimates, 2) of intervals of ratios of sums over users (users, estimates).

    Uses the bootstrap-t: dividing each resampled difference by its own standard error gives asymmetric intervals of
    skewed estimates, such as those with few large weights. NaN with too few users, or too few with a denominator.
    For each pair of ``contrasts`` follows the interval of the difference of two ratios, with the same users in both.
    """
    users = len(numerators)
    count = numerators.shape[1] + len(contrasts)
    if users < FEWEST_USERS:
        return np.full((count, 2), np.nan)
    parts = numerators, denominators, np.array(contrasts, np.int64).reshape(-1, 2)
    ratio, error = _measure(np.ones(users), *parts)
    steps = np.empty((resamples, count))
    for number in range(resamples):
        drawn = (uniforms(seed, RESAMPLE, number, users) * users).astype(np.int64)
        resampled, own_error = _measure(np.bincount(drawn, minlength=users).astype(np.float64), *parts)
        steps[number] = divide(resampled - ratio, own_error)
    tail = (1.0 - level) / 2.0
    ends = np.full((count, 2), np.nan)
    for place in range(count):
        known = steps[np.isfinite(steps[:, place]), place]
        if known.size > 0.9 * resamples:
            ends[place] = ratio[place] - np.quantile(known, [1.0 - tail, tail]) * error[place]
    for place, pair in enumerate(contrasts, numerators.shape[1]):
        ends[place] = np.where(np.isnan(ends[list(pair)]).any(), np.nan, ends[place])
    return ends


def _measure(
    times: NDArray[np.float64], numerators: Values, denominators: Values, contrasts: NDArray[np.int64]
) -> tuple[Values, Values]:
    """Return ratios, then contrasts, and their standard errors; ``times`` is the multiplicity of each user."""
    below = times @ denominators
    ratio = divide(times @ numerators, below)
    influence = divide(numerators - ratio * denominators, np.broadcast_to(below, numerators.shape))
    one, other = contrasts.T
    ratio = np.concatenate([ratio, ratio[one] - ratio[other]])
    influence = np.concatenate([influence, influence[:, one] - influence[:, other]], axis=1)
    users = times.sum()
    return ratio, np.sqrt(times @ influence**2 * users / (users - 1.0))
