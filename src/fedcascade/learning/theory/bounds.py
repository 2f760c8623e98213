"""The terms of Theorem 1: rounds until all users are grouped correctly, exchanges, and regret after that.

As in the paper, p_min replaces 1/|U|. By Chernoff's bound, a user of probability p arrives fewer than t p / 2 times in
t rounds with probability at most exp(-t p / 8).
"""

import math

from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.theory.assumptions import Assumptions

LARGEST_EXPONENT = 700.0


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
