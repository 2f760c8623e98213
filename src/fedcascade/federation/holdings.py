"""What the server holds of each agent: the paper's Sigma_ser, b_ser, T_ser and theta_ser."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics


class Holdings:
    """Statistics and estimate of every agent, as arrays over agents."""

    def __init__(self, agents: int, dimension: int, lambda_: float) -> None:
        self.lambda_ = lambda_
        self.gram = np.zeros((agents, dimension, dimension))
        self.moment = np.zeros((agents, dimension))
        self.theta = np.zeros((agents, dimension))
        self.count = np.zeros(agents, np.int64)
        self.clicks = np.zeros(agents, np.int64)
        self.rounds = np.zeros(agents, np.int64)

    def __len__(self) -> int:
        return self.count.size

    @property
    def dimension(self) -> int:
        """The number of features."""
        return self.moment.shape[1]

    def __getitem__(self, agent: int) -> Statistics:
        return Statistics(
            self.gram[agent].copy(),
            self.moment[agent].copy(),
            int(self.count[agent]),
            int(self.clicks[agent]),
            int(self.rounds[agent]),
        )

    def add(self, agent: int, statistics: Statistics) -> None:
        """Algorithm 3, lines 3 and 4: add an upload and estimate theta_ser anew."""
        self.gram[agent] += statistics.gram
        self.moment[agent] += statistics.moment
        self.count[agent] += statistics.count
        self.clicks[agent] += statistics.clicks
        self.rounds[agent] += statistics.rounds
        self.theta[agent] = Ridge(self[agent], self.lambda_).theta

    def total(self, members: NDArray[np.intp]) -> Statistics:
        """The sum over some agents."""
        return Statistics(
            self.gram[members].sum(axis=0),
            self.moment[members].sum(axis=0),
            int(self.count[members].sum()),
            int(self.clicks[members].sum()),
            int(self.rounds[members].sum()),
        )
