"""Scenario: what is to be run, as one value; and what every engine sets up from it before the first round."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

from fedcascade.checks import require, require_integer
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.exploration import Explorer
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation.trace import Recorder

Progress = Callable[[int], None]  # called now and then with the number of rounds that are done


class ScenarioOptions(TypedDict, total=False):
    """The fields of a ``Scenario`` that ``engines.simulate`` takes by name."""

    checkpoints: int
    keep_lists: bool
    warm: LogSums | None
    own_rounds: int


@dataclass(frozen=True)
class Scenario:
    """What one run consists of: the arguments of ``engines.simulate`` that say what is played, not how.

    Args:
        environment: who arrives, what is on offer, what gets clicked.
        policy: the system.
        rounds: T.
        oracle: chooses the list from the scores.
        checkpoints: at how many evenly spaced rounds totals are recorded.
        keep_lists: also record every list, which takes memory in proportion to the rounds.
        warm: what a log taught about each user before the first round; nothing if None.
        own_rounds: also record regret by the rounds of each user, up to so many, for each quarter of the users in the
            order in which they first arrived (``Trace.own_curves``).
    """

    environment: Environment
    policy: Policy
    rounds: int
    oracle: Oracle = field(default_factory=TopK)
    checkpoints: int = 10
    keep_lists: bool = False
    warm: LogSums | None = None
    own_rounds: int = 0

    @property
    def clustered(self) -> Clustered:
        """The environment, for engines that compile environments of clustered users."""
        if not isinstance(self.environment, Clustered):
            raise ValueError(f"{type(self.environment).__name__} has no clustered users to compile")
        return self.environment


@dataclass(frozen=True)
class Simulation:
    """The sizes of the problem, the policy fitted to them, the server, and an empty record."""

    problem: ProblemSize
    policy: Policy
    server: Server
    recorder: Recorder


def list_cluster_changes(server: Server, environment: Environment, round_: int) -> list[tuple[int, int]]:
    """Return the users whose true cluster changes in a round, and the new ones; none where no server may know."""
    if not server.groups.knows_clusters or not isinstance(environment, Clustered) or round_ == 1:
        return []
    before, now = (environment.find_moment(t) for t in (round_ - 1, round_))
    if before is now:
        return []
    return [(int(user), int(now.clusters[user])) for user in np.flatnonzero(before.clusters != now.clusters)]


def require_one_click(environment: Environment, policy: Policy) -> None:
    """Refuse a world whose users may click several items for a policy that learns from one click of a list."""
    behaviour = getattr(environment, "behaviour", None)  # environments of other packages have none
    if behaviour is not None and (policy.personal is not None or policy.changes is not None):
        reason = f"{policy.name} learns from one click of a list"
        raise ValueError(f"{reason}, and users who click by {behaviour.model} may click several: play the cascade")


def list_newcomers(scenario: Scenario, round_: int) -> list[int]:
    """Return the users that join in this round, whose agents get the server's prior before their first list."""
    environment = scenario.environment
    if scenario.policy.trust is None or not isinstance(environment, Clustered):
        return []
    return [user for user, person in enumerate(environment.history.persons) if person.joined == round_]


def prepare_simulation(scenario: Scenario) -> Simulation:
    """Check that the parts of a scenario fit together, and build its server and recorder."""
    environment, oracle = scenario.environment, scenario.oracle
    require_integer("rounds", scenario.rounds)
    require_integer("own_rounds", scenario.own_rounds, 0)
    users, d, most = environment.users, environment.dimension, environment.most_items
    require(oracle.length <= most, f"list length must be <= items ({most}), got {oracle.length}")
    problem = ProblemSize(users=users, dimension=d, list_length=oracle.length, rounds=scenario.rounds)
    policy, truth = scenario.policy.fit_to(problem), environment.clusters
    require_one_click(environment, policy)
    length = oracle.length if scenario.keep_lists else 0
    server = Server(policy=policy, agents=users, dimension=d, truth=truth)
    living = environment if isinstance(environment, Clustered) and environment.history.persons else None
    recorder = Recorder(rounds=scenario.rounds, checkpoints=scenario.checkpoints, truth=truth, list_length=length,
                        has_propensities=isinstance(oracle, Explorer), living=living,
                        own_rounds=scenario.own_rounds)  # fmt: skip
    return Simulation(problem, policy, server, recorder)
