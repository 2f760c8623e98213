"""How far an agent's answer lets others' data in: enough of them to hide each, and no more than its own data believe.

The paper answers with the sum over a group, whoever is in it. A service meets people who lie and people who look: there
a policy has a ``Sharing``. What an agent itself has uploaded is always in its answer, whole.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import RATIO, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.evidence import compute_prior, describe_length, describe_variance
from fedcascade.federation.grouping.guard import Guard
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_inline, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector

HALVINGS = 8  # others' data count whole, by a half, a quarter, ... to 1/256, or not at all
SHARES = 4  # that are tried at a time
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
    """Halve the weight of others' data while own clicks become clearly likelier; 0 if own data alone explain them best.

    Where half is better than whole, and own data alone are better than the least share, nothing between is looked at.
    """
    own, others, model = (own_gram, own_moment), (gram, moment), (variance, prior)
    room, evidence = np.empty((moment.size, moment.size + 1, 2 * SHARES)), np.empty(2 * SHARES)
    shares = np.array([1.0, 0.5, 0.5**HALVINGS, 0.0])
    _measure_evidence(own, others, shares, model, room, evidence)
    whole, half, least, alone = evidence[0], evidence[1], evidence[2], evidence[3]
    whole, half, least = whole - evidence[SHARES], half - evidence[SHARES + 1], least - evidence[SHARES + 2]
    if not half > whole + LEAST_GAIN:
        return 1.0 if whole >= alone else 0.0
    if least < alone:
        return 0.0
    weight, best, halving = 0.5, half, 2
    while True:
        for place in range(SHARES):
            shares[place] = 0.5 ** (halving + place)
        _measure_evidence(own, others, shares, model, room, evidence)
        for place in range(SHARES):
            likelihood = evidence[place] - evidence[SHARES + place]
            if halving > HALVINGS or not likelihood > best + LEAST_GAIN:
                return weight if best >= alone else 0.0
            weight, best = shares[place], likelihood
            halving += 1


@jit_no_refcount
def _measure_evidence(
    own: tuple[Matrix, Vector],
    others: tuple[Matrix, Vector],
    shares: Vector,
    model: tuple[float, float],
    room: NDArray[np.float64],
    evidence: Vector,
) -> None:
    """Fill ``evidence`` with ``gibbs.compute_evidence`` of own data and a share of others', then of that share alone.

    Each is the same to the bit. They are computed side by side, in ``room`` of shape (d, d + 1, 2 SHARES): there LLVM
    finds one instruction for all of them.
    """
    (own_gram, own_moment), (gram, moment), (variance, prior) = own, others, model
    d = moment.size
    for i in range(d):
        for j in range(i, d):
            for place in range(SHARES):
                part = shares[place] * gram[i, j]
                room[i, j, place], room[i, j, SHARES + place] = own_gram[i, j] + part, part
        for place in range(SHARES):
            part = shares[place] * moment[i]
            room[i, d, place], room[i, d, SHARES + place] = own_moment[i] + part, part
        for lane in range(2 * SHARES):
            room[i, i, lane] += prior
    _factorise_lanes(room, evidence)  # which is filled only now
    for lane in range(2 * SHARES):
        square, log_det = 0.0, 0.0
        for k in range(d):
            square += room[k, d, lane] * room[k, d, lane]
            log_det += log(room[k, k, lane])
        evidence[lane] = 0.5 * (square / variance - 2.0 * log_det + d * log(prior))


@jit_inline
def _factorise_lanes(room: NDArray[np.float64], pivot: Vector) -> None:
    """Overwrite the upper triangles of matrices with their factors U, and a further column c of each with U^-T c.

    The matrices lie side by side along the last axis. The arithmetic of each is that of ``linear.factorise``. The
    squared length of a column is then its leverage.
    """
    size = room.shape[0]
    for k in range(size):
        for lane in range(2 * SHARES):
            pivot[lane] = np.sqrt(room[k, k, lane])
        for j in range(k, size):
            for lane in range(2 * SHARES):
                room[k, j, lane] /= pivot[lane]
        for lane in range(2 * SHARES):
            room[k, size, lane] /= room[k, k, lane]
        for i in range(k + 1, size):
            for j in range(i, size + 1):
                for lane in range(2 * SHARES):
                    room[i, j, lane] -= room[k, i, lane] * room[k, j, lane]
