"""Expectation and maximisation: what users' data say of the population and of the components of a mixture."""

from typing import NamedTuple

import numpy as np

from fedcascade.federation.grouping.mixture import (
    FREE,
    LEAST,
    LOG_DET,
    NEVER,
    SQUARE,
    WEIGHT,
    Cube,
    Mixture,
    Places,
    Room,
    Sums,
    discount_own,
    dot,
    find_level,
    get_spread,
    invert_into,
    multiply_into,
    prepare_level,
    weigh,
    weigh_population,
)
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

PRIOR_USERS = 0.5  # in each component beside those that data say
FARTHEST = 2.0  # squared distance from the population's mean, in its spread and per dimension, of whoever counts whole
PRIOR_SPREAD = 0.03  # of the population in each direction, for as many users as there are dimensions and two more


@jit
def set_population(mixture: Mixture, centre: Vector, covariance: Matrix, variance: float) -> None:
    """Let the population of a mixture be N(centre, covariance)."""
    d = centre.size
    inverse = np.empty((d, d))
    log_det = invert_into(covariance, inverse, np.empty((d, d)), np.empty((d, d)))
    for i in range(d):
        mixture.centre[i] = centre[i]
        for j in range(d):
            mixture.precision[i, j] = variance * inverse[i, j]
    multiply_into(mixture.precision, mixture.centre, mixture.pull)
    mixture.numbers[SQUARE] = dot(mixture.pull, mixture.centre)
    mixture.numbers[LOG_DET] = d * log(variance) - log_det


@jit
def invert(matrix: Matrix) -> Matrix:
    """The inverse of a symmetric matrix."""
    inverse = np.empty_like(matrix)
    invert_into(matrix, inverse, np.empty_like(matrix), np.empty_like(matrix))
    return inverse


@jit_no_refcount
def multiply_matrices(left: Matrix, right: Matrix, product: Matrix) -> None:
    """Fill ``product`` with that of two square matrices."""
    product[:] = 0.0
    for i in range(left.shape[0]):
        for k in range(left.shape[0]):
            factor = left[i, k]
            for j in range(left.shape[0]):
                product[i, j] += factor * right[k, j]


class Moments(NamedTuple):
    """What users tell of the population's mean and covariance."""

    total: Matrix  # the sum of (theta - m) (theta - m)^T over their estimates
    unknown: Matrix  # the sum of what is not known of each theta
    gradient: Vector  # the sum of theta - m
    weight: Vector  # (1,): how many users these are


def make_moments(d: int) -> Moments:
    """Moments of nobody."""
    return Moments(np.zeros((d, d)), np.zeros((d, d)), np.zeros(d), np.zeros(1))


@jit
def add_moments(
    gram: Cube, moment: Matrix, users: Places, mixture: Mixture, moments: Moments, variance: float, room: Room
) -> None:
    """Expectation of the population: add what some users tell.

    Who is further from the mean than FARTHEST squared spreads in each direction counts for as much less, so that
    nobody adds more to the covariance than a share of what it is.
    """
    d = moment.shape[1]
    away, product = room.scratch[1], room.scratch[2]
    for user in users:
        weigh_population(mixture, gram[user], moment[user], variance, room)
        for i in range(d):
            away[i] = room.theta[i] - mixture.centre[i]
        multiply_into(mixture.precision, away, product)
        weight = min(1.0, FARTHEST * d * variance / max(dot(away, product), 1e-9))
        moments.weight[0] += weight
        for i in range(d):
            moments.gradient[i] += weight * away[i]
            for j in range(d):
                moments.unknown[i, j] += weight * variance * room.inverse[i, j]
                moments.total[i, j] += weight * away[i] * away[j]


