"""Where components are born: clusters of the estimates of users whom a mixture explains badly."""

import numpy as np

from fedcascade.federation.grouping.expectation import FARTHEST
from fedcascade.federation.grouping.mixture import (
    Cube,
    Mixture,
    Places,
    dot,
    make_room,
    multiply_into,
    weigh_population,
)
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, Vector

ROUNDS = 5  # of k-means


@jit
def find_unexplained(former: Matrix, places: Places, share: float) -> Places:
    """Those places whose users components explain by less than 1 - ``share``."""
    found, size = np.empty(places.size, np.int64), 0
    for x in places:
        left = 1.0
        for weight in former[x]:
            left -= weight
        if left > share:
            found[size] = x
            size += 1
    return found[:size].copy()


@jit
def choose_means(thetas: Matrix, count: int, draws: Vector) -> Matrix:
    """Means of ``count`` clusters of estimates: k-means, from where k-means++ starts it."""
    users, d = thetas.shape
    means, nearest = np.empty((count, d)), np.full(users, np.inf)
    pick = min(int(draws[0] * users), users - 1)
    for k in range(count):
        total = 0.0
        for i in range(d):
            means[k, i] = thetas[pick, i]
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
    for _ in range(ROUNDS):
        sums[:], sizes[:] = 0.0, 0.0
        for x in range(users):
            best, least = 0, np.inf
            for k in range(count):
                square = _measure_square(thetas[x], means[k])
                if square < least:
                    best, least = k, square
            sizes[best] += 1.0
            for i in range(d):
                sums[best, i] += thetas[x, i]
        for k in range(count):
            if sizes[k] > 0.0:
                for i in range(d):
                    means[k, i] = sums[k, i] / sizes[k]
    return means


@jit
def _measure_square(left: Vector, right: Vector) -> float:
    total = 0.0
    for i in range(left.size):
        total += (left[i] - right[i]) ** 2
    return total


@jit
def estimate_users(gram: Cube, moment: Matrix, users: Places, mixture: Mixture, variance: float) -> Matrix:
    """Each user's estimate under the population alone; of those who are not too far from its mean."""
    d, found = moment.shape[1], 0
    thetas, room = np.empty((users.size, d)), make_room(0, d)
    away, product = room.scratch[1], room.scratch[2]
    for user in users:
        weigh_population(mixture, gram[user], moment[user], variance, room)
        for i in range(d):
            thetas[found, i], away[i] = room.theta[i], room.theta[i] - mixture.centre[i]
        multiply_into(mixture.precision, away, product)
        found += dot(away, product) <= FARTHEST * d * variance
    return thetas[:found]
