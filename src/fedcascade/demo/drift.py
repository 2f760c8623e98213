"""Users that drift on request, and baseline policies that play the same rounds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.environment import Environment
from fedcascade.environments.options import Change
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.policies import Policy
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.reference import make_agents, play_round
from fedcascade.simulation.scenario import Scenario, prepare_simulation


class ChangingEnvironment(Synthetic):
    """An environment in which half of each cluster switches to the next cluster, and back, on request."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._changed = Synthetic(**arguments, change=Change(at=1, to="existing"))
        self.is_changed = False

    @property
    def changing(self) -> int:
        """The number of users that drift."""
        return sum(role.kind == "changing" for role in self._changed.history.user_roles)

    @property
    def true_clusters(self) -> NDArray[np.int64]:
        """The cluster of each user now."""
        return self._changed.find_moment(1).clusters if self.is_changed else self.clusters

    def weights(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        if self.is_changed:
            return self._changed.weights(round_, user, features)
        return super().weights(round_, user, features)


class Companion:
    """A policy in this process that plays the rounds of a demo, without change detection."""

    def __init__(self, policy: Policy, environment: Environment, length: int, rounds: int) -> None:
        self._environment, self._oracle, self.regret = environment, TopK(length=length), 0.0
        simulation = prepare_simulation(Scenario(environment, policy, rounds, self._oracle, checkpoints=1))
        self._server, self._agents = simulation.server, make_agents(simulation, self._oracle)

    def play(self, round_: int) -> None:
        """Play a round with the same user, items and clicks as the demo."""
        user = self._environment.arrival(round_)
        agent = self._agents[user]
        deliver_arrival(self._server, self._agents, user)
        played = play_round(self._environment, self._oracle, round_, user, agent.recommend, agent.observe)
        if played.upload is not None:
            run_exchange(self._server, self._agents, played.upload)
        self.regret += played.regret

    @property
    def labels(self) -> NDArray[np.int64]:
        """The group of each user."""
        return self._server.groups.labels[: self._environment.users]