@jit
def step_population(mixture: Mixture, covariance: Matrix, moments: Moments, variance: float) -> None:
    """Maximisation of the population: move its mean by a Newton step, and set its covariance."""
    d, count = mixture.centre.size, moments.weight[0]
    inverse, upper, root = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    known, step = np.empty((d, d)), np.empty(d)
    invert_into(covariance, inverse, upper, root)
    # T^-1 sum (theta_u - m) = (count T^-1 - T^-1 unknown T^-1 + I) step
    multiply_matrices(inverse, moments.unknown, upper)
    multiply_matrices(upper, inverse, known)
    for i in range(d):
        for j in range(d):
            known[i, j] = count * inverse[i, j] - known[i, j]
        known[i, i] += 1.0
    for i in range(d):
        for j in range(i):
            known[i, j] = known[j, i] = 0.5 * (known[i, j] + known[j, i])
    multiply_into(inverse, moments.gradient, step)
    invert_into(known, known, upper, root)
    multiply_into(known, step, moments.gradient)
    for i in range(d):
        mixture.centre[i] += moments.gradient[i]
        for j in range(d):
            covariance[i, j] = (moments.total[i, j] + moments.unknown[i, j]) / (count + d + 2)
        covariance[i, i] += PRIOR_SPREAD * (d + 2) / (count + d + 2) + 1e-5
    set_population(mixture, mixture.centre.copy(), covariance, variance)


@jit
def sweep(
    gram: Cube,
    moment: Matrix,
    sample: Places,
    places: Places,
    former: Matrix,
    mixture: Mixture,
    covariances: Cube,
    sums: Sums,
    spread: float,
    variance: float,
    room: Room,
) -> None:
    """Expectation: fill ``former`` with the responsibilities of the users in some places of a sample, add to the sums.

    On the way in, ``former`` holds those of the sweep before, 0 at first.
    """
    d, level = moment.shape[1], find_level(spread)
    ratio, width, information = variance / get_spread(level), get_spread(level), np.empty((d, d))
    for x in places:
        user = sample[x]
        weigh(mixture, gram[user], moment[user], variance, room)
        discount_own(mixture, former[x], covariances, variance, room)
        prepare_level(gram[user], moment[user], level, variance, room)
        for i in range(d):
            for j in range(d):
                information[i, j] = -ratio * room.inverses[level, i, j] / width
            information[i, i] += 1.0 / width
        for k in range(room.weights.size):
            weight = room.weights[k]
            former[x, k] = weight if weight > LEAST else 0.0
            if weight > 1e-5:
                sums.doubts[k] += log(1.0 - min(weight, 1.0 - 1e-12))
            if weight > LEAST:
                sums.sizes[k] += weight
                for i in range(d):
                    sums.pulls[k, i] += weight * room.solutions[level, i] / width
                    for j in range(d):
                        sums.information[k, i, j] += weight * information[i, j]


@jit_no_refcount
def solve_component(
    information: Matrix, pull: Vector, inverse: Matrix, prior_pull: Vector, covariance: Matrix, mean: Vector, room: Room
) -> float:
    """Fill mean and covariance of a component's mean from sums and the population as its prior; returns evidence."""
    d, total = mean.size, room.scratch[0]
    for i in range(d):
        total[i] = pull[i] + prior_pull[i]
        for j in range(d):
            covariance[i, j] = information[i, j] + inverse[i, j]
    log_det = invert_into(covariance, covariance, room.upper, room.root)
    multiply_into(covariance, total, mean)
    return 0.5 * dot(total, mean) - 0.5 * log_det


@jit
def maximise(
    mixture: Mixture, sums: Sums, covariances: Cube, inverse: Matrix, spread: float, users: int, room: Room
) -> None:
    """Maximisation: means, levels and weights from the sums; ``inverse`` is that of the population's covariance."""
    d, alive, members = mixture.centre.size, 0, 0.0
    prior_pull = np.empty(d)
    multiply_into(inverse, mixture.centre, prior_pull)
    for k in range(mixture.levels.size):
        alive += mixture.levels[k] != FREE
    for k in range(mixture.levels.size):
        if mixture.levels[k] == FREE:
            continue
        solve_component(sums.information[k], sums.pulls[k], inverse, prior_pull, covariances[k], mixture.means[k], room)
        unknown = 0.0
        for i in range(d):
            unknown += covariances[k, i, i] / d
        mixture.levels[k] = find_level(spread + unknown)
        mixture.log_weights[k] = log((sums.sizes[k] + PRIOR_USERS) / (users + 1.0 + PRIOR_USERS * alive))
        members += sums.sizes[k]
    if mixture.numbers[WEIGHT] > NEVER:
        mixture.numbers[WEIGHT] = log((max(users - members, 0.0) + 1.0) / (users + 1.0 + PRIOR_USERS * alive))
