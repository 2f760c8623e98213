"""The population's mean m and covariance T, learned from users' data by expectation maximisation, compiled."""

import numpy as np

from fedcascade.federation.grouping.population.gaussian import (
    Gaussian,
    Workspace,
    invert_factor,
    make_gaussian,
    measure_evidence,
    solve_mean,
)
from fedcascade.federation.grouping.population.groups import Indices, Users
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

ITERATIONS = 10
ISOTROPIC_USERS = 2  # beside the dimension: users' worth of belief that T is a multiple of I
CENTRED_USERS = 1.0  # users' worth of belief that m stays where it is
FARTHEST = 2.0  # squared deviations per dimension, beyond which a user has less weight in m and T


@jit
def fit_population(users: Users, chosen: Indices, base: Gaussian, work: Workspace) -> Gaussian:
    """Return N(m, T) after some iterations from ``base``, by the data of the chosen users."""
    d = base.mean.size
    isotropic = d + ISOTROPIC_USERS
    for _ in range(ITERATIONS):
        total, gradient, weight = np.zeros((d, d)), np.zeros(d), 0.0
        for user in chosen:
            weight += add_posterior(users, user, base, work, total, gradient)
        mean, covariance, trace = base.mean.copy(), np.zeros((d, d)), 0.0
        for i in range(d):
            mean[i] += gradient[i] / (weight + CENTRED_USERS)
            trace += base.covariance[i, i]
        for i in range(d):
            covariance[i, i] = isotropic * trace / d
            for j in range(d):
                step, other = mean[i] - base.mean[i], mean[j] - base.mean[j]
                shift = weight * step * other - gradient[i] * other - step * gradient[j]
                covariance[i, j] += (total[i, j] + total[j, i]) / 2 + shift
                covariance[i, j] /= isotropic + weight
        base = make_gaussian(mean, covariance, base.variance)
    return base


@jit_no_refcount
def add_posterior(users: Users, user: int, base: Gaussian, work: Workspace, total: Matrix, gradient: Vector) -> float:
    """Add a user's posterior under the population: covariance and squared deviation to ``total``. Return its weight.

    A user that is further from the mean than ``FARTHEST`` squared deviations per dimension gets less weight.
    """
    d, distance, away = gradient.size, 0.0, work.residual
    gram, moment, share = users.gram[user], users.moment[user], users.shares[user]
    measure_evidence(gram, moment, share - 1.0, gram, moment, base, work)
    solve_mean(work)
    invert_factor(work)
    for i in range(d):
        away[i] = work.theta[i] - base.mean[i]
    for i in range(d):
        for j in range(d):
            distance += away[i] * base.information[i, j] * away[j]
    weight = min(1.0, FARTHEST * d / max(distance, 1e-9))
    for i in range(d):
        gradient[i] += weight * away[i]
        for j in range(d):
            total[i, j] += weight * (base.variance * work.inverse[i, j] + away[i] * away[j])
    return float(weight)
