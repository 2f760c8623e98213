"""Proposals for new groups: clusters of posterior means, and the gain in held-out log-likelihood that they bring."""

import numpy as np

from fedcascade.federation.grouping.population.gaussian import (
    Cube,
    Gaussian,
    Indices,
    measure_evidence,
    solve_mean,
)
from fedcascade.federation.grouping.population.groups import (
    LOG_ZERO,
    Groups,
    Users,
    assign_user,
    detach_user,
    make_groups,
    normalise,
    weigh_groups,
    weigh_without,
)
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, Vector

ITERATIONS = 5  # of k-means
HOPELESS_GAIN = -0.03  # abandon proposed groups if their first sweep gains less log-likelihood per user


@jit
def estimate_users(gram: Cube, moment: Matrix, users: Indices, base: Gaussian) -> Matrix:
    """Return the posterior mean of each user under the population."""
    thetas = np.empty((users.size, moment.shape[1]))
    for place in range(users.size):
        user = users[place]
        measure_evidence(gram[user], moment[user], 0.0, gram[user], moment[user], base)
        solve_mean(base.work)
        thetas[place] = base.work.theta
    return thetas


@jit
def cluster_estimates(thetas: Matrix, count: int, draws: Vector) -> Indices:
    """Return the cluster of each estimate: k-means from a k-means++ start."""
    users, d = thetas.shape
    means = np.empty((count, d))
    nearest = np.full(users, np.inf)
    labels = np.zeros(users, np.int64)
    pick = min(int(draws[0] * users), users - 1)
    for k in range(count):
        total = 0.0
        means[k] = thetas[pick]
        for x in range(users):
            nearest[x] = min(nearest[x], _measure_square(thetas[x], means[k]))
            total += nearest[x]
        if k + 1 < count:
            rest, pick = draws[k + 1] * total, 0
            while pick < users - 1:
                rest -= nearest[pick]
                if rest <= 0.0:
                    break
                pick += 1
    sums, sizes = np.empty((count, d)), np.empty(count)
    for _ in range(ITERATIONS):
        sums[:], sizes[:] = 0.0, 0.0
        for x in range(users):
            least = np.inf
            for k in range(count):
                square = _measure_square(thetas[x], means[k])
                if square < least:
                    labels[x], least = k, square
            sizes[labels[x]] += 1.0
            sums[labels[x]] += thetas[x]
        for k in range(count):
            if sizes[k] > 0.0:
                means[k] = sums[k] / sizes[k]
    return labels


@jit
def _measure_square(left: Vector, right: Vector) -> float:
    total = 0.0
    for i in range(left.size):
        total += (left[i] - right[i]) ** 2
    return total


@jit
def sum_logs(weights: Vector) -> float:
    """Return the logarithm of a sum of weights, given their logarithms."""
    largest = weights.max()
    return float(largest + log(np.exp(weights - largest).sum()))


@jit
def predict_users(groups: Groups, users: Users, chosen: Indices, active: int, base: Gaussian) -> Vector:
    """Return the log-likelihood of each chosen user's data under the model of the other users."""
    scores, weights = np.empty(chosen.size), np.empty(users.responsibilities.shape[1] + 1)
    for place in range(chosen.size):
        weigh_without(groups, users, chosen[place], active, base, weights)
        scores[place] = sum_logs(weights) - log(active)
    return scores


@jit
def try_groups(users: Users, labels: Indices, present: Vector, sweeps: int, base: Gaussian) -> tuple[float, float]:
    """Assign users to new groups by ``labels``, refine these for some sweeps, and score them.

    Return the gain in held-out log-likelihood over ``present``, that of the model without these groups: its sum over
    users, and the standard deviation of the sum.
    """
    count = users.responsibilities.shape[1]
    groups, weights = make_groups(count, base.mean.size), np.empty(count + 1)
    total = squares = 0.0
    for sweep in range(sweeps + 1):
        if sweep == 2 and total < HOPELESS_GAIN * labels.size:
            break
        total = squares = 0.0
        for user in range(labels.size):
            if sweep == 0:
                weights[:] = 0.0
                weights[labels[user]] = 1.0
            else:
                detach_user(groups, users, user, base)
                weigh_groups(groups, users.gram[user], users.moment[user], 1.0, base, weights)
                weights[count] = LOG_ZERO
                if sweep in (1, sweeps):  # the gains of the others are not used
                    gain = sum_logs(weights) - log(labels.size) - present[user]
                    total += gain
                    squares += gain * gain
                normalise(weights)
            assign_user(groups, users, user, weights, base)
    return total, np.sqrt(squares)


@jit
def move_users(groups: Groups, users: Users, chosen: Indices, slots: Indices, rows: Matrix, base: Gaussian) -> None:
    """Move chosen users into the groups at ``slots``, with responsibilities ``rows``."""
    weights = np.zeros(users.responsibilities.shape[1] + 1)
    for place in range(chosen.size):
        for k in range(slots.size):
            weights[slots[k]] = rows[place, k]
        detach_user(groups, users, chosen[place], base)
        assign_user(groups, users, chosen[place], weights, base)
