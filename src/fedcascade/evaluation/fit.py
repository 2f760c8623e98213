"""Learning from a log: sums of each user, and policies that are frozen after it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.data.logs.reader import Log, slice_rows
from fedcascade.federation.agent import Agent
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.federation.warm_start import warm_server
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.exploration import lower_exploration
from fedcascade.learning.log_sums import NO_FEATURES, LogSums
from fedcascade.learning.oracles import Oracle
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.saved import WarmState, load_warm, save_warm

SAVE_EVERY = 30.0  # seconds between saves of an unfinished fit
LAMBDA = 1.0  # of the ridge regression of attraction


def fit_log(log: Log, policy: str, out: Path, *, progress: Callable[[int], None] | None = None) -> WarmState:
    """Sum a log into a file; continue the file of an interrupted fit of the same log."""
    source, table = str(log.path), None if log.table is None else log.table.features
    row, sums = 0, None
    if out.exists():
        earlier = load_warm(out)
        advice = "choose another file, or remove it"
        require(earlier.log == source, f"{out} holds the sums of {earlier.log}: {advice}")
        require(not earlier.is_complete, f"{out} is already complete: {advice}")
        row, sums = earlier.lists, earlier.sums
        log.users.number(earlier.users)
    saved = time.monotonic()

    def save(*, is_complete: bool) -> WarmState:
        assert sums is not None
        state = WarmState(
            sums=sums, users=tuple(log.users), policy=policy, log=source, lists=row, is_complete=is_complete
        )
        save_warm(out, state)
        return state

    for first, batch in slice_rows(log.batches(), row):
        sums, row = add_batch(sums, batch, table), first + len(batch)
        if progress is not None:
            progress(row)
        if time.monotonic() - saved > SAVE_EVERY:
            save(is_complete=False)
            saved = time.monotonic()
    return save(is_complete=True)


def add_batch(sums: LogSums | None, batch: ClickLog, table: NDArray[np.float32] | None) -> LogSums:
    """Add a batch of a log to the sums, which are None before the first one."""
    if sums is None:
        given = table if batch.features is None else batch.features
        require(given is not None, NO_FEATURES)
        assert given is not None
        sums = LogSums(given.shape[-1])
    sums.add(batch, table)
    return sums


class FrozenPolicy(NamedTuple):
    """A policy without further learning: theta, root and beta of each user, and the exploration of lists.

    The last row serves users that are not in the log.
    """

    name: str
    theta: NDArray[np.float64]  # (users + 1, d)
    root: NDArray[np.float64]  # (users + 1, d, d)
    beta: NDArray[np.float64]  # (users + 1,)
    kind: int
    level: float
    length: int


def freeze_policy(policy: Policy, sums: LogSums, oracle: Oracle, *, with_prior: bool = False) -> FrozenPolicy:
    """Return a policy after learning from a log; new users start from the server's prior if ``with_prior``."""
    rounds = max(1, int(sums.counts[:, 2].sum()))
    problem = ProblemSize(users=max(1, sums.users), dimension=sums.dimension, list_length=oracle.length, rounds=rounds)
    fitted = policy.fit_to(problem)
    nothing = Statistics.zero(sums.dimension)
    if fitted.reply_rule.single_learner:
        known = [sums.total()] * (sums.users + 1)
    else:
        server, downloads = warm_server(fitted, sums)
        newcomer = prior_for_newcomer(server, sums) if with_prior else nothing
        known = [*(statistics for _, statistics in downloads), newcomer]
    d, kept = sums.dimension, len(known)
    theta, root, beta = np.empty((kept, d)), np.empty((kept, d, d)), np.empty(kept)
    for user, statistics in enumerate(known):
        agent = Agent(id=user, policy=fitted, problem=problem, oracle=oracle)
        agent.learn_before(sums[user] if user < sums.users else nothing)
        agent.receive(statistics)
        decision = agent.state.decision
        theta[user], root[user], beta[user] = decision.theta, decision.root, agent.beta
    kind, level = lower_exploration(oracle)
    learned = {"theta": theta, "root": root, "beta": beta}
    return FrozenPolicy(name=policy.name, **learned, kind=kind, level=level, length=oracle.length)


def prior_for_newcomer(server: Server, sums: LogSums) -> Statistics:
    """Return the prior of a user that is not in the log: the server's, or else the sum over all users.

    Policies with ``Trust`` weigh only the server's prior.
    """
    prior = server.groups.prior_for_newcomer()
    if prior is not None:
        return prior
    return Statistics.zero(sums.dimension) if server.policy.trust is not None else sums.total()


def fit_attraction(sums: LogSums, users: int) -> NDArray[np.float64]:
    """Fit a model of attraction for each user, (users + 1, d): a ridge around the pooled theta, which is the last row.

    The direct method and the doubly robust estimator use it as their baseline. ``users`` counts users without lists.
    """
    pooled = Ridge(sums.total(), LAMBDA).theta
    rows = [
        pooled + Ridge(Statistics(gram, moment - gram @ pooled, 0, 0, 0), LAMBDA).theta
        for gram, moment in zip(sums.gram[: sums.users], sums.moment[: sums.users], strict=True)
    ]
    return np.stack([*rows, *[pooled] * (users - sums.users + 1)])
