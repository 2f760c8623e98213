"""Proposals for new groups: clusters of the posterior means of users that belong to no group."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.population.gaussian import Cube, Gaussian, Workspace, measure_evidence, solve_mean
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, Vector

Indices = NDArray[np.int64]
ITERATIONS = 5  # of k-means


@jit
def estimate_users(gram: Cube, moment: Matrix, users: Indices, base: Gaussian, work: Workspace) -> Matrix:
    """Return the posterior mean of each user under the population."""
    thetas = np.empty((users.size, moment.shape[1]))
    for place in range(users.size):
        user = users[place]
        measure_evidence(gram[user], moment[user], 0.0, gram[user], moment[user], base, work)
        solve_mean(work)
        thetas[place] = work.theta
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
            for i in range(d):
                sums[labels[x], i] += thetas[x, i]
        for k in range(count):
            if sizes[k] > 0.0:
                for i in range(d):
                    means[k, i] = sums[k, i] / sizes[k]
    return labels


@jit
def _measure_square(left: Vector, right: Vector) -> float:
    total = 0.0
    for i in range(left.size):
        total += (left[i] - right[i]) ** 2
    return total
