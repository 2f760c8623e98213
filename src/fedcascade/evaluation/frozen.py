"""A policy as it stands after a log: what it would show to each user, and with which chance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.decisions import ThompsonSampling
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.federation.warm_start import warm_server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.exploration import lower_exploration
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import Oracle
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics


@dataclass(frozen=True, eq=False, kw_only=True)
class FrozenPolicy:
    """A policy that learns no more: theta, root and beta of each user, and how lists are chosen from scores.

    ``users`` beyond those who were seen are served by the last row, that of a newcomer.
    """

    name: str
    theta: NDArray[np.float64]  # (users + 1, d)
    root: NDArray[np.float64]  # (users + 1, d, d)
    beta: NDArray[np.float64]  # (users + 1,)
    kind: int
    level: float
    length: int


def freeze_policy(policy: Policy, sums: LogSums, oracle: Oracle, *, is_told: bool = False) -> FrozenPolicy:
    """The policy after it has learned from a log, for lists that ``oracle`` chooses.

    A newcomer begins with nothing, or with what the population knows where it ``is_told``.
    """
    rounds = max(1, int(sums.counts[:, 2].sum()))
    problem = ProblemSize(users=max(1, sums.users), dimension=sums.dimension, list_length=oracle.length, rounds=rounds)
    fitted = policy.fit_to(problem)
    is_known = not isinstance(fitted.decision, ThompsonSampling)
    require(is_known, f"{policy.name} samples: the chances of its lists are not known, and cannot be evaluated")
    nothing = Statistics.zero(sums.dimension)
    if fitted.reply_rule.single_learner:
        known = [sums.total()] * (sums.users + 1)
    else:
        server, downloads = warm_server(fitted, sums)
        newcomer = tell_newcomer(server, sums) if is_told else nothing
        known = [*(download.statistics for download in downloads), newcomer]
    ridges = [fitted.decision.ridge(Ridge(statistics, fitted.lambda_), nothing) for statistics in known]
    kind, level = lower_exploration(oracle)
    return FrozenPolicy(
        name=policy.name,
        theta=np.stack([ridge.theta for ridge in ridges]),
        root=np.stack([ridge.root for ridge in ridges]),
        beta=np.array([fitted.confidence.radius(ridge, problem) for ridge in ridges]),
        kind=kind,
        level=level,
        length=oracle.length,
    )


def tell_newcomer(server: Server, sums: LogSums) -> Statistics:
    """What is known of a user who is in no log: what the server tells a newcomer, or else what all have in common."""
    welcome = server.welcome(sums.users)
    return sums.total() if welcome is None else welcome.statistics


def fit_attraction(sums: LogSums, lambda_: float = 1.0) -> NDArray[np.float64]:
    """A model of attraction for each user, (users + 1, d): a ridge around the theta of all; the last row is that theta.

    It is the baseline of the direct method and of the doubly robust estimator, and belongs to no policy.
    """
    pooled = Ridge(sums.total(), lambda_).theta
    rows = [
        pooled + Ridge(Statistics(gram, moment - gram @ pooled, 0, 0, 0), lambda_).theta
        for gram, moment in zip(sums.gram[: sums.users], sums.moment[: sums.users], strict=True)
    ]
    return np.stack([*rows, pooled])
