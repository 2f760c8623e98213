"""Agents join, speak, change and leave, in any order: the server holds what a reference that keeps everything has."""

import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedcascade.federation.grouping.evidence import Derived, EvidencePartition
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.federation.policies import POLICIES, Policy, guard_policy
from fedcascade.federation.server import Server
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid

D = 3
LIVING = POLICIES["fedc3ucb-l"].with_constants(ghosts=2)
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


@dataclass
class Life:
    """All that an agent ever uploaded: the sums of its former selves, oldest first, and those of its own."""

    own: Statistics = field(default_factory=lambda: Statistics.zero(D))
    former: list[Statistics] = field(default_factory=list)


class Lives(RuleBasedStateMachine):
    """A server, one that is saved and loaded before each step, and a reference that keeps everything."""

    policy: Policy = LIVING

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(policy=self.policy, agents=1, dimension=D)
        self.lives = {0: Life()}
        self.names = [0]  # of the agents, at their places; None at those of former selves
        self.steps = 0

    def _step(self, act) -> None:  # type: ignore[no-untyped-def]
        """Let the server and a restored copy of it do the same."""
        self.steps += 1
        restored = Server.from_state(copy.deepcopy(self.server.to_state()), policy=self.policy, dimension=D)
        answers: list[tuple[Download, ...]] = [act(self.server), act(restored)]
        assert np.array_equal(self.server.groups.labels, restored.groups.labels)
        for download, again in zip(*answers, strict=True):
            assert np.array_equal(download.statistics.gram, again.statistics.gram)
            assert np.array_equal(download.statistics.moment, again.statistics.moment)

    def _choose(self, number: int) -> int:
        """The place of an agent."""
        places = [place for place, name in enumerate(self.names) if name is not None]
        return places[number % len(places)]

    @rule()
    def join(self) -> None:
        self._step(lambda server: (server.join(), ())[1])
        name = max(self.lives) + 1
        self.lives[name] = Life()
        self.names.append(name)

    @rule(number=st.integers(0, 9), taste=st.integers(0, 1), rounds=st.integers(1, 30))
    def speak(self, number: int, taste: int, rounds: int) -> None:
        place, data = self._choose(number), make_data(taste, rounds, self.steps)
        upload = Upload(agent=place, sequence=self.steps + 1, cause=Cause.FORCED, statistics=data)
        self._step(lambda server: server.receive(upload))
        self.lives[self.names[place]].own += data

    @rule(number=st.integers(0, 9), taste=st.integers(0, 1), rounds=st.integers(1, 20), is_all_new=st.booleans())
    def change(self, number: int, taste: int, rounds: int, is_all_new: bool) -> None:
        place, data = self._choose(number), make_data(taste, rounds, self.steps)
        life = self.lives[self.names[place]]
        kept = data if is_all_new else Statistics.zero(D)
        reset = Upload(agent=place, sequence=self.steps + 1, cause=Cause.CHANGE, statistics=data, kept=kept)
        self._step(lambda server: server.receive(reset))
        rest = life.own + data - kept
        life.former += [rest] if rest.count else []
        life.own = kept
        self.names += [None] * (len(self.server.holdings) - len(self.names))  # type: ignore[list-item]

    @precondition(lambda self: len(self.lives) > 1)
    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        place = self._choose(number)
        gone = list(self.server.find_ghosts(place))
        self._step(lambda server: (server.forget(place), ())[1])
        del self.lives[self.names[place]]
        for each in sorted([place, *gone], reverse=True):
            self.names[each] = self.names[-1]
            self.names.pop()

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        server, most = self.server, self.server.most_ghosts
        rounds = 0
        for place, name in enumerate(self.names):
            if name is None:
                continue
            life = self.lives[name]
            selves = [server.holdings[each] for each in (*server.find_ghosts(place), place)]
            expected = [*life.former[-most:], life.own] if most else [life.own]
            assert [held.rounds for held in selves] == [part.rounds for part in expected]
            for held, part in zip(selves, expected, strict=True):
                assert np.array_equal(held.gram, part.gram)
                assert np.array_equal(held.moment, part.moment)
            rounds += sum(part.rounds for part in expected)
        assert server.rounds == rounds
        assert len(server.holdings) - len(server.ghosts) == len(self.lives)

    @invariant()
    def what_is_kept_up_to_date_is_what_follows_from_the_state(self) -> None:
        groups = self.server.groups
        if not isinstance(groups, EvidencePartition) or getattr(groups, "is_many", False):
            return
        kept, anew = groups.derived, Derived(groups)
        places = anew.listing.find_places()
        assert np.array_equal(kept.listing.find_places(), places)
        for name in ("labels", "sizes", "people", "sums", "evidence", "thetas"):
            assert np.array_equal(getattr(kept.listing, name)[places], getattr(anew.listing, name)[places]), name
        assert np.array_equal(kept.turn, anew.turn)
        assert np.array_equal(kept.bits, anew.bits)


class GuardedLives(Lives):
    """A server that hides people in crowds."""

    policy = GUARDED


class LivesWithoutGhosts(Lives):
    """A server that keeps no former selves."""

    policy = POLICIES["fedc3ucb-l"].with_constants(ghosts=0)


CHECKS = settings(max_examples=12, stateful_step_count=18, deadline=None, derandomize=True,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
TestLives = Lives.TestCase
TestLives.settings = CHECKS
TestGuardedLives = GuardedLives.TestCase
TestGuardedLives.settings = CHECKS
TestLivesWithoutGhosts = LivesWithoutGhosts.TestCase
TestLivesWithoutGhosts.settings = CHECKS


@pytest.mark.parametrize("policy", [GUARDED, guard_policy(POLICIES["fedlinucb"])], ids=["by evidence", "all"])
def test_former_selves_are_no_people_to_hide_among(policy: Policy) -> None:
    """One other with the asker's ghosts, or with ghosts of its own, would be told as it is."""
    server = Server(policy=policy, agents=2, dimension=D)
    server.policy = policy
    for agent in (0, 1):
        data = make_data(0, 200, agent)
        server.take(Upload(agent=agent, sequence=1, cause=Cause.FORCED, statistics=data))
    for sequence in (2, 3, 4):
        for agent in (0, 1):
            data = make_data(0, 200, 10 * sequence + agent)
            server.take(Upload(agent=agent, sequence=sequence, cause=Cause.CHANGE, statistics=data, kept=data))
    data = make_data(0, 20, 99)
    [download] = server.take(Upload(agent=0, sequence=5, cause=Cause.FORCED, statistics=data))
    assert len(server.ghosts) >= 4
    for answer in (download, server.answer(0), server.answer(1)):
        assert np.array_equal(answer.statistics.gram, server.holdings[answer.agent].gram)
        assert answer.components is None or not answer.components.any()
