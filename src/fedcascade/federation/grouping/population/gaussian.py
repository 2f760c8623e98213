"""Gaussians over theta: the population N(m, T), log marginal likelihoods, and moment matching, compiled.

Data enter as gram S and moment b with click variance v. Precisions are in units of v, so that S adds to them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import linear
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.lanes import LANES, factorise_lanes, measure_lane
from fedcascade.numerics.linear import Matrix, Vector

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


@jit
def make_workspace(d: int) -> Workspace:
    """Allocate scratch memory for dimension d."""
    matrices, vectors = np.zeros((4, d, d)), np.zeros((3, d))
    lanes = np.zeros((d * (d + 1) + 1) * LANES)
    return Workspace(matrices[0], matrices[1], matrices[2], matrices[3], vectors[0], vectors[1], vectors[2], lanes)


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
    information, log_det = invert(covariance)
    precision = variance * information
    pull = dot(precision, mean)
    arrays = mean.copy(), covariance.copy(), information, precision, pull
    log_det = mean.size * log(variance) - log_det
    return Gaussian(*arrays, variance, linear.multiply(pull, mean), log_det, make_workspace(mean.size))


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
    for first in range(0, places.size, LANES):
        count = min(LANES, places.size - first)
        for lane in range(LANES):  # lanes without a place repeat the first
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
        row = i * (d + 1) * LANES
        for j in range(i, d):
            lane[row + j * LANES] = share * gram[i, j] + more_gram[i, j] + base.precision[i, j]
        lane[row + d * LANES] = share * moment[i] + more_moment[i] + base.pull[i]


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
