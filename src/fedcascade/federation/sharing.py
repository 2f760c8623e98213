"""Limits on other agents' data in an answer, against disclosure and poisoning.

The paper answers with the sum over a group. A server adds a ``Sharing`` to its policy: an answer needs enough other
agents to hide each of them, and weighs their data by evidence. An agent's own uploads always count in full.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedcascade.checks import POSITIVE, RATIO, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.learning.statistics import LARGEST_TOTAL, Statistics
from fedcascade.numerics.elementary import exp, log
from fedcascade.numerics.jit import jit, jit_no_refcount
from fedcascade.numerics.linear import Matrix, Vector, factorise_lanes, measure_lane
from fedcascade.numerics.simd import DOUBLES

HALVINGS = 8  # weights of others' data are 1, 1/2, 1/4, ... 1/256 and 0
SHARES = DOUBLES // 2  # weights that are tried at a time
MIN_GAIN = 0.05  # log-likelihood that another halving must gain
WEIGHTS = (1.0, 0.25)  # of the server's prior in ``average_weight``
SCALES = (1.0, 1 / 8, 1 / 64, 1 / 512)  # variances of theta without the server's prior, as shares of the prior's
LOG_ODDS_OF_NONE = 4.0  # prior log-odds of the first scale against each other scale and each weight


@dataclass(frozen=True, kw_only=True)
class Sharing(Part):
    """Weight of other agents' data in an answer, by how well they predict the agent's own clicks.

    With E the log marginal likelihood for theta ~ N(0, tau^2 I), E(own + w others) - E(w others) is the log-likelihood
    of the agent's own clicks given w times the others' data. Starting at 1, w is halved while that log-likelihood
    grows.
    """

    min_others: int = constant(
        2, meaning="fewest other agents whose data an answer may include", range=whole_numbers(0)
    )
    max_weight: float = constant(
        2.0, meaning="most data of one other agent, in medians of the group, rounded up to 2^n", range=RATIO
    )
    variance: float = constant(0.2, meaning="variance of a click in the evidence", symbol="sigma^2", range=POSITIVE)
    length: float = constant(
        1.0, meaning="prior length of theta: tau^2 is length^2 / d", symbol="tau sqrt(d)", range=POSITIVE
    )

    def compute_limit(self, median: int, agents: int) -> float:
        """Return the most observations of one agent that count, if the median count has ``median`` bits.

        All agents together count at most ``LARGEST_TOTAL`` / 2, so that the sum can be solved however many upload.
        """
        return min(float(self.max_weight * 2.0**median), LARGEST_TOTAL / (2.0 * max(1, agents)))

    def limit(self, own: Statistics, answer: Statistics) -> Statistics:
        """Return the answer to an agent that has uploaded ``own``, with other agents' data scaled by their weight."""
        if own.count == 0 or answer.count == own.count:
            return answer
        others, prior = answer - own, self.compute_prior(own.dimension)
        weight = find_weight(own.gram, own.moment, others.gram, others.moment, float(self.variance), prior)
        return answer if weight == 1.0 else own + others.scale(weight)

    def compute_prior(self, dimension: int) -> float:
        """Return sigma^2 / tau^2."""
        return float(self.variance * dimension / self.length**2)


UNLIMITED = Sharing(min_others=0, max_weight=math.inf)


class Lanes(NamedTuple):
    """Eight combinations of data: the shares of own and of others' data, and the precision of the prior."""

    own: Vector
    others: Vector
    prior: Vector


