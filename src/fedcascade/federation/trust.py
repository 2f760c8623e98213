"""Trust at the agent: what others added to a download counts as far as the agent's own clicks agree with it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedcascade.checks import whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.evidence import compute_prior, describe_length, describe_variance
from fedcascade.federation.grouping.gibbs import Model
from fedcascade.federation.grouping.rows import COUNTS
from fedcascade.federation.own_data import WEIGHT, OwnData, unpack_into
from fedcascade.federation.sharing import average_weight
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Matrix, Vector


@dataclass(frozen=True, kw_only=True)
class Trust(Part):
    """Weighs others' part of the last download anew at each download, and after some rounds of the agent's own.

    The weight is the mean of 1, 1/2, ..., 1/256 and 0, of which w has a probability in proportion to exp(E(own + w
    others) - E(w others)): the likelihood of the agent's own clicks under what w times the others' data say
    (``sharing.average_weight``). The agent goes on as if it had downloaded its own data and that share of the others'.
    """

    every: int = constant(4, meaning="rounds of its own after which an agent weighs others' data anew",
                          range=whole_numbers(1))  # fmt: skip
    variance: float = describe_variance()
    length: float = describe_length()

    def compile(self, dimension: int) -> "CompiledTrust":
        """The constants as compiled code reads them."""
        model = Model(0.0, float(self.variance), compute_prior(self.variance, self.length, dimension))
        return CompiledTrust(float(self.every), model)


class CompiledTrust(NamedTuple):
    """The constants of a ``Trust``."""

    every: float
    model: Model


@jit_inline
def is_due(own: OwnData, rule: CompiledTrust) -> bool:
    """Whether it is time to weigh others' data anew."""
    return bool(own.total[own.total.size - 1] % rule.every == 0.0)


@jit
def split_download(own: OwnData, pending_gram: Matrix, pending_moment: Vector, gram: Matrix, moment: Vector) -> None:
    """Keep what others added to a download; ``pending`` is what of the agent's own the server did not have."""
    total_gram, total_moment = np.empty_like(gram), np.empty_like(moment)
    unpack_into(own.total, total_gram, total_moment)
    for i in range(moment.size):
        own.others_moment[i] = moment[i] - (total_moment[i] - pending_moment[i])
        for j in range(moment.size):
            own.others_gram[i, j] = gram[i, j] - (total_gram[i, j] - pending_gram[i, j])


@jit
def weigh_others(
    own: OwnData, rule: CompiledTrust, pending_gram: Matrix, pending_moment: Vector, gram: Matrix, moment: Vector
) -> None:
    """Fill ``gram`` and ``moment`` with the last download, of which others' part has the weight that it deserves."""
    total_gram, total_moment = np.empty_like(gram), np.empty_like(moment)
    unpack_into(own.total, total_gram, total_moment)
    others_gram, others_moment = own.others_gram, own.others_moment
    weight, trace = 1.0, 0.0
    for k in range(moment.size):
        trace += others_gram[k, k]
    if trace > 0.0 and own.total[own.total.size - COUNTS] > 0.0:
        model = rule.model.variance, rule.model.prior
        weight = average_weight(total_gram, total_moment, others_gram, others_moment, *model)
    own.numbers[WEIGHT] = weight
    for i in range(moment.size):
        moment[i] = total_moment[i] - pending_moment[i] + weight * others_moment[i]
        for j in range(moment.size):
            gram[i, j] = total_gram[i, j] - pending_gram[i, j] + weight * others_gram[i, j]
