"""The state of all agents of a run, as arrays that compiled code reads and writes."""

import numpy as np

from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.exact.kernels import ARRIVALS, AgentState, PersonalState


def make_states(users: int, d: int) -> AgentState:
    """Agents that have seen nothing."""
    return AgentState(
        gram=np.zeros((users, d, d)),
        moment=np.zeros((users, d)),
        theta=np.zeros((users, d)),
        root=np.zeros((users, d, d)),
        buffer_gram=np.zeros((users, d, d)),
        buffer_moment=np.zeros((users, d)),
        numbers=np.zeros((users, 4)),
        counts=np.zeros((users, 4), np.int64),
    )


def make_personal_states(users: int, d: int) -> PersonalState:
    """Personal parts that have seen nothing."""
    return PersonalState(gram=np.zeros((users, d, d)), moment=np.zeros((users, d)), theta=np.zeros((users, d)))


def take_buffer(states: AgentState, agent: int) -> Statistics:
    """The buffer of an agent, which is empty afterwards."""
    gram, moment, counts = states.buffer_gram[agent], states.buffer_moment[agent], states.counts[agent]
    examined, clicks, rounds, _ = counts.tolist()
    buffer = Statistics(gram.copy(), moment.copy(), examined, clicks, rounds)
    gram[:] = 0.0
    moment[:] = 0.0
    counts[:ARRIVALS] = 0
    return buffer
