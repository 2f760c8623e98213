"""Theorem 1: all terms for one problem, as the paper prints them or as we derive them."""

import math
from dataclasses import dataclass
from typing import Literal

from fedcascade.checks import POSITIVE
from fedcascade.learning.confidence import ProblemSize, Theory
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.learning.theory import bounds
from fedcascade.learning.theory.assumptions import Assumptions, compute_failure_probability, compute_lambda_tilde

Protocol = Literal["auxiliary", "force-comm"]  # exchanges besides those by determinant: random or forced
Source = Literal["paper", "derived"]  # the paper's formulas, or ours where they differ


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
    exchanges_other: float

    @property
    def regret_partition(self) -> float:
        """Regret until all users are grouped correctly, at most 1 per round."""
        return self.T_0 + self.T_1

    @property
    def regret(self) -> float:
        """Bound on Reg(T)."""
        return self.regret_learning + self.regret_partition + self.regret_failure

    @property
    def exchanges(self) -> float:
        """Bound on Com(T)."""
        return self.exchanges_determinant + self.exchanges_other


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The constants of the policy in the theorem."""

    protocol: Protocol = "auxiliary"
    lambda_: float = 4.0  # regulariser
    alpha_c: float = 1.0  # an agent uploads when its determinant has grown by this factor plus one
    p_scale: float = 3.0  # random exchanges have probability p_scale ln(t) / t
    noise: float = 0.5  # R of Lemma 1

    def __post_init__(self) -> None:
        POSITIVE.check("p_scale", self.p_scale)


def compute_guarantee(
    problem: ProblemSize, assumptions: Assumptions, settings: Settings, source: Source = "derived"
) -> Guarantee:
    """Compute all terms of Theorem 1; ``problem`` has |U|, d, K and T.

    >>> from fedcascade.learning.theory.assumptions import assume_uniform
    >>> sizes = ProblemSize(users=4, dimension=5, list_length=2, rounds=10_000)
    >>> assumptions = assume_uniform(users=4, clusters=2, items=10, lambda_x=0.1, sigma=0.01)
    >>> for source in ("paper", "derived"):
    ...     bound = compute_guarantee(sizes, assumptions, Settings(), source)
    ...     print(round(bound.lambda_tilde, 4), round(bound.exchanges))
    0.0763 522
    0.0763 577
    """
    users, rounds, J = problem.users, problem.rounds, assumptions.clusters
    delta = compute_failure_probability(users, rounds)
    tilde = compute_lambda_tilde(assumptions.lambda_x, assumptions.sigma, assumptions.items)
    lambda_, alpha_c = settings.lambda_, settings.alpha_c
    ridge = Ridge(Statistics.zero(problem.dimension), lambda_)
    beta = Theory(alpha_c=alpha_c, noise=settings.noise, delta=delta).radius(ridge, problem)
    separated = bounds.bound_rounds_to_separate(problem, assumptions, lambda_tilde=tilde, delta=delta)
    exchanged = _compute_rounds_until_exchange(problem, assumptions, settings, source, delta, separated)
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
        T_1=exchanged,
        regret_learning=bounds.bound_learning_regret(
            problem, clusters=J, beta=beta, lambda_=lambda_, alpha_c=alpha_c, base=math.e if is_paper else 2.0
        ),
        regret_failure=max(0.0, rounds - separated - exchanged) * failure,
        exchanges_determinant=determinant,
        exchanges_other=_compute_other_exchanges(problem, settings, source),
    )


def _compute_rounds_until_exchange(
    problem: ProblemSize, assumptions: Assumptions, settings: Settings, source: Source, delta: float, separated: float
) -> float:
    """Compute T_1, the rounds after T_0 in which every agent has an exchange."""
    match settings.protocol, source:
        case "auxiliary", "paper":
            return bounds.quote_rounds_until_auxiliary(problem, assumptions, delta)
        case "auxiliary", _:
            return bounds.bound_rounds_until_auxiliary(
                assumptions, delta, separated=separated, p_scale=settings.p_scale
            )
        case _, "paper":
            return bounds.quote_rounds_until_forced(problem, assumptions, delta, separated=separated)
    return bounds.bound_rounds_until_forced(problem, assumptions, delta, separated=separated)


def _compute_other_exchanges(problem: ProblemSize, settings: Settings, source: Source) -> float:
    """Compute the exchanges that are not caused by the determinant."""
    if settings.protocol == "auxiliary":
        return bounds.bound_auxiliary_exchanges(problem.rounds, settings.p_scale)
    count = bounds.quote_forced_exchanges if source == "paper" else bounds.bound_forced_exchanges
    return count(problem.users, problem.rounds)
