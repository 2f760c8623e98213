"""Expectation maximisation for the population's mean m and covariance T, compiled."""

import numpy as np

from fedcascade.federation.grouping.population.gaussian import (
    Gaussian,
    Indices,
    Workspace,
    invert_factor,
    invert_into,
    make_gaussian,
    measure_evidence,
    solve_mean,
)
from fedcascade.federation.grouping.population.groups import Users
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

ITERATIONS = 10
ISOTROPIC_USERS = 2  # strength of the prior that T is a multiple of I: d + 2 users
MAX_SQUARED_DISTANCE = 2.0  # per dimension; users farther from m have less weight in m and T


@jit
def fit_population(users: Users, chosen: Indices, base: Gaussian, work: Workspace) -> tuple[Gaussian, Matrix]:
    """Fit N(m, T) to the chosen users, starting from ``base``, and return it with the covariance of m.

    The prior of m is N(0, I / d). Its posterior precision is d I plus the sum over users of (T + v S^-1)^-1. For a
    user with posterior covariance C, that term is T^-1 - T^-1 C T^-1.
    """
    d = base.mean.size
    isotropic = d + ISOTROPIC_USERS
    uncertainty, precision = np.zeros((d, d)), np.zeros((d, d))
    for _ in range(ITERATIONS):
        spread, left = np.zeros((d, d)), np.zeros((d, d))
        gradient, weight = np.zeros(d), 0.0
        for user in chosen:
            weight += add_posterior(users, user, base, work, spread, left, gradient)
        information, mean, trace = base.information, base.mean.copy(), 0.0
        for i in range(d):
            trace += base.covariance[i, i]
            for j in range(d):
                precision[i, j] = weight * information[i, j]
            precision[i, i] += d
        invert_into(precision, uncertainty, work.upper, work.root)
        pull = dot(information, gradient) - d * base.mean
        step = dot(uncertainty, pull)
        covariance = np.zeros((d, d))
        for i in range(d):
            mean[i] += step[i]
            covariance[i, i] = isotropic * trace / d
            for j in range(d):
                shift = weight * step[i] * step[j] - gradient[i] * step[j] - step[i] * gradient[j]
                covariance[i, j] += (left[i, j] + left[j, i] + spread[i, j] + spread[j, i]) / 2 + shift
                covariance[i, j] /= isotropic + weight
        known = sandwich(information, left)
        for i in range(d):
            for j in range(d):
                precision[i, j] -= (known[i, j] + known[j, i]) / 2
        base = make_gaussian(mean, covariance, base.variance)
    invert_into(precision, uncertainty, work.upper, work.root)
    return base, uncertainty


@jit
def dot(matrix: Matrix, vector: Vector) -> Vector:
    """Return the product of a matrix and a vector, summed in order."""
    product = np.zeros(vector.size)
    for i in range(vector.size):
        for j in range(vector.size):
            product[i] += matrix[i, j] * vector[j]
    return product


@jit
def sandwich(outer: Matrix, inner: Matrix) -> Matrix:
    """Return outer inner outer."""
    d = inner.shape[0]
    product = np.zeros((d, d))
    for j in range(d):
        column = dot(inner, outer[:, j])
        product[:, j] = dot(outer, column)
    return product


@jit_no_refcount
def add_posterior(
    users: Users, user: int, base: Gaussian, work: Workspace, spread: Matrix, left: Matrix, gradient: Vector
) -> float:
    """Add a user's posterior under the population, and return its weight.

    ``left`` sums covariances, ``gradient`` deviations from the mean, and ``spread`` their squares.
    """
    d, distance = gradient.size, 0.0
    away = work.residual
    gram, moment, share = users.gram[user], users.moment[user], users.shares[user]
    measure_evidence(gram, moment, share - 1.0, gram, moment, base, work)
    solve_mean(work)
    invert_factor(work)
    for i in range(d):
        away[i] = work.theta[i] - base.mean[i]
    for i in range(d):
        for j in range(d):
            distance += away[i] * base.information[i, j] * away[j]
    weight = min(1.0, MAX_SQUARED_DISTANCE * d / max(distance, 1e-9))
    for i in range(d):
        gradient[i] += weight * away[i]
        for j in range(d):
            left[i, j] += weight * base.variance * work.inverse[i, j]
            spread[i, j] += weight * away[i] * away[j]
    return float(weight)
