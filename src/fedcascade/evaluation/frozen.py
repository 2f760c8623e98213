"""A policy as it stands after a log: what it would show to each user, and with which chance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.federation.agent import Agent
from fedcascade.federation.decisions import ThompsonSampling
from fedcascade.federation.messages import Download
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
        newcomer = prior_for_newcomer(server, sums) if is_told else nothing
        known = [*(download.statistics for download in downloads), newcomer]
    d, kept = sums.dimension, len(known)
    theta, root, beta = np.empty((kept, d)), np.empty((kept, d, d)), np.empty(kept)
    for user, statistics in enumerate(known):
        agent = Agent(id=user, policy=fitted, problem=problem, oracle=oracle)
        agent.learn_before(sums[user] if user < sums.users else nothing)
        agent.receive(Download(agent=user, statistics=statistics, rounds=rounds, agents=sums.users))
        theta[user], root[user], beta[user] = agent.decision.theta, agent.decision.root, agent.beta
    kind, level = lower_exploration(oracle)
    return FrozenPolicy(
        name=policy.name,
        theta=theta,
        root=root,
        beta=beta,
        kind=kind,
        level=level,
        length=oracle.length,
    )


def prior_for_newcomer(server: Server, sums: LogSums) -> Statistics:
    """Return what is known of a user who is in no log: the server's prior, or else the sum over all users.

    The sum is none of the priors that ``Trust`` weighs.
    """
    prior = server.welcome(sums.users)
    if prior is not None:
        return prior.statistics
    return Statistics.zero(sums.dimension) if server.policy.trust is not None else sums.total()


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
