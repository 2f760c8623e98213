"""Theorem 1 put together: every term for one problem, as the paper prints it or as we derive it."""

import math
from dataclasses import dataclass
from typing import Literal

from fedcascade.checks import POSITIVE
from fedcascade.learning.confidence import ProblemSize, Theory
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.learning.theory import bounds
from fedcascade.learning.theory.assumptions import Assumptions, compute_failure_probability, compute_lambda_tilde

Protocol = Literal["auxiliary", "force-comm"]  # what agents do beside looking at the determinant
Source = Literal["paper", "derived"]  # who says so: the paper's formulas, or ours where they differ


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The terms of Theorem 1 for one problem."""

    delta: float
    beta: float
    lambda_tilde: float
    T_0: float
    T_1: float
    regret_learning: float
    regret_failure: float
    exchanges_determinant: float
    exchanges_beside: float

    @property
    def regret_partition(self) -> float:
        """Regret until everybody is grouped rightly, at most 1 in each round."""
        return self.T_0 + self.T_1

    @property
    def regret(self) -> float:
        """The bound on Reg(T)."""
        return self.regret_learning + self.regret_partition + self.regret_failure

    @property
    def exchanges(self) -> float:
        """The bound on Com(T)."""
        return self.exchanges_determinant + self.exchanges_beside


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The constants of the system that the theorem speaks of.

    Attributes:
        protocol: What agents do beside looking at the determinant: speak by chance, or by force.
        lambda_: Regulariser of the ridge estimate.
        alpha_c: An agent speaks when its determinant has grown by this factor plus one.
        p_scale: Scale of the random exchanges: p_t = scale ln(t) / t.
        noise: R of Lemma 1.
    """

    protocol: Protocol = "auxiliary"
    lambda_: float = 4.0
    alpha_c: float = 1.0
    p_scale: float = 3.0
    noise: float = 0.5

    def __post_init__(self) -> None:
        POSITIVE.check("p_scale", self.p_scale)


def compute_guarantee(
    problem: ProblemSize, world: Assumptions, settings: Settings, source: Source = "derived"
) -> Guarantee:
    """Compute every number of Theorem 1; ``problem`` has |U|, d, K and T.

    >>> from fedcascade.learning.theory.assumptions import assume_uniform
    >>> sizes = ProblemSize(users=4, dimension=5, list_length=2, rounds=10_000)
    >>> world = assume_uniform(users=4, clusters=2, items=10, lambda_x=0.1, sigma=0.01)
    >>> for source in ("paper", "derived"):
    ...     bound = compute_guarantee(sizes, world, Settings(), source)
    ...     print(round(bound.lambda_tilde, 4), round(bound.exchanges))
    0.0763 522
    0.0763 577
    """
    users, rounds, J = problem.users, problem.rounds, world.clusters
    delta = compute_failure_probability(users, rounds)
    tilde = compute_lambda_tilde(world.lambda_x, world.sigma, world.items)
    lambda_, alpha_c = settings.lambda_, settings.alpha_c
    ridge = Ridge(Statistics.zero(problem.dimension), lambda_)
    beta = Theory(alpha_c=alpha_c, noise=settings.noise, delta=delta).radius(ridge, problem)
    separated = bounds.bound_rounds_to_separate(problem, world, lambda_tilde=tilde, delta=delta)
    spoken = _compute_rounds_until_spoken(problem, world, settings, source, delta, separated)
    is_paper = source == "paper"
    failure = 2 * delta + (users * delta**1.5 if settings.protocol == "auxiliary" else 0.0 if is_paper else delta / 4)
    determinant = (
        bounds.quote_determinant_exchanges(problem, lambda_=lambda_, alpha_c=alpha_c)
        if is_paper
        else bounds.bound_determinant_exchanges(problem, clusters=J, lambda_=lambda_, alpha_c=alpha_c)
    )
    return Guarantee(
        delta=delta,
        beta=beta,
        lambda_tilde=tilde,
        T_0=separated,
        T_1=spoken,
        regret_learning=bounds.bound_learning_regret(
            problem, clusters=J, beta=beta, lambda_=lambda_, alpha_c=alpha_c, base=math.e if is_paper else 2.0
        ),
        regret_failure=max(0.0, rounds - separated - spoken) * failure,
        exchanges_determinant=determinant,
        exchanges_beside=_compute_exchanges_beside(problem, settings, source),
    )


def _compute_rounds_until_spoken(
    problem: ProblemSize, world: Assumptions, settings: Settings, source: Source, delta: float, separated: float
) -> float:
    """T_1: in so many rounds after T_0, every agent has had an exchange."""
    match settings.protocol, source:
        case "auxiliary", "paper":
            return bounds.quote_rounds_until_auxiliary(problem, world, delta)
        case "auxiliary", _:
            return bounds.bound_rounds_until_auxiliary(world, delta, separated=separated, p_scale=settings.p_scale)
        case _, "paper":
            return bounds.quote_rounds_until_forced(problem, world, delta, separated=separated)
    return bounds.bound_rounds_until_forced(problem, world, delta, separated=separated)


def _compute_exchanges_beside(problem: ProblemSize, settings: Settings, source: Source) -> float:
    """Exchanges that are not for the determinant."""
    if settings.protocol == "auxiliary":
        return bounds.bound_auxiliary_exchanges(problem.rounds, settings.p_scale)
    count = bounds.quote_forced_exchanges if source == "paper" else bounds.bound_forced_exchanges
    return count(problem.users, problem.rounds)
