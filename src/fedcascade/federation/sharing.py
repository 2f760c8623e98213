"""How far an agent's answer lets others' data in: enough of them to hide each, and no more than its own data believe.

The paper answers with the sum over a group, whoever is in it. A service meets people who lie and people who look: there
a policy has a ``Sharing``. What an agent itself has uploaded is always in its answer, whole.
"""

from dataclasses import dataclass

import numpy as np

from fedcascade.checks import RATIO, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.evidence import compute_prior, describe_length, describe_variance
from fedcascade.federation.grouping.gibbs import compute_evidence
from fedcascade.federation.grouping.guard import Guard
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit
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
        weight, gram, moment = weigh_others(own.gram, own.moment, answer.gram, answer.moment, variance, prior)
        if weight == 1.0:
            return answer
        pairs = (own.count, answer.count), (own.clicks, answer.clicks), (own.rounds, answer.rounds)
        return Statistics(gram, moment, *(mine + int(weight * (total - mine)) for mine, total in pairs))

    def compute_prior(self, dimension: int) -> float:
        """l of the evidence that others' data are weighed by."""
        return compute_prior(self.variance, self.length, dimension)


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
    weight, best = 1.0, -np.inf
    for halving in range(HALVINGS + 1):
        share = 0.5**halving
        others_gram, others_moment = share * gram, share * moment
        together = compute_evidence(own_gram + others_gram, own_moment + others_moment, variance, prior)
        likelihood = together - compute_evidence(others_gram, others_moment, variance, prior)
        if not likelihood > best + LEAST_GAIN:
            break
        weight, best = share, likelihood
    return weight if best >= compute_evidence(own_gram, own_moment, variance, prior) else 0.0
