"""How far an agent's answer lets others' data in: enough of them to hide each, and no more than its own data believe.

The paper answers with the sum over a group, whoever is in it. A service meets people who lie and people who look: there
a policy has a ``Sharing``. What an agent itself has uploaded is always in its answer, whole.
"""

from dataclasses import dataclass

import numpy as np

from fedcascade.checks import RATIO, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.evidence import compute_prior, describe_length, describe_variance
from fedcascade.federation.grouping.guard import Guard
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

HALVINGS = 8  # others' data count whole, by a half, a quarter, ... to 1/256, or not at all
LEAST_GAIN = 0.05  # of log-likelihood: data that are doubted for less only cost time


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
    variance: float = describe_variance()
    length: float = describe_length()

    @property
    def guard(self) -> Guard:
        """What partitions need to know."""
        return Guard(self.min_others, float(self.max_weight))

    def limit(self, own: Statistics, answer: Statistics) -> Statistics:
        """The answer to an agent that has uploaded ``own``, of which others' part counts as much as it deserves."""
        if own.count == 0 or answer.count == own.count:
            return answer
        variance, prior = float(self.variance), self.compute_prior(own.dimension)
        weight = weigh_others(own.gram, own.moment, answer.gram, answer.moment, variance, prior)
        if weight == 1.0:
            return answer
        gram = own.gram + weight * (answer.gram - own.gram)
        moment = own.moment + weight * (answer.moment - own.moment)
        pairs = (own.count, answer.count), (own.clicks, answer.clicks), (own.rounds, answer.rounds)
        return Statistics(gram, moment, *(mine + int(weight * (total - mine)) for mine, total in pairs))

    def compute_prior(self, dimension: int) -> float:
        """l of the evidence that others' data are weighed by."""
        return compute_prior(self.variance, self.length, dimension)


@jit
def weigh_others(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """The weight that the others' part of a sum deserves."""
    return find_weight(own_gram, own_moment, gram - own_gram, moment - own_moment, variance, prior)


@jit
def find_weight(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """Halve the weight of others' data while own clicks become clearly likelier; 0 if nothing beats own data alone."""
    own, others, model = (own_gram, own_moment), (gram, moment), (variance, prior)
    weight, best, room = 1.0, -np.inf, np.empty((moment.size, moment.size + 1))
    for halving in range(HALVINGS + 1):
        share = 0.5**halving
        likelihood = _measure_evidence(1.0, own, share, others, model, room)
        likelihood -= _measure_evidence(0.0, own, share, others, model, room)
        if not likelihood > best + LEAST_GAIN:
            break
        weight, best = share, likelihood
    return weight if best >= _measure_evidence(1.0, own, 0.0, others, model, room) else 0.0


@jit_no_refcount
def _measure_evidence(
    own_share: float,
    own: tuple[Matrix, Vector],
    share: float,
    others: tuple[Matrix, Vector],
    model: tuple[float, float],
    room: Matrix,
) -> float:
    """``gibbs.compute_evidence`` of a sum of shares, the same to the bit, in ``room`` of shape (d, d + 1)."""
    (own_gram, own_moment), (gram, moment), (variance, prior) = own, others, model
    d = moment.size
    for i in range(d):
        for j in range(i, d):
            room[i, j] = own_share * own_gram[i, j] + share * gram[i, j]
        room[i, i] += prior
        room[i, d] = own_share * own_moment[i] + share * moment[i]
    linear.factorise_with_column(room)
    square = 0.0
    for k in range(d):
        square += room[k, d] * room[k, d]
    return 0.5 * (square / variance - linear.compute_log_det(room) + d * log(prior))
