"""The paper's bounds in numbers, as printed and as we derive them: assumptions, terms, and Theorem 1.

As in the paper, p_min replaces 1/|U|. By Chernoff's bound, a user of probability p arrives fewer than t p / 2 times in
t rounds with probability at most exp(-t p / 8).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fedcascade.checks import POSITIVE, require, whole_numbers
from fedcascade.constants import Checked, constant
from fedcascade.learning.confidence import ALPHA_C, ProblemSize, Theory
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
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    edges = np.linspace(0.0, lambda_x, PANELS + 1)
    half = lambda_x / PANELS / 2
    gap = (edges[:-1, None] + half) + half * nodes[None, :]  # lambda_x - x, from 0 to lambda_x
    power = items * np.log(-np.expm1(-(gap**2) / (2 * sigma**2)))
    return float(half * np.sum(weights * np.exp(power)))


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


def bound_forced_exchanges(users: int, rounds: int) -> float:
    """Bound the forced exchanges of ForceComm: |U| (1 + log2(T / |U|)).

    A user with n arrivals has at most 1 + log2(n) of them, and all arrivals sum to T.
    """
    return users * (1 + math.log2(max(rounds / users, 1.0)))


def bound_regret_below(problem: ProblemSize, *, clusters: int) -> float:
    """Return the lower bound sqrt(d J T) on regret (Liu et al. 2022), without its constant."""
    return math.sqrt(problem.dimension * clusters * problem.rounds)


@dataclass(frozen=True, kw_only=True)
class Settings(Checked):
    """The constants of the policy in the theorem."""

    protocol: Protocol = "auxiliary"
    lambda_: float = constant(4.0, meaning="regulariser of the ridge estimate", range=POSITIVE)
    alpha_c: float = constant(1.0, **ALPHA_C)
    p_scale: float = constant(3.0, meaning="scale of the random exchanges, p_scale ln(t) / t", range=POSITIVE)
    noise: float = constant(0.5, meaning="R of Lemma 1", range=POSITIVE)


@dataclass(frozen=True)
class Guarantee:
    """The terms of Theorem 1 for a problem of |U|, d, K and T, by the paper's formulas or by ours where they differ.

    >>> sizes = ProblemSize(users=4, dimension=5, list_length=2, rounds=10_000)
    >>> means = {"gamma": 1.0, "lambda_x": 0.1, "sigma": 0.01}
    >>> assumed = Assumptions(users=4, clusters=2, items=10, p_min=0.25, p_max=0.25, **means)
    >>> for source in ("paper", "derived"):
    ...     bound = Guarantee(sizes, assumed, Settings(), source)
    ...     print(round(bound.lambda_tilde, 4), round(bound.exchanges))
    0.0763 522
    0.0763 577
    """

    problem: ProblemSize
    assumptions: Assumptions
    settings: Settings
    source: Source = "derived"

    def __post_init__(self) -> None:
        users, rounds = self.problem.users, self.problem.rounds
        require(rounds > users**2, f"rounds must be > users^2 ({users**2}) for the theorem to apply, got {rounds}")

    @property
    def delta(self) -> float:
        """delta = |U|^2 / T of the proof."""
        return self.problem.users**2 / self.problem.rounds

    @property
    def beta(self) -> float:
        """beta of Lemma 1."""
        settings, nothing = self.settings, Statistics.zero(self.problem.dimension)
        theory = Theory(alpha_c=settings.alpha_c, noise=settings.noise, delta=self.delta)
        return theory.radius(Ridge(nothing, settings.lambda_), self.problem)

    @cached_property
    def lambda_tilde(self) -> float:
        return compute_lambda_tilde(self.assumptions.lambda_x, self.assumptions.sigma, self.assumptions.items)

    @property
    def T_0(self) -> float:  # noqa: N802 (the paper's name)
        """Rounds until the estimates of all users, if uploaded, are within gamma / 2."""
        tilde, users, d = self.lambda_tilde, self.problem.users, self.problem.dimension
        if tilde <= math.sqrt(5e-324):  # its square would be 0
            return math.inf
        regular = 1024 / tilde**2 * math.log(512 * d / (tilde**2 * self.delta))
        apart = 512 * d / (self.assumptions.gamma**2 * tilde) * math.log(4 * users / self.delta)
        return self._count_rounds(max(regular, apart))

    def _count_rounds(self, arrivals: float) -> float:
        """Bound the rounds until every user has arrived that many times, with probability 1 - delta / 4."""
        logs = math.log(4 * self.problem.users * self.problem.rounds / self.delta)
        return (16 * logs + 4 * arrivals) / self.assumptions.p_min

    @property
    def T_1(self) -> float:  # noqa: N802
        """Rounds after T_0 in which every agent has an exchange.

        Paper: sqrt(1/delta) arrivals of every user (Lemma 1.1); with ForceComm T_0 arrivals, which at least double each
        count. Ours for ForceComm: by T_0 no user has arrived more than 2 p_max T_0 + 3 ln(4 |U| / delta) times, and as
        many more arrivals take every count past a power of two. By Bernstein's inequality, a binomial of mean m exceeds
        2 m + 3 L with probability at most exp(-L).
        """
        assumptions, delta = self.assumptions, self.delta
        match self.settings.protocol, self.source:
            case "auxiliary", "paper":
                return self._count_rounds(math.sqrt(1 / delta))
            case "auxiliary", _:
                return bound_rounds_until_auxiliary(
                    assumptions, delta, separated=self.T_0, p_scale=self.settings.p_scale
                )
            case _, "paper":
                return (16 * math.log(4 * self.problem.rounds / delta) + 4 * self.T_0) / assumptions.p_min
        return self._count_rounds(2 * assumptions.p_max * self.T_0 + 3 * math.log(4 * self.problem.users / delta))

    @property
    def regret_learning(self) -> float:
        """Compute 2 d K |U| log2(1 + KT/lambda) + 4 beta sqrt(J + |U| alpha_c) sqrt(d K T ln(1 + KT/lambda)).

        The log2 counts doublings. The last line of the paper's equation 25 has ln instead.
        """
        users, d, K = self.problem.users, self.problem.dimension, self.problem.list_length
        seen, base = K * self.problem.rounds, math.e if self.source == "paper" else 2.0
        logs = math.log1p(seen / self.settings.lambda_)
        root = math.sqrt((self.assumptions.clusters + users * self.settings.alpha_c) * d * seen * logs)
        return 2 * d * K * users * logs / math.log(base) + 4 * self.beta * root

    @property
    def regret_partition(self) -> float:
        """Regret until all users are grouped correctly, at most 1 per round."""
        return self.T_0 + self.T_1

    @property
    def regret_failure(self) -> float:
        """Regret of the rounds after that if the bounds of Lemma 1 or T_1 fail."""
        match self.settings.protocol, self.source:
            case "auxiliary", _:
                late: float = self.problem.users * self.delta**1.5
            case _, "paper":
                late = 0.0
            case _:
                late = self.delta / 4
        return max(0.0, self.problem.rounds - self.regret_partition) * (2 * self.delta + late)

    @property
    def regret(self) -> float:
        """Bound on Reg(T)."""
        return self.regret_learning + self.regret_partition + self.regret_failure

    @property
    def exchanges_determinant(self) -> float:
        """Bound on the exchanges by the determinant (equation 37)."""
        constants = {"lambda_": self.settings.lambda_, "alpha_c": self.settings.alpha_c}
        if self.source == "paper":
            return quote_determinant_exchanges(self.problem, **constants)
        return bound_determinant_exchanges(self.problem, clusters=self.assumptions.clusters, **constants)

    @property
    def exchanges_other(self) -> float:
        """Bound on the random exchanges (equation 38), or on the forced ones; the paper has |U| log2(T) of these."""
        users, rounds = self.problem.users, self.problem.rounds
        if self.settings.protocol == "auxiliary":
            return bound_auxiliary_exchanges(rounds, self.settings.p_scale)
        return users * math.log2(rounds) if self.source == "paper" else bound_forced_exchanges(users, rounds)

    @property
    def exchanges(self) -> float:
        """Bound on Com(T)."""
        return self.exchanges_determinant + self.exchanges_other
