"""A player for our policies, to compare yours with."""

from typing import Any

import gymnasium
import numpy as np

from fedcascade.federation.agent import ShownList
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.messages import Cause, Downloads
from fedcascade.federation.policies import Policy
from fedcascade.gym.environment import Action, CascadeEnv, Observation
from fedcascade.learning.cascade import examine
from fedcascade.learning.click_log import MISSING
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.ledger import ExchangeLedger
from fedcascade.simulation.reference import make_agents
from fedcascade.simulation.scenario import Scenario, list_cluster_changes, list_newcomers, prepare_simulation


class Player:
    """A policy that plays an environment: the agents of all users and their server.

    Exchanges equal those of ``simulate`` to the bit. Make one player for each episode, after ``reset``.

    >>> from fedcascade import POLICIES, Synthetic
    >>> env = CascadeEnv(Synthetic(users=3, clusters=1, dimension=4, items=6), list_length=2, rounds=50)
    >>> observation, info = env.reset(seed=1)
    >>> player, truncated = Player(env, POLICIES["population"]), False
    >>> while not truncated:
    ...     observation, _, _, truncated, info = env.step(player.act(observation, info))
    ...     player.learn(info)
    >>> len(player.ledger) > 0
    True
    """

    def __init__(self, env: gymnasium.Env[Observation, Action], policy: Policy) -> None:
        cascade = env.unwrapped
        if not isinstance(cascade, CascadeEnv):
            raise ValueError(f"a player needs a CascadeEnv, got a {type(cascade).__name__}")
        self._scenario = Scenario(cascade.environment, policy, cascade.rounds, cascade.oracle, checkpoints=1)
        simulation = prepare_simulation(self._scenario)
        self._server, self._recorder = simulation.server, simulation.recorder
        self._agents = make_agents(simulation, cascade.oracle)
        self._open: tuple[ShownList, int, float, int, Downloads] | None = None

    @property
    def ledger(self) -> ExchangeLedger:
        """The exchanges so far."""
        return self._recorder.ledger

    def act(self, observation: Observation, info: dict[str, Any]) -> Action:
        """Choose a list with the agent of the arriving user."""
        t, user, offered = int(info["round"]), int(observation["user"]), int(observation["offered"])
        for changed, cluster in list_cluster_changes(self._server, self._scenario.environment, t):
            self._server.groups.set_true_cluster(changed, cluster)
            self._agents[changed].restart(Statistics.zero(self._scenario.environment.dimension))
            upload = self._agents[changed].send_buffer(Cause.CHANGE)
            self._recorder.record_exchange(t, *run_exchange(self._server, self._agents, upload))
        for newcomer in list_newcomers(self._scenario, t):
            self._agents[newcomer].receive(self._server.answer(newcomer))
        fetched = deliver_arrival(self._server, self._agents, user)
        shown = self._agents[user].recommend(observation["items"][:offered], info["ties"][:offered])
        self._open = shown, t, float(info["draw"]), user, fetched
        action = np.full(self._scenario.oracle.length, MISSING, np.int64)
        action[: shown.items.size] = shown.items
        return action

    def learn(self, info: dict[str, Any]) -> None:
        """Learn from the outcome of the last list, and exchange if the agent uploads."""
        if self._open is None:
            raise ValueError("there is no list to learn from: call act() first")
        (shown, t, draw, user, fetched), self._open = self._open, None
        clicks = tuple(np.flatnonzero(info["clicks"]).tolist())
        rewards = info["rewards"][list(clicks)].tolist()
        seen = examine(shown.items.size, clicks, reward=rewards or None)
        upload = self._agents[user].observe(shown, seen, round_=t, draw=draw)
        if upload is not None:
            uploads, downloads = run_exchange(self._server, self._agents, upload)
            uploads, downloads = self._server.reply_state.select_counted(uploads, fetched + downloads)
            cause = self._scenario.policy.reply_rule.download_cause
            self._recorder.record_exchange(t, uploads, downloads, cause)
