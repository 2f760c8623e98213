"""Theorem 1 in numbers: what the paper guarantees for given sizes, with the constants of its appendix.

ln is the natural logarithm, as everywhere in the paper's proofs but for one log_2 that its last line drops.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedcascade.checks import POSITIVE, require, require_integer
from fedcascade.learning.confidence import ProblemSize, Theory
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

PANELS, NODES = 64, 16


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Theorem 1 for one problem; see ``compute_guarantee`` for what goes in."""

    delta: float
    beta: float
    lambda_tilde: float
    T_0: float
    T_1: float
    regret_learning: float
    regret_partition: float
    regret_failure: float
    exchanges_determinant: float
    exchanges_auxiliary: float

    @property
    def regret(self) -> float:
        """The bound on Reg(T)."""
        return self.regret_learning + self.regret_partition + self.regret_failure

    @property
    def exchanges(self) -> float:
        """The bound on Com(T)."""
        return self.exchanges_determinant + self.exchanges_auxiliary


def compute_guarantee(
    problem: ProblemSize,
    *,
    clusters: int,
    items: int,
    gamma: float,
    lambda_x: float,
    sigma: float,
    lambda_: float = 4.0,
    alpha_c: float = 1.0,
    p_scale: float = 3.0,
    noise: float = 0.5,
) -> Guarantee:
    """Compute every number of Theorem 1.

    ``problem`` has |U|, d, K and T; ``clusters`` is J, and ``items`` is I, the most items on offer. The thetas of two
    clusters are at least ``gamma`` apart (Assumption 1). ``lambda_x`` is the smallest eigenvalue of E[x x^T], and
    (theta . x)^2 is sub-Gaussian with parameter ``sigma`` (Assumption 3). ``lambda_`` is the regulariser, ``alpha_c``
    the determinant's factor less one, ``p_scale`` the 3 of p_t = 3 ln t / t, and ``noise`` the R of Lemma 1.

    >>> sizes = ProblemSize(users=4, dimension=5, list_length=2, rounds=10_000)
    >>> bound = compute_guarantee(sizes, clusters=2, items=10, gamma=1.0, lambda_x=0.1, sigma=0.01)
    >>> round(bound.lambda_tilde, 4), round(bound.exchanges)
    (0.0763, 522)
    """
    POSITIVE.check("gamma", gamma)
    users, rounds = problem.users, problem.rounds
    delta = compute_failure_probability(users, rounds)
    tilde = compute_lambda_tilde(lambda_x, sigma, items)
    ridge = Ridge(Statistics.zero(problem.dimension), lambda_)
    beta = Theory(alpha_c=alpha_c, noise=noise, delta=delta).radius(ridge, problem)
    separated = bound_rounds_to_separate(problem, gamma=gamma, lambda_tilde=tilde, delta=delta)
    exchanged = bound_rounds_until_exchange(users, rounds, delta)
    return Guarantee(
        delta=delta,
        beta=beta,
        lambda_tilde=tilde,
        T_0=separated,
        T_1=exchanged,
        regret_learning=bound_learning_regret(problem, clusters=clusters, beta=beta, lambda_=lambda_, alpha_c=alpha_c),
        regret_partition=separated + exchanged,
        regret_failure=max(0.0, rounds - separated - exchanged) * (2 * delta + users * delta**1.5),
        exchanges_determinant=bound_determinant_exchanges(problem, lambda_=lambda_, alpha_c=alpha_c),
        exchanges_auxiliary=bound_auxiliary_exchanges(rounds, p_scale),
    )


def compute_failure_probability(users: int, rounds: int) -> float:
    """delta = |U|^2 / T, as the proof of Theorem 1 sets it."""
    require(rounds > users**2, f"rounds must be > users^2 ({users**2}) for the theorem to say anything, got {rounds}")
    return users**2 / rounds


def compute_lambda_tilde(lambda_x: float, sigma: float, items: int) -> float:
    """The integral from 0 to lambda_x of (1 - exp(-(lambda_x - x)^2 / (2 sigma^2)))^I, by Gauss-Legendre.

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


def bound_rounds_to_separate(problem: ProblemSize, *, gamma: float, lambda_tilde: float, delta: float) -> float:
    """T_0: after so many rounds the estimates of all users would be within gamma / 2, if the server had them."""
    if lambda_tilde == 0.0:
        return math.inf
    users, d = problem.users, problem.dimension
    regular = 1024 / lambda_tilde**2 * math.log(512 * d / (lambda_tilde**2 * delta))
    apart = 512 * d / (gamma**2 * lambda_tilde) * math.log(4 * users / delta)
    return 16 * users * math.log(4 * users * problem.rounds / delta) + 4 * users * max(regular, apart)


def bound_rounds_until_exchange(users: int, rounds: int, delta: float) -> float:
    """T_1: in so many rounds more, every agent has had an exchange."""
    return 16 * users * math.log(4 * users * rounds / delta) + 4 * users * math.sqrt(1 / delta)


def bound_learning_regret(problem: ProblemSize, *, clusters: int, beta: float, lambda_: float, alpha_c: float) -> float:
    """2 d K |U| ln(1 + KT/lambda) + 4 beta sqrt(J + |U| alpha_c) sqrt(d K T ln(1 + KT/lambda))."""
    users, d, seen = problem.users, problem.dimension, problem.list_length * problem.rounds
    logs = math.log1p(seen / lambda_)
    root = math.sqrt((clusters + users * alpha_c) * d * seen * logs)
    return 2 * d * problem.list_length * users * logs + 4 * beta * root


def bound_determinant_exchanges(problem: ProblemSize, *, lambda_: float, alpha_c: float) -> float:
    """Equation 37: 2 ln 2 d (|U| + 1/alpha_c) ln(1 + KT / (lambda d))."""
    d, seen = problem.dimension, problem.list_length * problem.rounds
    return 2 * math.log(2) * d * (problem.users + 1 / alpha_c) * math.log1p(seen / (lambda_ * d))


def bound_auxiliary_exchanges(rounds: int, p_scale: float) -> float:
    """Equation 38: k (ln T + ln^2 T), in expectation."""
    return p_scale * (math.log(rounds) + math.log(rounds) ** 2)
