"""Gaussians over theta: the population N(m, T), log marginal likelihoods, and moment matching, compiled.

Data enter as gram S and moment b with click variance v. Precisions are in units of v, so that S adds to them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import linear
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.lanes import LANES, factorise_lanes
from fedcascade.numerics.linear import Matrix, Vector

Indices = NDArray[np.int64]
Cube = NDArray[np.float64]  # one matrix per group


class Gaussian(NamedTuple):
    """The population N(m, T), with precomputed terms of the evidence."""

    mean: Vector
    covariance: Matrix
    information: Matrix  # T^-1
    precision: Matrix  # v T^-1
    pull: Vector  # v T^-1 m
    variance: float  # v
    square: float  # v m' T^-1 m
    log_det: float  # ln det(v T^-1)


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
def invert_into(matrix: Matrix, inverse: Matrix, upper: Matrix, root: Matrix) -> float:
    """Fill ``inverse`` with the inverse of a positive definite matrix, and return the matrix's ln det."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[0]):
            upper[i, j] = matrix[i, j]
    linear.factorise(upper)
    invert_factor_into(upper, root, inverse)
    return linear.compute_log_det(upper)


@jit
def make_gaussian(mean: Vector, covariance: Matrix, variance: float) -> Gaussian:
    """Build N(mean, covariance) for clicks of that variance."""
    d = mean.size
    information, precision = np.zeros((d, d)), np.zeros((d, d))
    pull, square = np.zeros(d), 0.0
    log_det = invert_into(covariance, information, np.zeros((d, d)), np.zeros((d, d)))
    for i in range(d):
        for j in range(d):
            precision[i, j] = variance * information[i, j]
            pull[i] += precision[i, j] * mean[j]
        square += pull[i] * mean[i]
    return Gaussian(
        mean.copy(), covariance.copy(), information, precision, pull, variance, square, d * log(variance) - log_det
    )


@jit_no_refcount
def measure_evidence(
    gram: Matrix, moment: Vector, share: float, more_gram: Matrix, more_moment: Vector, base: Gaussian, work: Workspace
) -> float:
    """Return the log marginal likelihood of ``share`` times some data plus other data, under one theta ~ N(m, T).

    Leaves the upper factor U of the posterior precision, and U^-T times its information vector, in ``work``.
    """
    upper, solution = work.upper, work.solution
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
    data: tuple[Matrix, Vector],
    share: float,
    grams: Cube,
    moments: Matrix,
    places: Indices,
    base: Gaussian,
    work: Workspace,
) -> Vector:
    """Return ``measure_evidence`` of ``share`` times some data plus those at each place, eight at a time."""
    evidence = np.empty(places.size)
    for first in range(0, places.size, LANES):
        count = min(LANES, places.size - first)
        for lane in range(LANES):  # lanes without a place repeat the first
            place = places[first + lane if lane < count else first]
            _fill_lane(data[0], data[1], share, grams[place], moments[place], base, work.lanes[lane:])
        factorise_lanes(work.lanes, base.mean.size)
        for lane in range(count):
            evidence[first + lane] = _read_lane(base, work.lanes[lane:])
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
def _read_lane(base: Gaussian, lane: Vector) -> float:
    """Return the log marginal likelihood of a factorised lane."""
    d, fit, log_det = base.mean.size, 0.0, 0.0
    for k in range(d):
        solved = lane[(k * (d + 1) + d) * LANES]
        fit += solved * solved
        log_det += log(lane[k * (d + 2) * LANES])
    return float(0.5 * (fit - base.square) / base.variance - 0.5 * (2.0 * log_det - base.log_det))


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
def invert_factor(work: Workspace) -> None:
    """Fill ``work.inverse`` with the inverse of the posterior precision of the last ``measure_evidence``."""
    invert_factor_into(work.upper, work.root, work.inverse)


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
    d = mean.size
    gram, moment = np.zeros((d, d)), np.zeros(d)
    invert_into(covariance, gram, np.zeros((d, d)), np.zeros((d, d)))
    for i in range(d):
        for j in range(d):
            gram[i, j] *= variance
            moment[i] += gram[i, j] * mean[j]
    for i in range(d):
        gram[i, i] -= lambda_
    return gram, moment
