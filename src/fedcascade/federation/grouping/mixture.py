"""What many users' data say of a user: a mixture of Gaussians over theta, fitted by EM, compiled.

theta ~ pi_0 N(m, T) + sum_k pi_k N(mu_k, v_k I), and clicks have noise sigma^2. The first term is the population, the
others are components. v_k is the spread within a component plus what is not known of its mean. It is rounded to one of
few levels, so that one factorisation of a user's data serves all components of a level.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics import linear
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit, jit_inline, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

Cube = NDArray[np.float64]  # a matrix for each of several places
Places = NDArray[np.int64]
LEVELS, LOWEST_SPREAD = 10, 5e-4  # level l stands for the variance LOWEST_SPREAD 2^l
FREE = -1  # the level of a slot without a component
NEVER = -1000.0  # the log weight of what is left out
LEAST = 1e-3  # a smaller responsibility counts as none
WEIGHT, SQUARE, LOG_DET = 0, 1, 2  # places in Mixture.numbers


class Mixture(NamedTuple):
    """The mixture: components in slots, and the population. All precisions are times sigma^2."""

    means: Matrix  # (slots, d)
    levels: Places  # (slots,), FREE where there is none
    log_weights: Vector  # (slots,)
    centre: Vector  # m
    precision: Matrix  # sigma^2 T^-1
    pull: Vector  # precision m
    numbers: Vector  # ln pi_0, m^T precision m, ln det precision


class Sums(NamedTuple):
    """What users tell of the components' means: information, information times estimate, and how many users."""

    information: Cube  # (slots, d, d)
    pulls: Matrix  # (slots, d)
    sizes: Vector  # (slots,)
    doubts: Vector  # (slots,): the sum of ln(1 - responsibility)


class Room(NamedTuple):
    """Memory for one user: what ``weigh`` leaves there is what the user's data say under each part of a mixture."""

    upper: Matrix
    root: Matrix
    inverse: Matrix  # (S + precision)^-1
    theta: Vector  # the estimate under the population
    inverses: Cube  # (levels, d, d): (S + sigma^2 / v I)^-1
    solutions: Matrix  # (levels, d): the same times b
    base: Vector  # (levels,): evidence for a component at 0
    weights: Vector  # (slots,): responsibilities
    numbers: Vector  # the responsibility of the population, evidence under it, evidence under the mixture
    scratch: Matrix  # (4, d)


@jit
def make_room(slots: int, d: int) -> Room:
    """Memory for users of that dimension."""
    return Room(
        np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d)), np.zeros(d), np.zeros((LEVELS, d, d)),
        np.zeros((LEVELS, d)), np.zeros(LEVELS), np.zeros(slots), np.zeros(3), np.zeros((4, d)),
    )  # fmt: skip


@jit
def make_sums(slots: int, d: int) -> Sums:
    """Sums of nobody."""
    return Sums(np.zeros((slots, d, d)), np.zeros((slots, d)), np.zeros(slots), np.zeros(slots))


@jit_inline
def get_spread(level: int) -> float:
    """The variance that a level stands for."""
    return LOWEST_SPREAD * 2.0**level


@jit_inline
def find_level(spread: float) -> int:
    """The level whose variance is nearest, by ratio."""
    level = 0
    while level < LEVELS - 1 and get_spread(level) * 1.41 < spread:
        level += 1
    return level


@jit_no_refcount
def invert_into(matrix: Matrix, inverse: Matrix, upper: Matrix, root: Matrix) -> float:
    """Fill ``inverse`` with that of a symmetric matrix; returns ln det, or NaN if it is not definite."""
    d = matrix.shape[0]
    for i in range(d):
        for j in range(d):
            upper[i, j] = matrix[i, j]
            inverse[i, j] = 0.0
    linear.factorise(upper)
    linear.invert_root_into(upper, root)
    for k in range(d):
        for i in range(k + 1):
            factor = root[k, i]
            for j in range(k + 1):
                inverse[i, j] += factor * root[k, j]
    return linear.compute_log_det(upper)


@jit_no_refcount
def multiply_into(matrix: Matrix, vector: Vector, product: Vector) -> None:
    """Fill ``product`` with that of a symmetric matrix and a vector."""
    product[:] = 0.0
    for i in range(vector.size):
        factor = vector[i]
        for j in range(vector.size):
            product[j] += factor * matrix[i, j]


@jit_inline
def dot(left: Vector, right: Vector) -> float:
    """The scalar product."""
    total = 0.0
    for k in range(left.size):
        total += left[k] * right[k]
    return total


@jit_no_refcount
def prepare_level(gram: Matrix, moment: Vector, level: int, variance: float, room: Room) -> None:
    """What a user's data say under components of a level."""
    d, ratio, inverse = moment.size, variance / get_spread(level), room.inverses[level]
    for i in range(d):
        for j in range(d):
            inverse[i, j] = gram[i, j]
        inverse[i, i] += ratio
    log_det = invert_into(inverse, inverse, room.upper, room.root)
    multiply_into(inverse, moment, room.solutions[level])
    fit = dot(moment, room.solutions[level])
    room.base[level] = 0.5 * fit / variance - 0.5 * (log_det - d * log(ratio))


@jit_no_refcount
def weigh_population(mixture: Mixture, gram: Matrix, moment: Vector, variance: float, room: Room) -> float:
    """The evidence of a user's data under the population; leaves the estimate and the inverse in ``room``."""
    d, pulled = moment.size, room.scratch[0]
    for i in range(d):
        pulled[i] = moment[i] + mixture.pull[i]
        for j in range(d):
            room.inverse[i, j] = gram[i, j] + mixture.precision[i, j]
    log_det = invert_into(room.inverse, room.inverse, room.upper, room.root)
    multiply_into(room.inverse, pulled, room.theta)
    fit = dot(pulled, room.theta) - mixture.numbers[SQUARE]
    return float(0.5 * fit / variance - 0.5 * (log_det - mixture.numbers[LOG_DET]))


