"""A world, a policy and its agents as compiled code sees them: numbers and arrays."""

import numpy as np

from fedcascade.environments.clustered import Clustered
from fedcascade.federation.decisions import DownloadAndBuffer
from fedcascade.federation.policies import Policy
from fedcascade.federation.triggers import Always, AnyOf, Auxiliary, Determinant, Doubling, Ratio, SyncBudget, Trigger
from fedcascade.learning.confidence import Oful, ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.exact import kernels, sequential
from fedcascade.simulation.exact.screening import may_be_off


def leaves(trigger: Trigger) -> list[Trigger]:
    """The triggers that are joined by ``|``, in order."""
    if isinstance(trigger, AnyOf):
        return leaves(trigger.either) + leaves(trigger.other)
    return [trigger]


def compile_world(environment: Clustered) -> kernels.World:
    """The environment as compiled code sees it."""
    return kernels.World(
        seed=environment.seed,
        lifted=environment.lifted,
        fewest_items=environment.fewest_items,
        most_items=environment.most_items,
        thetas=environment.thetas,
        catalogue=environment.catalogue,
    )


def compile_rules(policy: Policy, oracle: TopK, problem: ProblemSize) -> kernels.Rules:
    """The policy as compiled code sees it."""
    triggers = without_slower([rule for leaf in leaves(policy.trigger) for rule in compile_trigger(leaf)])
    levels = np.array([level for _, level in triggers], np.float64)
    base, slope, shift = compile_confidence(policy, problem)
    d = problem.dimension
    return kernels.Rules(
        length=oracle.length,
        triggers=np.array([kind for kind, _ in triggers], np.int64),
        levels=levels,
        bounds=d * np.expm1(levels * (1.0 - 1e-9) / d),
        slack=may_be_off(d, (d / policy.lambda_) ** 0.5),  # ||root||^2 is the trace of Sigma^-1
        lambda_=policy.lambda_,
        every_round=isinstance(policy.decision, DownloadAndBuffer),
        beta_base=base,
        beta_slope=slope,
        beta_shift=shift,
    )


def compile_trigger(trigger: Trigger) -> list[tuple[int, float]]:
    """A trigger as its kind and its constant; Never is no trigger at all."""
    match trigger:
        case Determinant() | Ratio():
            return [(kernels.DETERMINANT, trigger.level)]
        case Auxiliary():
            return [(kernels.AUXILIARY, trigger.p_scale)]
        case Doubling():
            return [(kernels.DOUBLING, 0.0)]
        case Always():
            return [(kernels.ALWAYS, 0.0)]
        case _:
            return []


def sync_budget(trigger: Trigger) -> float:
    """D, or infinity where nobody synchronises."""
    return min((leaf.budget for leaf in leaves(trigger) if isinstance(leaf, SyncBudget)), default=np.inf)


def without_slower(triggers: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Of several determinant triggers only the one with the lowest level, which fires first, in the first's place."""
    lowest = min((level for kind, level in triggers if kind == kernels.DETERMINANT), default=0.0)
    lowered = [(kind, lowest if kind == kernels.DETERMINANT else level) for kind, level in triggers]
    return list(dict.fromkeys(lowered))


def compile_confidence(policy: Policy, problem: ProblemSize) -> tuple[float, float, float]:
    """The beta of agents that decide anew in every round, as base, slope and shift of sqrt(log_det + shift)."""
    if isinstance(policy.confidence, Oful):
        return policy.confidence.beta_terms(policy.lambda_, problem)
    blank = Ridge(Statistics.zero(problem.dimension), policy.lambda_)
    return policy.confidence.radius(blank, problem), 0.0, 0.0


def empty_fleet(users: int, d: int) -> kernels.Fleet:
    """Agents that know nothing."""
    return kernels.Fleet(
        gram=np.zeros((users, d, d)),
        moment=np.zeros((users, d)),
        theta=np.zeros((users, d)),
        root=np.zeros((users, d, d)),
        buffer_gram=np.zeros((users, d, d)),
        buffer_moment=np.zeros((users, d)),
        numbers=np.zeros((users, 4)),
        counts=np.zeros((users, 4), np.int64),
    )


def empty_own(users: int, d: int) -> sequential.Own:
    """Personal parts that know nothing."""
    return sequential.Own(gram=np.zeros((users, d, d)), moment=np.zeros((users, d)), theta=np.zeros((users, d)))


def take_buffer(fleet: kernels.Fleet, agent: int) -> Statistics:
    """An agent's buffer, which is empty afterwards."""
    gram, moment, counts = fleet.buffer_gram[agent], fleet.buffer_moment[agent], fleet.counts[agent]
    examined, clicks, rounds, _ = counts.tolist()
    taken = Statistics(gram.copy(), moment.copy(), examined, clicks, rounds)
    gram[:] = 0.0
    moment[:] = 0.0
    counts[: kernels.ARRIVALS] = 0
    return taken