@jit
def find_weight(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """Halve the weight of others' data while own clicks become clearly likelier; return 0 if weight 0 is better.

    The search stops early if 1/2 beats 1 and 0 beats the smallest weight.
    """
    own, others = (own_gram, own_moment), (gram, moment)
    workspace, evidence = np.empty((moment.size * (moment.size + 1) + 1) * DOUBLES), np.empty(DOUBLES)
    lanes = Lanes(np.zeros(DOUBLES), np.zeros(DOUBLES), np.full(DOUBLES, prior))
    lanes.own[:SHARES] = 1.0
    shares = np.array([1.0, 0.5, 0.5**HALVINGS, 0.0])
    lanes.others[:SHARES], lanes.others[SHARES:] = shares, shares
    _measure_evidence(own, others, lanes, variance, workspace, evidence)
    whole = evidence[0] - evidence[SHARES]
    half = evidence[1] - evidence[SHARES + 1]
    least = evidence[2] - evidence[SHARES + 2]
    alone = evidence[3]
    if not half > whole + MIN_GAIN:
        return 1.0 if whole >= alone else 0.0
    if least < alone:
        return 0.0
    weight, best, halving = 0.5, half, 2
    while True:
        for place in range(SHARES):
            shares[place] = lanes.others[place] = lanes.others[SHARES + place] = 0.5 ** (halving + place)
        _measure_evidence(own, others, lanes, variance, workspace, evidence)
        for place in range(SHARES):
            likelihood = evidence[place] - evidence[SHARES + place]
            if halving > HALVINGS or not likelihood > best + MIN_GAIN:
                return weight if best >= alone else 0.0
            weight, best = shares[place], likelihood
            halving += 1


@jit
def average_weight(
    own_gram: Matrix, own_moment: Vector, gram: Matrix, moment: Vector, variance: float, prior: float
) -> float:
    """Return the posterior mean of the weight of the server's prior, given own clicks.

    The alternatives to a weight of 1 or 1/4 are priors N(0, s I) without the server, with the scales s of ``SCALES``.
    Narrow ones are among them because with rare clicks any narrow prior predicts better than a wide one: the server's
    has to predict better than those too. The widest is far more probable a priori than the others.
    """
    workspace, evidence = np.empty((moment.size * (moment.size + 1) + 1) * DOUBLES), np.empty(DOUBLES)
    count = len(WEIGHTS)
    lanes = Lanes(np.ones(DOUBLES), np.zeros(DOUBLES), np.full(DOUBLES, prior))
    for place in range(count):
        lanes.others[place] = lanes.others[count + place] = WEIGHTS[place]
        lanes.own[count + place] = 0.0
    for place in range(len(SCALES)):
        lanes.prior[2 * count + place] = prior / SCALES[place]
    _measure_evidence((own_gram, own_moment), (gram, moment), lanes, variance, workspace, evidence)
    evidence[2 * count] += LOG_ODDS_OF_NONE
    largest = evidence[2 * count :].max()
    for place in range(count):
        evidence[place] -= evidence[count + place]
        largest = max(largest, evidence[place])
    total = mean = 0.0
    for place in range(count):
        probability = exp(evidence[place] - largest)
        total += probability
        mean += probability * WEIGHTS[place]
    for place in range(len(SCALES)):
        total += exp(evidence[2 * count + place] - largest)
    return mean / total


@jit_no_refcount
def _measure_evidence(
    own: tuple[Matrix, Vector],
    others: tuple[Matrix, Vector],
    lanes: Lanes,
    variance: float,
    workspace: Vector,
    evidence: Vector,
) -> None:
    """Fill ``evidence`` with the log marginal likelihood of each combination of own and others' data.

    ``workspace`` holds DOUBLES matrices of shape (d, d + 1), interleaved, and a pivot of each. The last column of a
    matrix is the moment.
    """
    (own_gram, own_moment), (gram, moment) = own, others
    d = moment.size
    for i in range(d):
        for j in range(i, d + 1):
            own_number, number = (own_gram[i, j], gram[i, j]) if j < d else (own_moment[i], moment[i])
            at = (i * (d + 1) + j) * DOUBLES
            for lane in range(DOUBLES):
                workspace[at + lane] = lanes.own[lane] * own_number + lanes.others[lane] * number
        for lane in range(DOUBLES):
            workspace[i * (d + 2) * DOUBLES + lane] += lanes.prior[lane]
    factorise_lanes(workspace, d)
    for lane in range(DOUBLES):
        square, log_det = measure_lane(workspace[lane:], d)
        evidence[lane] = 0.5 * (square / variance - log_det + d * log(lanes.prior[lane]))
