"""What every engine sets up before the first round."""

from dataclasses import dataclass
from typing import NamedTuple

from fedcascade.checks import require, require_integer
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import Policy
from fedcascade.federation.server import Server
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation.trace import Recorder


class Scenario(NamedTuple):
    """What is to be run, where many runs are played together: the arguments of ``simulate``."""

    environment: Clustered
    policy: Policy
    rounds: int
    oracle: TopK
    checkpoints: int = 10
    keep_lists: bool = False


@dataclass(frozen=True)
class Simulation:
    """The sizes of the problem, the policy fitted to them, the server, and an empty record."""

    problem: ProblemSize
    policy: Policy
    server: Server
    recorder: Recorder


def prepare_simulation(
    environment: Environment, policy: Policy, oracle: Oracle, *, rounds: int, checkpoints: int, keep_lists: bool
) -> Simulation:
    """Check that the parts fit together, and build them."""
    require_integer("rounds", rounds)
    users, d, most = environment.users, environment.dimension, environment.most_items
    require(oracle.length <= most, f"list length must be <= items ({most}), got {oracle.length}")
    problem = ProblemSize(users=users, dimension=d, list_length=oracle.length, rounds=rounds)
    fitted = policy.fit_to(problem)
    return Simulation(
        problem=problem,
        policy=fitted,
        server=Server(policy=fitted, agents=users, dimension=d, truth=environment.clusters),
        recorder=Recorder(
            rounds=rounds,
            checkpoints=checkpoints,
            truth=environment.clusters,
            lists_of=oracle.length if keep_lists else 0,
        ),
    )
