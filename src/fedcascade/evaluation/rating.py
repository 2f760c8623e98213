"""Ratings of the lists of a log under a policy: propensities of items, and expected rewards under a model."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments.behaviours import compute_weights
from fedcascade.evaluation.fit import FrozenPolicy
from fedcascade.learning.click_log import MISSING, ClickLog
from fedcascade.learning.exploration import explore, fill_chances, update_masses
from fedcascade.learning.log_sums import NO_FEATURES, find_places
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Features, Vector, compute_ucb_scores
from fedcascade.numerics.streams import TIE, words

SAMPLES = 4  # drawn lists per row, to average the expected reward of a policy that explores


class RatedLists(NamedTuple):
    """Propensities and expected rewards of each row; 1 and 0 beyond the end of a list."""

    target: NDArray[np.float64]  # (n, K), the policy's propensity of each item given those above it
    baseline: NDArray[np.float64]  # (n, K), Q(a_1..a_k): expected reward from position k on, given these items
    expected: NDArray[np.float64]  # (n, K), mean of Q(a_1..a_k) over the policy's choices of a_k
    direct: NDArray[np.float64]  # (n,), expected reward of the policy's own lists under the model
    chosen: NDArray[np.int64]  # (n, K), one list of the policy, as places of items on offer; -1 beyond its end


class _Arrays(NamedTuple):
    """The policy, the model and the log as arrays; items are indices into those on offer."""

    policy: FrozenPolicy
    model: NDArray[np.float64]
    users: NDArray[np.int64]
    modelled: NDArray[np.int64]  # the row of the model for each list
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]
    offers: NDArray[np.int64]
    table: Features  # (d, items) if all items are on offer in every row, else (d, 0)
    features: NDArray[np.float32]  # (n, M, d) of the items on offer, else (0, 0, d)


def rate_log(
    policy: FrozenPolicy,
    model: NDArray[np.float64],
    log: ClickLog,
    table: NDArray[np.float32] | None,
    *,
    folds: NDArray[np.int64] | None = None,
    first_row: int = 0,
    threads: int = 1,
) -> RatedLists:
    """Rate every row of a batch; ``first_row`` is its position in the log, which seeds the sampled lists.

    ``model`` has a row for each user and a last one for others; with ``folds``, one such table for each fold.
    """
    require(
        log.features is None or log.offered is not None,
        "this log has features of shown items only: add those of all items on offer, from which policies choose",
    )
    (n, positions), d = log.items.shape, policy.theta.shape[1]
    stacked = np.zeros(n, np.int64) if folds is None else folds * model.shape[-2]
    columns, features = np.zeros((d, 0), np.float32), np.zeros((0, 0, d), np.float32)
    if log.features is not None:
        features = np.ascontiguousarray(log.features)
    else:
        require(table is not None, NO_FEATURES)
        assert table is not None
        if log.offered is None:
            columns = np.ascontiguousarray(table.T)
        else:
            features = np.ascontiguousarray(table[np.maximum(log.offered, 0)])
    arrays = _Arrays(
        policy=policy,
        model=model.reshape(-1, model.shape[-1]),
        users=np.minimum(log.users, len(policy.theta) - 1),
        modelled=stacked + np.minimum(log.users, model.shape[-2] - 1),
        places=find_places(log),
        lengths=log.lengths,
        offers=np.full(n, columns.shape[1]) if log.offered is None else (log.offered != MISSING).sum(axis=1),
        table=columns,
        features=features,
    )
    chosen = np.full((n, policy.length), MISSING, np.int64)
    baseline, expected = np.zeros((2, n, positions))
    ratings = RatedLists(np.ones((n, positions)), baseline, expected, np.empty(n), chosen)
    order = np.lexsort((arrays.modelled, arrays.users))  # so that scores of a table are computed once per user and fold
    samples = 1 if policy.kind == 0 else SAMPLES
    with ThreadPoolExecutor(max(1, threads)) as pool:
        parts = np.array_split(order, max(1, threads))
        list(pool.map(lambda rows: rate_rows(rows, arrays, samples, first_row, ratings), parts))
    return ratings


@jit
def rate_rows(rows: NDArray[np.intp], arrays: _Arrays, samples: int, first_row: int, ratings: RatedLists) -> None:
    """Fill the ratings of some rows, sorted by user."""
    policy = arrays.policy
    last_user, last_model, scores, weights = -1, -1, np.empty(0), np.empty(0)
    for row in rows:
        user, model, offers = arrays.users[row], arrays.modelled[row], arrays.offers[row]
        is_table = arrays.table.shape[1] > 0
        if not is_table or user != last_user or model != last_model:
            columns = arrays.table if is_table else np.ascontiguousarray(arrays.features[row, :offers].T)
            scores = compute_ucb_scores(policy.theta[user], policy.root[user], policy.beta[user], columns)
            weights = compute_weights(None, arrays.model[model], columns)
            last_user, last_model = user, model
        places = arrays.places[row, : arrays.lengths[row]]
        rate_list(arrays, scores, weights, places, row, ratings)
        ratings.direct[row] = 0.0
        for sample in range(samples):
            ties = words(first_row + row, TIE, sample, offers)
            chosen = explore(policy.kind, policy.level, scores, ties, policy.length)
            missed = 1.0
            for position in range(chosen.size):
                missed *= 1.0 - weights[chosen[position]]
                ratings.chosen[row, position] = chosen[position]
            ratings.direct[row] += (1.0 - missed) / samples


@jit
def rate_list(
    arrays: _Arrays, scores: Vector, weights: Vector, places: NDArray[np.int64], row: int, ratings: RatedLists
) -> None:
    """Fill the ratings of one list.

    Under a cascade, Q(a_1..a_k) = S (w(a_k) + (1 - w(a_k)) T). S is the probability of no click above. T is that of a
    click below, if each item below has the mean weight of the policy's choice at position k.
    """
    kind, level = arrays.policy.kind, arrays.policy.level
    target, baseline, expected = ratings.target[row], ratings.baseline[row], ratings.expected[row]
    taken, chances = np.zeros(scores.size, np.bool_), np.empty(scores.size)
    masses, missed = np.array([1.0 - level, level]), 1.0
    for position in range(places.size):
        fill_chances(kind, level, scores, taken, masses, chances)
        item, average = places[position], 0.0
        for other in range(scores.size):
            average += chances[other] * weights[other]
        below = 1.0 - (1.0 - average) ** (places.size - position - 1)
        target[position] = chances[item]
        baseline[position] = missed * (weights[item] + (1.0 - weights[item]) * below)
        expected[position] = missed * (average + (1.0 - average) * below)
        missed *= 1.0 - weights[item]
        update_masses(kind, scores, taken, masses, item)