@jit_no_refcount
def weigh(mixture: Mixture, gram: Matrix, moment: Vector, variance: float, room: Room) -> float:
    """Fill the responsibilities of the population and of all components; returns the evidence of the user's data."""
    slots, ready = mixture.levels.size, 0
    evidence = weigh_population(mixture, gram, moment, variance, room)
    room.numbers[1] = evidence
    largest = mixture.numbers[WEIGHT] + evidence
    for k in range(slots):
        level = mixture.levels[k]
        if level == FREE:
            continue
        if ready & (1 << level) == 0:
            ready |= 1 << level
            prepare_level(gram, moment, level, variance, room)
        spread, mean, product = get_spread(level), mixture.means[k], room.scratch[1]
        multiply_into(room.inverses[level], mean, product)
        square = dot(mean, mean) - variance / spread * dot(mean, product)
        fit = room.base[level] + (dot(mean, room.solutions[level]) - 0.5 * square) / spread
        room.weights[k] = mixture.log_weights[k] + fit
        largest = max(largest, room.weights[k])
    room.numbers[0] = exp(mixture.numbers[WEIGHT] + evidence - largest)
    total = room.numbers[0]
    for k in range(slots):
        room.weights[k] = exp(room.weights[k] - largest) if mixture.levels[k] != FREE else 0.0
        total += room.weights[k]
    room.numbers[2] = largest + log(total)
    _divide_weights(room, total)
    return float(room.numbers[2])


@jit_inline
def _divide_weights(room: Room, total: float) -> None:
    room.numbers[0] /= total
    for k in range(room.weights.size):
        room.weights[k] /= total


@jit_no_refcount
def estimate_into(mixture: Mixture, slot: int, variance: float, room: Room, theta: Vector) -> None:
    """Fill ``theta`` with the estimate of the user of ``room`` if it belongs to a component."""
    level = mixture.levels[slot]
    ratio = variance / get_spread(level)
    multiply_into(room.inverses[level], mixture.means[slot], theta)
    for i in range(theta.size):
        theta[i] = room.solutions[level, i] + ratio * theta[i]


@jit_no_refcount
def discount_own(mixture: Mixture, former: Vector, covariances: Cube, variance: float, room: Room) -> None:
    """Leave a user's own data out of the components that it helped to find, to first order, in its responsibilities."""
    total, theta, product = room.numbers[0], room.scratch[2], room.scratch[3]
    for k in range(former.size):
        if former[k] > 0.01 and room.weights[k] > 1e-4:
            spread = get_spread(mixture.levels[k])
            estimate_into(mixture, k, variance, room, theta)
            for i in range(theta.size):
                theta[i] = (theta[i] - mixture.means[k, i]) / spread
            multiply_into(covariances[k], theta, product)
            room.weights[k] *= exp(-former[k] * dot(theta, product))
        total += room.weights[k]
    _divide_weights(room, total)


@jit
def match_moments(mixture: Mixture, variance: float, room: Room) -> tuple[Vector, Matrix]:
    """Mean and covariance / sigma^2 of theta under the mixture, after ``weigh``."""
    d = mixture.centre.size
    mean, second, theta = np.zeros(d), np.zeros((d, d)), room.scratch[2]
    shares, total = np.zeros(LEVELS), room.numbers[0]
    _add_moments(mean, second, room.theta, room.numbers[0], variance)
    for k in range(room.weights.size):
        if room.weights[k] > 1e-4:
            estimate_into(mixture, k, variance, room, theta)
            _add_moments(mean, second, theta, room.weights[k], variance)
            shares[mixture.levels[k]] += room.weights[k]
            total += room.weights[k]
    for i in range(d):
        for j in range(d):
            second[i, j] += room.numbers[0] * room.inverse[i, j]
            for level in range(LEVELS):
                if shares[level] > 0.0:
                    second[i, j] += shares[level] * room.inverses[level, i, j]
    for i in range(d):
        mean[i] /= total
    for i in range(d):
        for j in range(d):
            second[i, j] = second[i, j] / total - mean[i] * mean[j] / variance
    return mean, second


@jit_no_refcount
def _add_moments(mean: Vector, second: Matrix, theta: Vector, weight: float, variance: float) -> None:
    for i in range(theta.size):
        mean[i] += weight * theta[i]
        factor = weight * theta[i] / variance
        for j in range(theta.size):
            second[i, j] += factor * theta[j]


@jit
def state_as_statistics(mean: Vector, covariance: Matrix, lambda_: float) -> tuple[Matrix, Vector]:
    """Gram and moment from which a ridge with ``lambda_`` gets that mean, and that covariance / sigma^2."""
    gram, moment = np.empty((mean.size, mean.size)), np.empty(mean.size)
    state_into(mean, covariance, lambda_, gram, moment)
    return gram, moment


@jit
def state_into(mean: Vector, covariance: Matrix, lambda_: float, gram: Matrix, moment: Vector) -> None:
    """Fill ``gram`` and ``moment`` with what ``state_as_statistics`` returns."""
    d = mean.size
    invert_into(covariance, gram, np.empty((d, d)), np.empty((d, d)))
    for i in range(d):
        for j in range(i):
            gram[i, j] = gram[j, i]
    multiply_into(gram, mean, moment)
    for i in range(d):
        gram[i, i] -= lambda_
