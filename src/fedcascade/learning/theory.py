"""The paper's bounds in numbers, as printed and as we derive them: assumptions, terms, and Theorem 1.

As in the paper, p_min replaces 1/|U|. By Chernoff's bound, a user of probability p arrives fewer than t p / 2 times in
t rounds with probability at most exp(-t p / 8).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcascade.checks import POSITIVE, require, require_integer, whole_numbers
from fedcascade.constants import Checked, constant
from fedcascade.learning.confidence import ProblemSize, Theory
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

PANELS, NODES = 64, 16
LARGEST_EXPONENT = 700.0
COUNT = whole_numbers(1)
Protocol = Literal["auxiliary", "force-comm"]  # exchanges besides those by determinant: random or forced
Source = Literal["paper", "derived"]  # the paper's formulas, or ours where they differ


@dataclass(frozen=True, kw_only=True)
class Assumptions(Checked):
    """The assumptions of the theorem about an environment."""

    users: int = constant(meaning="number of users", range=COUNT)
    clusters: int = constant(meaning="J", range=COUNT)
    items: int = constant(meaning="I, the maximum number of items on offer", range=COUNT)
    gamma: float = constant(meaning="least distance between the thetas of two clusters (Assumption 1)", range=POSITIVE)
    lambda_x: float = constant(meaning="smallest eigenvalue of E[x x^T] (Assumption 3)", range=POSITIVE)
    sigma: float = constant(meaning="sub-Gaussian parameter of (theta . x)^2 (Assumption 3)", range=POSITIVE)
    p_min: float = constant(meaning="least arrival probability of a user (Assumption 2: 1/|U|)", range=POSITIVE)
    p_max: float = constant(meaning="largest arrival probability of a user (Assumption 2: 1/|U|)")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clusters <= self.users, f"clusters must be <= users ({self.users}), got {self.clusters}")
        slack = 1.0 + 1e-9  # for rounding
        fits = self.p_min * self.users <= slack and self.p_max * self.users * slack >= 1.0 and self.p_max <= slack
        require(fits, f"p_min must be <= 1/users <= p_max <= 1, got {self.p_min:.4g} and {self.p_max:.4g}")


def compute_lambda_tilde(lambda_x: float, sigma: float, items: int) -> float:
    """Integrate (1 - exp(-(lambda_x - x)^2 / (2 sigma^2)))^I from 0 to lambda_x, by Gauss-Legendre.

    >>> round(compute_lambda_tilde(1.0, 1e-9, 200), 6)
    1.0
    """
    POSITIVE.check("lambda_x", lambda_x)
    POSITIVE.check("sigma", sigma)
    require_integer("items", items)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    edges = np.linspace(0.0, lambda_x, PANELS + 1)
    half = lambda_x / PANELS / 2
    gap = (edges[:-1, None] + half) + half * nodes[None, :]  # lambda_x - x, from 0 to lambda_x
    power = items * np.log(-np.expm1(-(gap**2) / (2 * sigma**2)))
    return float(half * np.sum(weights * np.exp(power)))


def compute_failure_probability(users: int, rounds: int) -> float:
    """Compute delta = |U|^2 / T of the proof of Theorem 1."""
    require(rounds > users**2, f"rounds must be > users^2 ({users**2}) for the theorem to apply, got {rounds}")
    return users**2 / rounds


def bound_rounds_to_separate(
    problem: ProblemSize, assumptions: Assumptions, *, lambda_tilde: float, delta: float
) -> float:
    """Bound T_0: after T_0 rounds the estimates of all users, if uploaded, are within gamma / 2."""
    if lambda_tilde <= math.sqrt(5e-324):  # its square would be 0
        return math.inf
    users, d = problem.users, problem.dimension
    regular = 1024 / lambda_tilde**2 * math.log(512 * d / (lambda_tilde**2 * delta))
    apart = 512 * d / (assumptions.gamma**2 * lambda_tilde) * math.log(4 * users / delta)
    return bound_rounds_of_arrivals(problem, assumptions, max(regular, apart), delta)


def bound_rounds_of_arrivals(problem: ProblemSize, assumptions: Assumptions, arrivals: float, delta: float) -> float:
    """Bound the rounds until every user has arrived ``arrivals`` times, with probability 1 - delta / 4."""
    return (16 * math.log(4 * problem.users * problem.rounds / delta) + 4 * arrivals) / assumptions.p_min


def quote_rounds_until_auxiliary(problem: ProblemSize, assumptions: Assumptions, delta: float) -> float:
    """Compute the paper's T_1: sqrt(1/delta) arrivals of every user, after which all have uploaded (Lemma 1.1)."""
    return bound_rounds_of_arrivals(problem, assumptions, math.sqrt(1 / delta), delta)


