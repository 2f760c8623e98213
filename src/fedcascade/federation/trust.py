"""Trust: the weight of the server's prior at an agent, and the noise of the agent's clicks.

The agent compares priors by the log marginal likelihood of its own clicks: the server's prior, a weaker version of it,
and priors that know no direction. It falls back on its own data where the server's does not predict better.
"""

from dataclasses import dataclass

import numpy as np

from fedcascade.checks import whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.own_data import COUNTS, OwnData
from fedcascade.federation.sharing import average_weight
from fedcascade.learning.statistics import estimate_noise
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Matrix, Vector, unpack_sums


@dataclass(frozen=True, kw_only=True)
class Trust(Part):
    """The rule that weighs the server's prior by the agent's own clicks, at each download and after some rounds.

    The prior has precision w P + (1 - w) d I, where P is the server's and d I that of a theta of length 1. The weight w
    is its posterior mean over 1, 1/4 and 0, given the agent's own clicks; 0 has by far the largest prior probability.
    """

    every: int = constant(4, meaning="own rounds between two weighings", range=whole_numbers(1))


@jit_inline
def is_due(own: OwnData, every: float) -> bool:
    """Return whether others' data are due to be weighed again."""
    return bool(own.total[own.total.size - 2] % every == 0.0)


@jit
def weigh_others(
    own: OwnData, lambda_: float, pending_gram: Matrix, pending_moment: Vector, gram: Matrix, moment: Vector
) -> None:
    """Fill ``gram`` and ``moment`` with own data and the weighed prior; ``lambda_`` is the ridge's."""
    d, counts = moment.size, own.total.size - COUNTS
    noise = estimate_noise(own.total[counts], own.total[counts + 1] - own.total[counts + 3])
    prior, scale = noise * d, noise / own.noise[0]
    weight = trace = 0.0
    total_gram, total_moment = np.empty_like(gram), np.empty_like(moment)
    others_gram, others_moment = np.zeros_like(gram), np.zeros_like(moment)
    unpack_sums(own.total, total_gram, total_moment)
    for k in range(d):
        trace += own.others_gram[k, k]
    if trace != 0.0:
        others_gram, others_moment = scale * own.others_gram, scale * own.others_moment
        for k in range(d):
            others_gram[k, k] += scale * lambda_ - prior
        weight = average_weight(total_gram, total_moment, others_gram, others_moment, noise, prior)
    own.weight[0], own.deviation[0] = weight, np.sqrt(noise)
    moment[:] = total_moment - pending_moment + weight * others_moment
    gram[:] = total_gram - pending_gram + weight * others_gram
    for k in range(d):
        gram[k, k] += prior - lambda_
