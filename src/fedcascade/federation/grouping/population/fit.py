"""Expectation maximisation for the population's mean m and covariance T, compiled."""

import numpy as np

from fedcascade.federation.grouping.population.gaussian import (
    Gaussian,
    Indices,
    dot,
    invert,
    invert_factor_into,
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
def fit_population(users: Users, chosen: Indices, base: Gaussian) -> tuple[Gaussian, Matrix]:
    """Fit N(m, T) to the chosen users, starting from ``base``, and return it with the covariance of m.

    The prior of m is N(0, I / d). Its posterior precision is d I plus the sum over users of (T + v S^-1)^-1. For a
    user with posterior covariance C, that term is T^-1 - T^-1 C T^-1.
    """
    d = base.mean.size
    isotropic, precision = d + ISOTROPIC_USERS, np.zeros((d, d))
    for _ in range(ITERATIONS):
        spread, left = np.zeros((d, d)), np.zeros((d, d))
        gradient, weight, trace = np.zeros(d), 0.0, 0.0
        for user in chosen:
            weight += add_posterior(users, user, base, spread, left, gradient)
        precision = weight * base.information
        for i in range(d):
            precision[i, i] += d
            trace += base.covariance[i, i]
        uncertainty, _ = invert(precision)
        step = dot(uncertainty, dot(base.information, gradient) - d * base.mean)
        shift = np.outer(weight * step, step) - np.outer(gradient, step) - np.outer(step, gradient)
        covariance = (left + left.T + spread + spread.T) / 2 + shift
        for i in range(d):
            covariance[i, i] += isotropic * trace / d
        known = sandwich(base.information, left)
        precision -= (known + known.T) / 2
        base = make_gaussian(base.mean + step, covariance / (isotropic + weight), base.variance)
    uncertainty, _ = invert(precision)
    return base, uncertainty


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
def add_posterior(users: Users, user: int, base: Gaussian, spread: Matrix, left: Matrix, gradient: Vector) -> float:
    """Add a user's posterior under the population, and return its weight.

    ``left`` sums covariances, ``gradient`` deviations from the mean, and ``spread`` their squares.
    """
    d, distance, work = gradient.size, 0.0, base.work
    away = work.residual
    gram, moment, share = users.gram[user], users.moment[user], users.shares[user]
    measure_evidence(gram, moment, share - 1.0, gram, moment, base)
    solve_mean(work)
    invert_factor_into(work.upper, work.root, work.inverse)
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