def bound_rounds_until_auxiliary(assumptions: Assumptions, delta: float, *, separated: float, p_scale: float) -> float:
    """Bound T_1 by our derivation: p_t falls in every round, not only in those of one user.

    A user does not upload from T_0 to T_0 + T_1 with probability at most exp(-p_min sum of p_t). That is delta^1.5 once
    k (ln^2(T_0 + T_1) - ln^2(T_0)) / 2 = 1.5 ln(1/delta) / p_min.
    """
    start = max(separated, 3.0, 2 * p_scale * math.log(max(2 * p_scale, 1.0)))  # from here on p_t < 1 and falls
    if math.isinf(start):
        return math.inf
    exponent = math.sqrt(math.log(start + 1) ** 2 + 3 * math.log(1 / delta) / (p_scale * assumptions.p_min))
    return math.exp(exponent) - separated if exponent < LARGEST_EXPONENT else math.inf


def quote_rounds_until_forced(
    problem: ProblemSize, assumptions: Assumptions, delta: float, *, separated: float
) -> float:
    """Compute the paper's T_1 of ForceComm: T_0 arrivals of every user, which at least double each count."""
    return (16 * math.log(4 * problem.rounds / delta) + 4 * separated) / assumptions.p_min


def bound_rounds_until_forced(
    problem: ProblemSize, assumptions: Assumptions, delta: float, *, separated: float
) -> float:
    """Bound T_1 of ForceComm: by T_0 no user has arrived more than 2 p_max T_0 + 3 ln(4 |U| / delta) times.

    As many more arrivals take every count past a power of two. By Bernstein's inequality, a binomial of mean m exceeds
    2 m + 3 L with probability at most exp(-L).
    """
    arrived = 2 * assumptions.p_max * separated + 3 * math.log(4 * problem.users / delta)
    return bound_rounds_of_arrivals(problem, assumptions, arrived, delta)


def quote_determinant_exchanges(problem: ProblemSize, *, lambda_: float, alpha_c: float) -> float:
    """Compute the paper's equation 37, which runs exceed: 2 ln 2 d (|U| + 1/alpha_c) ln(1 + KT / (lambda d))."""
    d, seen = problem.dimension, problem.list_length * problem.rounds
    return 2 * math.log(2) * d * (problem.users + 1 / alpha_c) * math.log1p(seen / (lambda_ * d))


def bound_determinant_exchanges(problem: ProblemSize, *, clusters: int, lambda_: float, alpha_c: float) -> float:
    """Bound the exchanges of equation 37 by our derivation, for a fixed partition into J groups.

    |U| (1 + d log2(1 + KT / (lambda d))) + J/alpha_c (1 + d log2(1 + KT / (J lambda d))). One group V has at most
    1 + d log2(1 + K T_V / (lambda d)) stretches in which the determinant of its pool less than doubles. In each, every
    member uploads once. Every further exchange adds alpha_c times the determinant at the start of the stretch, so there
    are fewer than 1/alpha_c of them. The sum over groups follows since their T_V sum to T and log2 is concave.
    """
    users, d, seen = problem.users, problem.dimension, problem.list_length * problem.rounds
    stretches = 1 + d * math.log2(1 + seen / (lambda_ * d))
    stretches_of_group = 1 + d * math.log2(1 + seen / (clusters * lambda_ * d))
    return users * stretches + clusters / alpha_c * stretches_of_group


def bound_auxiliary_exchanges(rounds: int, p_scale: float) -> float:
    """Bound the expected random exchanges: k (ln T + ln^2 T) (equation 38)."""
    return p_scale * (math.log(rounds) + math.log(rounds) ** 2)


