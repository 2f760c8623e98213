"""Warm starts: a server and agents that begin with what a log taught about each user."""

from collections.abc import Sequence

import numpy as np

from fedcascade.checks import require
from fedcascade.federation.agent import Agent
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.log_sums import LogSums


def warm_server(policy: Policy, sums: LogSums) -> Server:
    """A server of the users of a log that holds what the log taught about each of them."""
    server = Server(policy=policy, agents=sums.users, dimension=sums.dimension, truth=np.zeros(sums.users, np.int64))
    feed_server(server, sums)
    return server


def feed_server(server: Server, sums: LogSums) -> None:
    """Let a server take what a log taught about each user, as if their agents had uploaded it at once."""
    require(server.policy.personal is None, f"{server.policy.name} has a personal part, which a log cannot teach")
    for user in range(sums.users):
        server.take(Upload(agent=user, sequence=1, cause=Cause.FORCED, statistics=sums[user]))
    for user in range(sums.users):  # who came first saw the others without data
        server.groups.revise(user)


def warm_up(server: Server, agents: Sequence[Agent], sums: LogSums) -> None:
    """Let a server and its agents begin with what a log taught; the numbers of its users are those of the agents."""
    users = len(server.holdings)
    require(sums.users <= users, f"a log of {sums.users} users cannot warm {users} agents")
    if server.policy.reply_rule.single_learner:
        agents[0].take_back(sums.total(), least=2**62)
        return
    feed_server(server, sums)
    for user in range(sums.users):
        agents[user].receive(server.answer(user))
