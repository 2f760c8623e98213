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
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit, jit_inline, jit_no_refcount
from fedcascade.numerics.lanes import LANES, divide, subtract_product, take_root
from fedcascade.numerics.linear import Matrix, Vector

HALVINGS = 8  # others' data count whole, by a half, a quarter, ... to 1/256, or not at all
SHARES = LANES // 2  # that are tried at a time
LEAST_GAIN = 0.05  # of log-likelihood: data that are doubted for less only cost time
LOG_ODDS_OF_NONE = 3.5  # prior log-odds of weight 0 against each other weight in ``average_weight``


@dataclass(frozen=True, kw_only=True)
class Sharing(Part):
    """Weighs others' data in an answer by how well they predict the agent's own.

    With E the log marginal likelihood for theta ~ N(0, tau^2 I), E(own + w others) - E(w others) is the log-likelihood
    of the agent's own clicks under w times the others' data. From w = 1 on, w is halved while that makes the agent's
    own clicks more likely: near 1 where the others are alike, 0 where they mislead.
    """

    min_others: int = constant(
        2, meaning="an answer holds others' data only if they are of so many others or more", range=whole_numbers(0)
    )
    max_weight: float = constant(
        2.0, range=RATIO,
        meaning="others' data count at most as so many times the median of the group's agents, rounded up to 2^n",
    )  # fmt: skip
    variance: float = constant(
        0.2, meaning="the noise of a click that the evidence assumes", symbol="sigma^2", range=POSITIVE
    )
    length: float = constant(
        1.0, meaning="how long a theta is expected to be, before any data: tau^2 is length^2 / d",
        symbol="tau sqrt(d)", range=POSITIVE,
    )  # fmt: skip

    @property
    def guard(self) -> Guard:
        """What partitions need to know."""
        return Guard(self.min_others, float(self.max_weight))

    def limit(self, own: Statistics, answer: Statistics) -> Statistics:
        """The answer to an agent that has uploaded ``own``, of which others' part counts as much as it deserves."""
        if own.count == 0 or answer.count == own.count:
            return answer
        others, model = answer - own, (float(self.variance), self.compute_prior(own.dimension))
        weight = find_weight(own.gram, own.moment, others.gram, others.moment, *model)
        return answer if weight == 1.0 else own + others.scale(weight)

    def compute_prior(self, dimension: int) -> float:
        """Return sigma^2 / tau^2 of the evidence that others' data are weighed by."""
        return float(self.variance * dimension / self.length**2)


@jit
def find_weight(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """Halve the weight of others' data while own clicks become clearly likelier; 0 if own data alone explain them best.

    Where half is better than whole, and own data alone are better than the least share, nothing between is looked at.
    """
    own, others, model = (own_gram, own_moment), (gram, moment), (variance, prior)
    room, evidence = np.empty((moment.size * (moment.size + 1) + 1) * LANES), np.empty(LANES)
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


@jit
def average_weight(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """Return the posterior mean of the weights 1, 1/4, 1/16 and 0, given own clicks.

    A priori, weight 0 is 33 times as probable as each of the others: others' data have to earn their weight. Unlike the
    weight that ``find_weight`` chooses, the mean changes little where own clicks say little.
    """
    room, evidence = np.empty((moment.size * (moment.size + 1) + 1) * LANES), np.empty(LANES)
    weights = np.array([1.0, 0.25, 0.0625, 0.0])
    _measure_evidence((own_gram, own_moment), (gram, moment), weights, (variance, prior), room, evidence)
    largest, total, mean = -np.inf, 0.0, 0.0
    for place in range(SHARES):
        evidence[place] -= evidence[SHARES + place]
        if weights[place] == 0.0:
            evidence[place] += LOG_ODDS_OF_NONE
        largest = max(largest, evidence[place])
    for place in range(SHARES):
        probability = exp(evidence[place] - largest)
        total += probability
        mean += probability * weights[place]
    return mean / total


@jit_no_refcount
def _measure_evidence(
    own: tuple[Matrix, Vector],
    others: tuple[Matrix, Vector],
    shares: Vector,
    model: tuple[float, float],
    room: Vector,
    evidence: Vector,
) -> None:
    """Fill ``evidence`` with the evidence of own data and a share of others', then with that of the share alone.

    They are computed side by side in ``room``: LANES numbers, one of each, for every
    number of a matrix of shape (d, d + 1), whose last column is the moment, and for a pivot.
    """
    (own_gram, own_moment), (gram, moment), (variance, prior) = own, others, model
    d = moment.size
    for i in range(d):
        for j in range(i, d + 1):
            own_number, number = (own_gram[i, j], gram[i, j]) if j < d else (own_moment[i], moment[i])
            at = (i * (d + 1) + j) * LANES
            for place in range(SHARES):
                part = shares[place] * number
                room[at + place], room[at + SHARES + place] = own_number + part, part
        for lane in range(LANES):
            room[i * (d + 2) * LANES + lane] += prior
    _factorise_lanes(room, d)
    for lane in range(LANES):
        square, log_det = 0.0, 0.0
        for k in range(d):
            solved = room[(k * (d + 1) + d) * LANES + lane]
            square += solved * solved
            log_det += log(room[k * (d + 2) * LANES + lane])
        evidence[lane] = 0.5 * (square / variance - 2.0 * log_det + d * log(prior))


@jit_inline
def _factorise_lanes(room: Vector, d: int) -> None:
    """Overwrite the upper triangles of matrices with their factors U, and a further column c of each with U^-T c.

    The arithmetic of each is that of ``linear.factorise``. The squared length of a column is then its leverage.
    """
    row, pivot = (d + 1) * LANES, d * (d + 1) * LANES
    for k in range(d):
        top, diagonal = k * row, k * row + k * LANES
        take_root(room, pivot, diagonal)
        for j in range(k, d):
            divide(room, top + j * LANES, pivot)
        divide(room, top + d * LANES, diagonal)
        for i in range(k + 1, d):
            for j in range(i, d + 1):
                subtract_product(room, i * row + j * LANES, top + i * LANES, top + j * LANES)
