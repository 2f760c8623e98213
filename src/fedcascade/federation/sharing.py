"""How far an agent's answer lets others' data in: enough of them to hide each, and no more than its own data believe.

The paper answers with the sum over a group, whoever is in it. A service meets people who lie and people who look: there
a policy has a ``Sharing``. What an agent itself has uploaded is always in its answer, whole.
"""

from dataclasses import dataclass

import numpy as np

from fedcascade.checks import POSITIVE, RATIO, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.guard import Guard
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Matrix, Vector

HALVINGS = 8  # others' data count whole, by a half, a quarter, ... to 1/256, or not at all
LEAST_GAIN = 0.05  # of log-likelihood: data that are doubted for less only cost time
PIVOTS_PER_LOG = 8


@dataclass(frozen=True, kw_only=True)
class Sharing(Part):
    """Weighs others' data in an answer by how well they predict the agent's own.

    With E the evidence of ``grouping.evidence``, E(own + w others) - E(w others) is the log-likelihood of the agent's
    own clicks under what w times the others' data say. From w = 1 on, w is halved while that
    makes the agent's own clicks more likely: near 1 where the others are alike, 0 where they mislead.
    """

    min_others: int = constant(
        2, meaning="an answer holds others' data only if they are of so many others or more", range=whole_numbers(0)
    )
    max_weight: float = constant(
        2.0,
        meaning="others' data count at most as so many times the median of the group's agents, rounded up to 2^n",
        range=RATIO,
    )
    variance: float = constant(
        0.2, meaning="the noise of a click that the evidence assumes", symbol="sigma^2", range=POSITIVE
    )
    length: float = constant(
        1.0,
        meaning="how long a theta is expected to be, before any data: tau^2 is length^2 / d",
        symbol="tau sqrt(d)",
        range=POSITIVE,
    )

    @property
    def guard(self) -> Guard:
        """What partitions need to know."""
        return Guard(self.min_others, float(self.max_weight))

    def limit(self, own: Statistics, answer: Statistics) -> Statistics:
        """The answer to an agent that has uploaded ``own``, of which others' part counts as much as it deserves."""
        if own.count == 0 or answer.count == own.count:
            return answer
        variance, prior = float(self.variance), self.compute_prior(own.dimension)
        weight, gram, moment = weigh_others(own.gram, own.moment, answer.gram, answer.moment, variance, prior)
        if weight == 1.0:
            return answer
        pairs = (own.count, answer.count), (own.clicks, answer.clicks), (own.rounds, answer.rounds)
        return Statistics(gram, moment, *(mine + int(weight * (total - mine)) for mine, total in pairs))

    def compute_prior(self, dimension: int) -> float:
        """l = sigma^2 / tau^2."""
        return float(self.variance * dimension / self.length**2)


@jit
def weigh_others(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> tuple[float, Matrix, Vector]:
    """The weight that others' part of a sum deserves; gram and moment of own data and of others' with that weight."""
    others_gram, others_moment = gram - own_gram, moment - own_moment
    weight = find_weight(own_gram, own_moment, others_gram, others_moment, variance, prior)
    return weight, own_gram + weight * others_gram, own_moment + weight * others_moment


@jit
def find_weight(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """Halve the weight of others' data while own clicks become clearly likelier; 0 if nothing beats own data alone."""
    upper, solved = np.empty_like(gram), np.empty_like(moment)
    weight, best = 1.0, -np.inf
    for halving in range(HALVINGS + 1):
        share = 0.5**halving
        together = _measure_sum(1.0, own_gram, own_moment, share, gram, moment, variance, prior, upper, solved)
        alone = _measure_sum(0.0, own_gram, own_moment, share, gram, moment, variance, prior, upper, solved)
        if not together - alone > best + LEAST_GAIN:
            break
        weight, best = share, together - alone
    own = _measure_sum(1.0, own_gram, own_moment, 0.0, gram, moment, variance, prior, upper, solved)
    return weight if best >= own + 0.5 * moment.size * log(prior) else 0.0


@jit_inline
def _measure_sum(
    own_share: float,
    own_gram: Matrix,
    own_moment: Vector,
    share: float,
    gram: Matrix,
    moment: Vector,
    variance: float,
    prior: float,
    upper: Matrix,
    solved: Vector,
) -> float:
    """E - d/2 ln l of a share of own data and a share of others', by the steps of a Cholesky factorisation in place."""
    size, fit, log_det, product = moment.size, 0.0, 0.0, 1.0
    for i in range(size):
        solved[i] = own_share * own_moment[i] + share * moment[i]
        for j in range(i, size):
            upper[i, j] = own_share * own_gram[i, j] + share * gram[i, j]
        upper[i, i] += prior
    for k in range(size):
        scale = 1.0 / np.sqrt(upper[k, k])
        for j in range(k, size):
            upper[k, j] *= scale
        solved[k] *= scale
        fit += solved[k] * solved[k]
        product *= scale
        if k % PIVOTS_PER_LOG == PIVOTS_PER_LOG - 1 or k == size - 1:  # a logarithm costs more than a row
            log_det -= log(product)
            product = 1.0
        for i in range(k + 1, size):
            factor = upper[k, i]
            solved[i] -= factor * solved[k]
            for j in range(i, size):
                upper[i, j] -= factor * upper[k, j]
    return 0.5 * fit / variance - log_det
