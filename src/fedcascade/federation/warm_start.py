"""Warm starts: servers and agents that start with the data of a log, and precompilation of an agent."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedcascade.checks import require
from fedcascade.federation.agent import Agent, restart_own_data, skip_answer
from fedcascade.federation.messages import Cause, Downloads, Upload
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.click_log import ClickLog
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.log_sums import LogSums, gather_features
from fedcascade.learning.oracles import TopK
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.linear import Features


def warm_server(policy: Policy, sums: LogSums) -> tuple[Server, Downloads]:
    """Return a server with the data of a log, and the download of each user."""
    server = Server(policy=policy, agents=sums.users, dimension=sums.dimension, truth=np.zeros(sums.users, np.int64))
    return server, feed_server(server, sums)


def feed_server(server: Server, sums: LogSums) -> Downloads:
    """Upload the data of a log to a server, one upload per user, and return the downloads.

    A second, empty upload of each user gets an answer that includes the data of all users.
    """
    check_warm_start(server, sums)
    downloads = []
    for user in range(sums.users):
        server.take(Upload(agent=user, sequence=1, cause=Cause.FORCED, statistics=sums[user]))
    for user in range(sums.users):
        server.take(make_empty_upload(user, sums.dimension))
        downloads.append((user, server.answer(user)))
    return tuple(downloads)


def make_empty_upload(agent: int, dimension: int) -> Upload:
    """Return the second upload of a warm start, which has no data and asks for an answer."""
    return Upload(agent=agent, sequence=2, cause=Cause.FORCED, statistics=Statistics.zero(dimension))


def require_teachable(policy: Policy) -> None:
    """Reject a policy that cannot learn from a log."""
    require(policy.personal is None, f"{policy.name} has a personal part, which a log cannot teach")


def check_warm_start(server: Server, sums: LogSums) -> None:
    """Reject a log that does not fit the agents of a server."""
    users, d = len(server.holdings), server.holdings.dimension
    require_teachable(server.policy)
    require(server.policy.privacy is None, "a warm start uploads a log without noise: use a policy without privacy")
    require(sums.users <= users, f"a log of {sums.users} users cannot warm {users} agents")
    require(sums.dimension == d, f"a log of dimension {sums.dimension} cannot warm agents of dimension {d}")


def warm_up(server: Server, agents: Sequence[Agent], sums: LogSums) -> None:
    """Start a server and its agents with the data of a log, whose user numbers are those of the agents."""
    check_warm_start(server, sums)
    if server.policy.reply_rule.single_learner:
        agents[0].take_back(sums.total(), least=2**62)
        return
    for agent, statistics in feed_server(server, sums):
        agents[agent].learn_before(sums[agent])
        agents[agent].receive(statistics)


def sum_history(log: ClickLog, table: Features | None, dimension: int) -> Statistics:
    """Return the statistics of one user's log; reject several users, or another dimension."""
    users = np.unique(log.users)
    require(users.size == 1, f"the history of an agent must be that of one user, got {users.size} users")
    features = gather_features(log, table)
    given = features.shape[2]
    require(given == dimension, f"the history must have {dimension} features per item, as the agent has, got {given}")
    sums = LogSums(dimension)
    sums.add(replace(log, users=np.zeros(len(log), np.int64)), table)
    return sums[0]


def precompile_agent(policy: Policy, dimension: int) -> None:
    """Compile all functions of an agent: show lists, learn and receive a download."""
    problem = ProblemSize(users=1, dimension=dimension, list_length=1, rounds=2)
    agent = Agent(id=0, policy=policy, problem=problem, oracle=TopK(length=1))
    items, ties = np.zeros((2, dimension), np.float32), np.zeros(2, np.uint32)
    for round_, click in ((1, 0), (2, None)):
        agent.observe(agent.recommend(items, ties), click, round_=round_, draw=0.5)
        agent.receive(agent.state.buffer)
    state = restart_own_data(policy, agent.state, agent.state.buffer)
    skip_answer(policy, state, state.buffer, state.unanswered)
