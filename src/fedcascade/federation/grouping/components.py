"""Groups as an agent is told of them, a Gaussian each: so it can tell by itself, click by click, which it is like.

A component is a row of numbers: the d of its mean, its variance v in each direction, and the share of all agents that
are in its group. Rows with a share of 0 are free. Beside them there is always the possibility that an agent is like
nobody: theta ~ N(0, tau^2 I), as the evidence of ``grouping.evidence`` assumes.
"""

import numpy as np

from fedcascade.federation.grouping.gibbs import Memory, Model, make_memory, measure_sum
from fedcascade.federation.grouping.mixture import state_into
from fedcascade.federation.grouping.rows import Row, Rows
from fedcascade.numerics import linear
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

NUMBERS = 2  # a component ends with its variance and its share
SPREAD = 0.002  # the variance in each direction of theta within a group, as ``grouping.population`` assumes
UNLIKE = 0.2  # how probable it is, before any data, that an agent is like nobody
NEVER = -1e300  # the log-likelihood under a component that is not there


def make_components(most: int, dimension: int) -> Rows:
    """No components, with room for ``most``."""
    return np.zeros((most, dimension + NUMBERS))


@jit
def fill_component(row: Row, share: float, model: Model, component: Row) -> None:
    """What a group's data say of its members' theta: the mean, and the mean of the variances in all directions."""
    memory = make_memory(row)
    measure_sum(row, row, 0.0, model, memory)
    upper, theta = memory
    d = theta.size
    root = np.empty((d, d))
    linear.invert_root_into(upper, root)
    for i in range(d - 1, -1, -1):
        for j in range(i + 1, d):
            theta[i] -= upper[i, j] * theta[j]
        theta[i] /= upper[i, i]
    trace = 0.0
    for i in range(d):
        component[i] = theta[i]
        for j in range(i + 1):
            trace += root[i, j] * root[i, j]
    component[d] = SPREAD + model.variance * trace / d
    component[d + 1] = share


@jit_no_refcount
def measure_under(row: Row, component: Row, variance: float, memory: Memory) -> float:
    """The log-likelihood of a row of data whose theta is drawn from a component."""
    upper, solution = memory
    d, k, fit, square = solution.size, 0, 0.0, 0.0
    ratio = variance / component[d]
    for i in range(d):
        for j in range(i, d):
            upper[i, j] = row[k]
            k += 1
        upper[i, i] += ratio
    linear.factorise(upper)
    for j in range(d):
        value = row[k + j] + ratio * component[j]
        for i in range(j):
            value -= upper[i, j] * solution[i]
        solution[j] = value / upper[j, j]
        fit += solution[j] * solution[j]
        square += component[j] * component[j]
    return float(0.5 * ((fit - ratio * square) / variance - linear.compute_log_det(upper) + d * log(ratio)))


@jit_no_refcount
def weigh_components(row: Row, components: Rows, model: Model, memory: Memory, weights: Row, least: float) -> float:
    """The log-likelihood of a row under all components together; ``weights`` become their probabilities given it.

    The last weight is that of being like nobody. Components whose weight was below ``least`` before are left out.
    """
    count, last = components.shape[0], components.shape[1] - 1
    largest = measure_sum(row, row, 0.0, model, memory) + log(UNLIKE)
    weights[count] = largest
    for k in range(count):
        is_considered = components[k, last] > 0.0 and weights[k] >= least
        weights[k] = NEVER
        if is_considered:
            share = (1.0 - UNLIKE) * components[k, last]
            weights[k] = measure_under(row, components[k], model.variance, memory) + log(share)
            largest = max(largest, weights[k])
    total = 0.0
    for k in range(count + 1):
        weights[k] = exp(weights[k] - largest) if weights[k] > NEVER else 0.0
        total += weights[k]
    for k in range(count + 1):
        weights[k] /= total
    return float(largest + log(total))


@jit
def blend_components(
    components: Rows, weights: Row, model: Model, lambda_: float, gram: Matrix, moment: Vector
) -> None:
    """Fill ``gram`` and ``moment`` with data that say as much as the mixture of components does before any own data.

    The mixture is matched by one Gaussian N(m, C). A ridge with ``lambda_`` gets it from sigma^2 C^-1 - lambda I and
    sigma^2 C^-1 m.
    """
    count, d = components.shape[0], moment.size
    mean, covariance = np.zeros(d), np.zeros((d, d))
    level = weights[count] / model.prior
    for k in range(count):
        level += weights[k] * components[k, d] / model.variance
        for i in range(d):
            mean[i] += weights[k] * components[k, i]
    for i in range(d):
        covariance[i, i] = level
    for k in range(count + 1):
        if weights[k] > 0.0:
            for i in range(d):
                apart = (components[k, i] if k < count else 0.0) - mean[i]
                factor = weights[k] * apart / model.variance
                for j in range(d):
                    covariance[i, j] += factor * ((components[k, j] if k < count else 0.0) - mean[j])
    state_into(mean, covariance, lambda_, gram, moment)
