"""How far an agent's answer lets others' data in: enough of them to hide each, and no more than its own data believe.

The paper answers with the sum over a group, whoever is in it. A service meets people who lie and people who look: there
a policy has a ``Sharing``. What an agent itself has uploaded is always in its answer, whole.
"""

from dataclasses import dataclass

from fedcascade.checks import POSITIVE, RATIO, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.gibbs import compute_evidence
from fedcascade.federation.grouping.guard import Guard
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Matrix, Vector

HALVINGS = 8  # others' data count whole, by a half, a quarter, ... to 1/256, or not at all


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
        others = answer - own
        if own.count == 0 or others.count == 0:
            return answer
        weight = self.choose_weight(own, others)
        return answer if weight == 1.0 else own + others.scale(weight)

    def choose_weight(self, own: Statistics, others: Statistics) -> float:
        """The weight of others' data that explains the agent's own best."""
        variance, prior = float(self.variance), self.compute_prior(own.dimension)
        return float(find_weight(own.gram, own.moment, others.gram, others.moment, variance, prior))

    def compute_prior(self, dimension: int) -> float:
        """l = sigma^2 / tau^2."""
        return float(self.variance * dimension / self.length**2)


@jit
def find_weight(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """Halve the weight of others' data while that makes own clicks more likely; 0 if nothing beats own data alone."""
    weight, best = 1.0, _compute_likelihood(own_gram, own_moment, gram, moment, variance, prior)
    for _ in range(HALVINGS):
        half = 0.5 * weight
        likelihood = _compute_likelihood(own_gram, own_moment, half * gram, half * moment, variance, prior)
        if not likelihood > best:
            break
        weight, best = half, likelihood
    return weight if best >= compute_evidence(own_gram, own_moment, variance, prior) else 0.0


@jit
def _compute_likelihood(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """The log-likelihood of own clicks under others' data, up to what cancels."""
    together = compute_evidence(own_gram + gram, own_moment + moment, variance, prior)
    return together - compute_evidence(gram, moment, variance, prior)