def quote_forced_exchanges(users: int, rounds: int) -> float:
    """Compute the paper's number of forced exchanges of ForceComm: |U| log2 T."""
    return users * math.log2(rounds)


def bound_forced_exchanges(users: int, rounds: int) -> float:
    """Bound the forced exchanges of ForceComm: |U| (1 + log2(T / |U|)).

    A user with n arrivals has at most 1 + log2(n) of them, and all arrivals sum to T.
    """
    return users * (1 + math.log2(max(rounds / users, 1.0)))


def bound_learning_regret(
    problem: ProblemSize, *, clusters: int, beta: float, lambda_: float, alpha_c: float, base: float = 2.0
) -> float:
    """Compute 2 d K |U| log2(1 + KT/lambda) + 4 beta sqrt(J + |U| alpha_c) sqrt(d K T ln(1 + KT/lambda)).

    The log2 counts doublings. The last line of the paper's equation 25 has ln instead: ``base`` e.
    """
    users, d, seen = problem.users, problem.dimension, problem.list_length * problem.rounds
    logs = math.log1p(seen / lambda_)
    root = math.sqrt((clusters + users * alpha_c) * d * seen * logs)
    return 2 * d * problem.list_length * users * logs / math.log(base) + 4 * beta * root


def bound_regret_below(problem: ProblemSize, *, clusters: int) -> float:
    """Return the lower bound sqrt(d J T) on regret (Liu et al. 2022), without its constant."""
    return math.sqrt(problem.dimension * clusters * problem.rounds)


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
class Settings(Checked):
    """The constants of the policy in the theorem."""

    protocol: Protocol = "auxiliary"
    lambda_: float = 4.0  # regulariser
    alpha_c: float = 1.0  # an agent uploads when its determinant has grown by this factor plus one
    p_scale: float = constant(3.0, meaning="scale of the random exchanges, p_scale ln(t) / t", range=POSITIVE)
    noise: float = 0.5  # R of Lemma 1


def compute_guarantee(
    problem: ProblemSize, assumptions: Assumptions, settings: Settings, source: Source = "derived"
) -> Guarantee:
    """Compute all terms of Theorem 1; ``problem`` has |U|, d, K and T.

    >>> sizes = ProblemSize(users=4, dimension=5, list_length=2, rounds=10_000)
    >>> means = {"gamma": 1.0, "lambda_x": 0.1, "sigma": 0.01}
    >>> assumed = Assumptions(users=4, clusters=2, items=10, p_min=0.25, p_max=0.25, **means)
    >>> for source in ("paper", "derived"):
    ...     bound = compute_guarantee(sizes, assumed, Settings(), source)
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
    separated = bound_rounds_to_separate(problem, assumptions, lambda_tilde=tilde, delta=delta)
    exchanged = _compute_rounds_until_exchange(problem, assumptions, settings, source, delta, separated)
    is_paper = source == "paper"
    failure = 2 * delta + (users * delta**1.5 if settings.protocol == "auxiliary" else 0.0 if is_paper else delta / 4)
    determinant = (
        quote_determinant_exchanges(problem, lambda_=lambda_, alpha_c=alpha_c)
        if is_paper
        else bound_determinant_exchanges(problem, clusters=J, lambda_=lambda_, alpha_c=alpha_c)
    )
    return Guarantee(
        delta=delta,
        beta=beta,
        lambda_tilde=tilde,
        T_0=separated,
        T_1=exchanged,
        regret_learning=bound_learning_regret(
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
            return quote_rounds_until_auxiliary(problem, assumptions, delta)
        case "auxiliary", _:
            return bound_rounds_until_auxiliary(assumptions, delta, separated=separated, p_scale=settings.p_scale)
        case _, "paper":
            return quote_rounds_until_forced(problem, assumptions, delta, separated=separated)
    return bound_rounds_until_forced(problem, assumptions, delta, separated=separated)


def _compute_other_exchanges(problem: ProblemSize, settings: Settings, source: Source) -> float:
    """Compute the exchanges that are not caused by the determinant."""
    if settings.protocol == "auxiliary":
        return bound_auxiliary_exchanges(problem.rounds, settings.p_scale)
    count = quote_forced_exchanges if source == "paper" else bound_forced_exchanges
    return count(problem.users, problem.rounds)
