"""Gaussians over theta: the population N(m, T) and its fit, log marginal likelihoods, moment matching, compiled.

Data enter as gram S and moment b with click variance v. Precisions are in units of v, so that S adds to them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import linear
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector, factorise_lanes, measure_lane
from fedcascade.numerics.simd import DOUBLES

FIT_ITERATIONS = 10
ISOTROPIC_USERS = 2  # strength of the prior that T is a multiple of I: d + 2 users
MAX_SQUARED_DISTANCE = 2.0  # per dimension; users farther from m have less weight in m and T
Indices = NDArray[np.int64]
Cube = NDArray[np.float64]  # one matrix per group


class Workspace(NamedTuple):
    """Scratch memory for one user."""

    upper: Matrix
    root: Matrix
    inverse: Matrix
    product: Matrix
    solution: Vector
    theta: Vector
    residual: Vector
    lanes: Vector  # for eight users, as ``factorise_lanes`` wants it


class Gaussian(NamedTuple):
    """The population N(m, T), with precomputed terms of the evidence, and scratch memory."""

    mean: Vector
    covariance: Matrix
    information: Matrix  # T^-1
    precision: Matrix  # v T^-1
    pull: Vector  # v T^-1 m
    variance: float  # v
    square: float  # v m' T^-1 m
    log_det: float  # ln det(v T^-1)
    work: Workspace


@jit_no_refcount
def invert_factor_into(upper: Matrix, root: Matrix, inverse: Matrix) -> None:
    """Fill ``inverse`` with the inverse of the matrix whose upper factor is given."""
    linear.invert_root_into(upper, root)
    inverse[:] = 0.0
    for k in range(upper.shape[0]):
        for i in range(k + 1):
            factor = root[k, i]
            for j in range(k + 1):
                inverse[i, j] += factor * root[k, j]


@jit
def invert(matrix: Matrix) -> tuple[Matrix, float]:
    """Return the inverse of a positive definite matrix, and the matrix's ln det."""
    upper, inverse = matrix.copy(), np.empty_like(matrix)
    linear.factorise(upper)
    invert_factor_into(upper, np.empty_like(matrix), inverse)
    return inverse, linear.compute_log_det(upper)


@jit
def dot(matrix: Matrix, vector: Vector) -> Vector:
    """Return the product of a matrix and a vector, summed in order."""
    product = np.zeros(vector.size)
    for i in range(vector.size):
        for j in range(vector.size):
            product[i] += matrix[i, j] * vector[j]
    return product


@jit
def make_gaussian(mean: Vector, covariance: Matrix, variance: float) -> Gaussian:
    """Build N(mean, covariance) for clicks of that variance."""
    d, (information, log_det) = mean.size, invert(covariance)
    precision = variance * information
    pull = dot(precision, mean)
    arrays = mean.copy(), covariance.copy(), information, precision, pull
    log_det = d * log(variance) - log_det
    matrices, vectors = np.zeros((4, d, d)), np.zeros((3, d))
    lanes = np.zeros((d * (d + 1) + 1) * DOUBLES)
    work = Workspace(matrices[0], matrices[1], matrices[2], matrices[3], vectors[0], vectors[1], vectors[2], lanes)
    return Gaussian(*arrays, variance, linear.multiply(pull, mean), log_det, work)


@jit_no_refcount
def measure_evidence(
    gram: Matrix, moment: Vector, share: float, more_gram: Matrix, more_moment: Vector, base: Gaussian
) -> float:
    """Return the log marginal likelihood of ``share`` times some data plus other data, under one theta ~ N(m, T).

    Leaves the upper factor U of the posterior precision, and U^-T times its information vector, in ``base.work``.
    """
    upper, solution = base.work.upper, base.work.solution
    d, fit = moment.size, 0.0
    for i in range(d):
        for j in range(i, d):
            upper[i, j] = share * gram[i, j] + more_gram[i, j] + base.precision[i, j]
    linear.factorise(upper)
    for j in range(d):
        value = share * moment[j] + more_moment[j] + base.pull[j]
        for i in range(j):
            value -= upper[i, j] * solution[i]
        solution[j] = value / upper[j, j]
        fit += solution[j] * solution[j]
    log_det = linear.compute_log_det(upper)
    return float(0.5 * (fit - base.square) / base.variance - 0.5 * (log_det - base.log_det))


