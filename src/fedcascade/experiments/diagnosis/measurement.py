"""Each bound next to what a run measured, over time."""

from dataclasses import dataclass

from fedcascade.environments.clustered import Clustered
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import get_policy
from fedcascade.learning.confidence import PAPERS_BETA, ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.theory.assumptions import Assumptions
from fedcascade.learning.theory.guarantee import Guarantee, Protocol, Settings, compute_guarantee
from fedcascade.learning.theory.regret import bound_regret_below
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.trace import Trace

POINTS = 100


@dataclass(frozen=True)
class Point:
    """What was measured after ``round`` rounds, and the bounds for so many."""

    round: int
    regret: float
    exchanges_determinant: int
    exchanges_beside: int
    clustering_error: float
    paper: Guarantee
    derived: Guarantee
    regret_below: float


SYSTEMS: dict[Protocol, str] = {"auxiliary": "fedc3ucb-h", "force-comm": "force-comm"}


def play_world(
    world: Clustered, settings: Settings, *, rounds: int, list_length: int, policy: str | None = None
) -> Trace:
    """Play the system of the theorem, or another one, in a world, with many checkpoints."""
    named = {"alpha_c": settings.alpha_c, "lambda_": settings.lambda_, "p_scale": settings.p_scale}
    constants = named | {"beta": PAPERS_BETA}
    system = get_policy(policy or SYSTEMS[settings.protocol]).with_known_constants(constants)
    return simulate(world, system, rounds=rounds, oracle=TopK(length=list_length),
                    checkpoints=min(POINTS, rounds))  # fmt: skip


def compare_over_time(
    world: Clustered, assumed: Assumptions, settings: Settings, trace: Trace, list_length: int
) -> list[Point]:
    """The checkpoints of a run after round |U|^2, from which on the theorem says something."""
    points = []
    for checkpoint in trace.curve:
        if checkpoint.round <= world.users**2:
            continue
        problem = ProblemSize(users=world.users, dimension=world.dimension, list_length=list_length,
                              rounds=checkpoint.round)  # fmt: skip
        causes = [exchange.cause for exchange in trace.ledger if exchange.round <= checkpoint.round]
        needed = sum(cause is Cause.DETERMINANT for cause in causes)
        points.append(
            Point(
                checkpoint.round,
                checkpoint.regret,
                needed,
                len(causes) - needed,
                checkpoint.clustering_error,
                compute_guarantee(problem, assumed, settings, "paper"),
                compute_guarantee(problem, assumed, settings, "derived"),
                bound_regret_below(problem, clusters=assumed.clusters),
            )
        )
    return points


def find_round_of_partition(trace: Trace) -> int | None:
    """The checkpoint from which on everybody was grouped rightly; None if that never came."""
    right = None
    for checkpoint in trace.curve:
        if checkpoint.clustering_error > 0:
            right = None
        elif right is None:
            right = checkpoint.round
    return right
