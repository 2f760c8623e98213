"""A rehearsal: a short life of an agent, so that all that it needs is compiled before a user waits for it."""

import numpy as np

from fedcascade.federation.agent import Agent, restart_own_data, skip_answer
from fedcascade.federation.messages import Download
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK


def rehearse_agent(policy: Policy, dimension: int) -> None:
    """Let an agent of its own show lists, learn and receive a download; nobody hears of it."""
    problem = ProblemSize(users=1, dimension=dimension, list_length=1, rounds=2)
    agent = Agent(id=0, policy=policy, problem=problem, oracle=TopK(length=1))
    items, ties = np.zeros((2, dimension), np.float32), np.zeros(2, np.uint32)
    for round_, click in ((1, 0), (2, None)):
        agent.observe(agent.recommend(items, ties), click, round_=round_, draw=0.5)
        agent.receive(Download(agent=0, statistics=agent.state.buffer, rounds=round_, agents=1))
    state = restart_own_data(policy, agent.state, agent.state.buffer)
    skip_answer(policy, state, state.buffer, state.unanswered)