@jit
def measure_joints(
    data: tuple[Matrix, Vector], share: float, grams: Cube, moments: Matrix, places: Indices, base: Gaussian
) -> Vector:
    """Return ``measure_evidence`` of ``share`` times some data plus those at each place, eight at a time."""
    evidence, lanes = np.empty(places.size), base.work.lanes
    for first in range(0, places.size, DOUBLES):
        count = min(DOUBLES, places.size - first)
        for lane in range(DOUBLES):  # lanes without a place repeat the first
            place = places[first + lane if lane < count else first]
            _fill_lane(data[0], data[1], share, grams[place], moments[place], base, lanes[lane:])
        factorise_lanes(lanes, base.mean.size)
        for lane in range(count):
            fit, log_det = measure_lane(lanes[lane:], base.mean.size)
            evidence[first + lane] = 0.5 * (fit - base.square) / base.variance - 0.5 * (log_det - base.log_det)
    return evidence


@jit_no_refcount
def _fill_lane(
    gram: Matrix, moment: Vector, share: float, more_gram: Matrix, more_moment: Vector, base: Gaussian, lane: Vector
) -> None:
    """Write the posterior precision and information vector of ``measure_evidence`` to a lane."""
    d = moment.size
    for i in range(d):
        row = i * (d + 1) * DOUBLES
        for j in range(i, d):
            lane[row + j * DOUBLES] = share * gram[i, j] + more_gram[i, j] + base.precision[i, j]
        lane[row + d * DOUBLES] = share * moment[i] + more_moment[i] + base.pull[i]


@jit_no_refcount
def solve_mean(work: Workspace) -> None:
    """Fill ``work.theta`` with the posterior mean of the last ``measure_evidence``."""
    theta, upper = work.theta, work.upper
    for i in range(theta.size - 1, -1, -1):
        value = work.solution[i]
        for j in range(i + 1, theta.size):
            value -= upper[i, j] * theta[j]
        theta[i] = value / upper[i, i]


@jit_no_refcount
def add_component(weight: float, centre: Vector, theta: Vector, covariance: Matrix, matched: Matrix) -> None:
    """Add one component to a mixture's second moment around ``centre``: weight (C + deviation deviation')."""
    for i in range(theta.size):
        for j in range(theta.size):
            deviation = (theta[i] - centre[i]) * (theta[j] - centre[j])
            matched[i, j] += weight * (covariance[i, j] + deviation)


@jit
def to_statistics(mean: Vector, covariance: Matrix, variance: float, lambda_: float) -> tuple[Matrix, Vector]:
    """Return gram and moment for which a ridge has the posterior N(mean, covariance); the gram may be indefinite."""
    inverse, _ = invert(covariance)
    gram = variance * inverse
    moment = dot(gram, mean)
    for i in range(mean.size):
        gram[i, i] -= lambda_
    return gram, moment


@jit
def fit_population(
    grams: Cube, moments: Matrix, shares: Vector, chosen: Indices, base: Gaussian
) -> tuple[Gaussian, Matrix]:
    """Fit N(m, T) to the ``shares`` of chosen users' data by expectation maximisation, starting from ``base``.

    Return it with the covariance of m.

    The prior of m is N(0, I / d). Its posterior precision is d I plus the sum over users of (T + v S^-1)^-1. For a
    user with posterior covariance C, that term is T^-1 - T^-1 C T^-1.
    """
    d = base.mean.size
    isotropic, precision = d + ISOTROPIC_USERS, np.zeros((d, d))
    for _ in range(FIT_ITERATIONS):
        spread, left = np.zeros((d, d)), np.zeros((d, d))
        gradient, weight, trace = np.zeros(d), 0.0, 0.0
        for user in chosen:
            data = grams[user], moments[user], shares[user]
            weight += add_posterior(data, base, spread, left, gradient)
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
def add_posterior(
    data: tuple[Matrix, Vector, float], base: Gaussian, spread: Matrix, left: Matrix, gradient: Vector
) -> float:
    """Add the posterior of a user with a share of its data under the population, and return its weight.

    ``left`` sums covariances, ``gradient`` deviations from the mean, and ``spread`` their squares.
    """
    d, distance, work = gradient.size, 0.0, base.work
    away = work.residual
    gram, moment, share = data
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
