"""Agents join, speak, change and leave, in any order: the server holds what a reference that keeps everything has."""

import copy

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedcascade.federation.grouping.population.partition import PopulationPartition
from fedcascade.federation.messages import Cause, Downloads, Upload
from fedcascade.federation.policies import POLICIES, Policy, guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid

from .grouping.plays import check_groups

D = 3
LIVING = POLICIES["population"].with_constants(drift="restart")
GUARDED = guard_policy(LIVING)
TASTES = np.array([[0.9, 0.0, 0.1], [0.0, 0.9, 0.1]])


def make_data(taste: int, rounds: int, seed: int) -> Statistics:
    """What a user of one of two tastes does in some rounds."""
    random = np.random.Generator(np.random.Philox(key=seed))
    drawn = random.random((rounds, 2, D))
    items = round_to_grid((drawn / np.linalg.norm(drawn, axis=2, keepdims=True)).astype(np.float32))
    total = Statistics.zero(D)
    for listed, draws in zip(items, random.random((rounds, 2)), strict=True):
        liked = np.flatnonzero(draws < listed @ TASTES[taste])
        total = total.observe(listed, int(liked[0]) if liked.size else None)
    return total


class Lives(RuleBasedStateMachine):
    """A server, one that is saved and loaded before each step, and a reference that keeps everything."""

    policy: Policy = LIVING

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(policy=self.policy, agents=1, dimension=D)
        self.lives = {0: Statistics.zero(D)}
        self.names = [0]  # of the agents, at their places
        self.steps = 0

    def _step(self, act) -> None:  # type: ignore[no-untyped-def]
        """Let the server and a restored copy of it do the same."""
        self.steps += 1
        restored = Server.from_state(copy.deepcopy(self.server.to_state()), policy=self.policy, dimension=D)
        answers: list[Downloads] = [act(self.server), act(restored)]
        assert np.array_equal(self.server.groups.labels, restored.groups.labels)
        for (_, download), (_, again) in zip(*answers, strict=True):
            assert np.array_equal(download.gram, again.gram)
            assert np.array_equal(download.moment, again.moment)

    def _choose(self, number: int) -> int:
        """The place of an agent."""
        return number % len(self.names)

    @rule()
    def join(self) -> None:
        self._step(lambda server: (server.join(), ())[1])
        name = max(self.lives) + 1
        self.lives[name] = Statistics.zero(D)
        self.names.append(name)

    @rule(number=st.integers(0, 9), taste=st.integers(0, 1), rounds=st.integers(1, 30))
    def speak(self, number: int, taste: int, rounds: int) -> None:
        place, data = self._choose(number), make_data(taste, rounds, self.steps)
        upload = Upload(agent=place, sequence=self.steps + 1, cause=Cause.FORCED, statistics=data)
        self._step(lambda server: server.receive(upload))
        self.lives[self.names[place]] += data

    @rule(number=st.integers(0, 9), taste=st.integers(0, 1), rounds=st.integers(0, 20))
    def change(self, number: int, taste: int, rounds: int) -> None:
        place, data = self._choose(number), make_data(taste, rounds, self.steps)
        upload = Upload(agent=place, sequence=self.steps + 1, cause=Cause.CHANGE, statistics=data)
        self._step(lambda server: server.receive(upload))
        self.lives[self.names[place]] = data

    @precondition(lambda self: len(self.lives) > 1)
    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        place = self._choose(number)
        self._step(lambda server: (server.forget(place), ())[1])
        del self.lives[self.names[place]]
        self.names[place] = self.names[-1]
        self.names.pop()

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        server = self.server
        for place, name in enumerate(self.names):
            held, expected = server.holdings[place], self.lives[name]
            assert held.rounds == expected.rounds
            assert np.array_equal(held.gram, expected.gram)
            assert np.array_equal(held.moment, expected.moment)
        assert server.rounds == sum(each.rounds for each in self.lives.values())
        assert len(server.holdings) == len(self.lives)

    @invariant()
    def groups_are_the_sums_over_their_members(self) -> None:
        if isinstance(self.server.groups, PopulationPartition):
            check_groups(self.server.groups)


class GuardedLives(Lives):
    """A server with bounded influence and anonymity."""

    policy = GUARDED


class GraphLives(Lives):
    """A server with a guarded graph."""

    policy = guard_policy(POLICIES["fedc3ucb-h"])


CHECKS = settings(max_examples=12, stateful_step_count=18, deadline=None, derandomize=True,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
TestLives = Lives.TestCase
TestLives.settings = CHECKS
TestGuardedLives = GuardedLives.TestCase
TestGuardedLives.settings = CHECKS
TestGraphLives = GraphLives.TestCase
TestGraphLives.settings = CHECKS
