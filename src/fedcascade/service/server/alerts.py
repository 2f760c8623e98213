"""Who weighs too much: agents whose share of what their group holds is abnormal."""

import math
from dataclasses import dataclass

import numpy as np

from fedcascade.service.server.state import ServerState

FEWEST_AGENTS = 5  # of fewer, nobody can say what is normal
LEAST_RATIO = 10.0  # to the median; busy users are several times as busy as others
DEVIATIONS = 6.0  # in units of the standard deviation that the median deviation stands for
NORMAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers


@dataclass(frozen=True)
class OutsizedAgent:
    """An agent with far more observations than others: its share of its group, and how many times the median it has."""

    agent: int
    share: float
    ratio: float


def find_outsized_agents(state: ServerState | None) -> list[OutsizedAgent]:
    """Find agents that hold abnormally many observations, the largest first.

    Counts of busy and of idle users spread over orders of magnitude, so their logarithms are compared: with the median
    of all agents that have spoken, in units of the median absolute deviation. Neither moves much, whatever a few agents
    claim. Where all are alike the deviation is nearly 0; then an agent must have ten times the median to be named.
    """
    server = None if state is None else state.server
    if state is None or server is None or len(server.holdings) < FEWEST_AGENTS:
        return []
    if not state.agents.size == len(server.holdings) == server.groups.labels.size:  # just now, somebody is let in
        return []
    agents, labels, counts = (array.copy() for array in state.list_agents())
    logs = np.log(np.maximum(counts, 1))
    middle = float(np.median(logs))
    spread = NORMAL * float(np.median(np.abs(logs - middle)))
    places = np.flatnonzero(logs - middle > max(math.log(LEAST_RATIO), DEVIATIONS * spread))
    found = [
        OutsizedAgent(
            int(agents[place]),
            float(counts[place] / counts[labels == labels[place]].sum()),
            float(np.exp(logs[place] - middle)),
        )
        for place in places
    ]
    return sorted(found, key=lambda outsized: -outsized.ratio)
