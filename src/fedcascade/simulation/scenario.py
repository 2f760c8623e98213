"""The scenario of a run as one value, and its preparation before the first round."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

from fedcascade.checks import NONNEGATIVE, require, require_integer
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.numerics import streams
from fedcascade.simulation.trace import Recorder

Progress = Callable[[int], None]  # called from time to time with the number of rounds done


class ScenarioOptions(TypedDict, total=False):
    """The fields of a ``Scenario`` that ``engines.simulate`` takes by name."""

    checkpoints: int
    keep_lists: bool
    warm: LogSums | None
    delay: "Delay"
    batch: int


@dataclass(frozen=True)
class Delay:
    """Rounds between a list and its feedback: from ``least`` to ``most``, all equally likely, plus exponential ones.

    >>> Delay.parse("100"), Delay.parse("0-200").most, Delay.parse("exp:50").mean
    (Delay(least=100, most=100, mean=0.0), 200, 50.0)
    """

    least: int = 0
    most: int = 0
    mean: float = 0.0  # of the exponential part

    @classmethod
    def parse(cls, text: str) -> "Delay":
        """Read a number of rounds, a range such as 0-200, or exp:MEAN."""
        try:
            if text.startswith("exp:"):
                return cls(mean=NONNEGATIVE.parse("delay", text.removeprefix("exp:")))
            least, _, most = text.partition("-")
            found = cls(int(least), int(most or least))
            require(0 <= found.least <= found.most, text)
        except ValueError:
            raise ValueError(f"delay must be rounds, a range like 0-200 or exp:MEAN, got '{text}'") from None
        return found

    def draw(self, seed: int, round_: int) -> int:
        """Draw the delay of the feedback of a round."""
        even, other = (float(streams.uniform(seed, streams.DELAY, round_, index)) for index in range(2))
        return self.least + int(even * (self.most - self.least + 1)) + int(-self.mean * math.log1p(-other))


NO_DELAY = Delay()


@dataclass(frozen=True)
class Scenario:
    """The arguments of ``engines.simulate`` on which the Trace depends."""

    environment: Environment
    policy: Policy
    rounds: int
    oracle: Oracle = field(default_factory=TopK)
    checkpoints: int = 10  # number of evenly spaced rounds with recorded totals
    keep_lists: bool = False  # record every list, in memory proportional to the rounds
    warm: LogSums | None = None  # data of each user from a log, for a warm start
    delay: Delay = NO_DELAY
    batch: int = 1  # feedback arrives after every so many rounds

    @property
    def is_late(self) -> bool:
        """True if feedback comes after its round."""
        return self.batch > 1 or self.delay != NO_DELAY

    def find_due_round(self, round_: int) -> int:
        """Return the round in which the feedback of a round arrives: after its delay, at the end of a batch."""
        if not self.is_late:
            return round_
        seed = int(getattr(self.environment, "seed", 0))
        due = round_ + self.delay.draw(seed, round_)
        return due + -due % self.batch

    @property
    def clustered(self) -> Clustered:
        """The environment, for engines that compile environments of clustered users."""
        if not isinstance(self.environment, Clustered):
            raise ValueError(f"{type(self.environment).__name__} has no clustered users to compile")
        return self.environment


@dataclass(frozen=True)
class Simulation:
    """The sizes of a problem, the policy fitted to them, the server and an empty recorder."""

    problem: ProblemSize
    policy: Policy
    server: Server
    recorder: Recorder
    seed: int


def list_news(scenario: Scenario, server: Server, round_: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the users whose true cluster changes in a round, with the new one, and the users that join.

    There are none of the first unless the server knows true clusters, and of the second unless agents get its prior.
    """
    environment, changes, newcomers = scenario.environment, [], []
    if isinstance(environment, Clustered) and server.groups.knows_clusters and round_ > 1:
        before, now = (environment.find_moment(t) for t in (round_ - 1, round_))
        if before is not now:
            changed = np.flatnonzero(before.clusters != now.clusters)
            changes = [(int(user), int(now.clusters[user])) for user in changed]
    if isinstance(environment, Clustered) and scenario.policy.trust is not None:
        newcomers = [user for user, role in enumerate(environment.history.user_roles) if role.joined == round_]
    return changes, newcomers


def require_one_click(environment: Environment, policy: Policy) -> None:
    """Reject click models with several clicks for a policy that learns from the first click only."""
    behaviour = getattr(environment, "behaviour", None)  # environments of other packages have none
    if behaviour is not None and (policy.personal is not None or policy.changes is not None):
        reason = f"{policy.name} learns from one click per list, and {behaviour.model} has several"
        raise ValueError(f"{reason}: use clicks 'cascade', or another policy")


def prepare_simulation(scenario: Scenario) -> Simulation:
    """Check that the parts of a scenario fit together; build its server and recorder."""
    environment, oracle = scenario.environment, scenario.oracle
    require_integer("rounds", scenario.rounds)
    require_integer("batch", scenario.batch)
    users, d, most = environment.users, environment.dimension, environment.most_items
    require(oracle.length <= most, f"list length must be <= items ({most}), got {oracle.length}")
    problem = ProblemSize(users=users, dimension=d, list_length=oracle.length, rounds=scenario.rounds)
    policy, truth = scenario.policy.fit_to(problem), environment.clusters
    require_one_click(environment, policy)
    length = oracle.length if scenario.keep_lists else 0
    server = Server(policy=policy, agents=users, dimension=d, truth=truth)
    recorder = Recorder(
        rounds=scenario.rounds,
        checkpoints=scenario.checkpoints,
        truth=truth,
        list_length=length,
        has_propensities=hasattr(oracle, "propensities"),
        environment=environment if isinstance(environment, Clustered) else None,
    )
    return Simulation(problem, policy, server, recorder, int(getattr(environment, "seed", 0)))
