"""Users who change their minds when a visitor says so, and systems beside the demo that show what that costs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.environment import Environment
from fedcascade.environments.options import Change
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.delivery import run_exchange
from fedcascade.federation.policies import get_policy
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.reference import make_agents, play_round
from fedcascade.simulation.scenario import Scenario, prepare_simulation


class ChangingWorld(Synthetic):
    """A world in which half of each cluster comes to want what the next cluster wants, and back, when it is told to."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._changed = Synthetic(**arguments, change=Change(at=1, to="existing"))
        self.is_changed = False

    @property
    def changing(self) -> int:
        """How many users change their minds."""
        return sum(person.kind == "changing" for person in self._changed.history.persons)

    def weights(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64]:
        if self.is_changed:
            return self._changed.weights(round_, user, features)
        return super().weights(round_, user, features)


class Companion:
    """A system without change detection, in this process, that plays the rounds of a demo for itself."""

    def __init__(
        self, policy: str, constants: Mapping[str, float], world: Environment, length: int, rounds: int
    ) -> None:
        self._world, self._oracle, self.regret = world, TopK(length=length), 0.0
        known = get_policy(policy).with_known_constants(constants)
        simulation = prepare_simulation(Scenario(world, known, rounds, self._oracle, checkpoints=1))
        self._server, self._agents = simulation.server, make_agents(simulation, self._oracle)

    def play(self, round_: int) -> None:
        """Play a round, with the same user, items and luck as everybody."""
        user = self._world.arrival(round_)
        agent = self._agents[user]
        played = play_round(self._world, self._oracle, round_, user, agent.recommend, agent.observe)
        if played.upload is not None:
            run_exchange(self._server, self._agents, played.upload)
        self.regret += played.regret
