"""Bounds on how often agents speak: for the determinant, by chance, by force, and how often they must."""

import math

from fedcascade.learning.confidence import ProblemSize


def quote_determinant_exchanges(problem: ProblemSize, *, lambda_: float, alpha_c: float) -> float:
    """Equation 37 as the paper has it: 2 ln 2 d (|U| + 1/alpha_c) ln(1 + KT / (lambda d)). Runs exceed it."""
    d, seen = problem.dimension, problem.list_length * problem.rounds
    return 2 * math.log(2) * d * (problem.users + 1 / alpha_c) * math.log1p(seen / (lambda_ * d))


def bound_determinant_exchanges(problem: ProblemSize, *, clusters: int, lambda_: float, alpha_c: float) -> float:
    """Equation 37 as we derive it, with J/alpha_c, for a partition into J groups that stays.

    |U| (1 + d log2(1 + KT / (lambda d))) + J/alpha_c (1 + d log2(1 + KT / (J lambda d))). One group V has at most
    1 + d log2(1 + K T_V / (lambda d)) stretches in which the determinant of its pool less than doubles. In each, every
    member speaks once; every further exchange adds alpha_c times the determinant at the stretch's start, so there are
    less than 1/alpha_c of them. The sum over groups follows since their T_V add up to T and log2 is concave.
    """
    users, d, seen = problem.users, problem.dimension, problem.list_length * problem.rounds
    stretches = 1 + d * math.log2(1 + seen / (lambda_ * d))
    stretches_of_group = 1 + d * math.log2(1 + seen / (clusters * lambda_ * d))
    return users * stretches + clusters / alpha_c * stretches_of_group


def bound_auxiliary_exchanges(rounds: int, p_scale: float) -> float:
    """Equation 38: k (ln T + ln^2 T), in expectation."""
    return p_scale * (math.log(rounds) + math.log(rounds) ** 2)


def quote_forced_exchanges(users: int, rounds: int) -> float:
    """ForceComm's exchanges by force as the paper has them: |U| log2 T."""
    return users * math.log2(rounds)


def bound_forced_exchanges(users: int, rounds: int) -> float:
    """ForceComm's exchanges by force, at the 1st, 2nd, 4th, ... arrival: |U| (1 + log2(T / |U|)).

    A user with n arrivals has 1 + log2(n) of them at most, and the arrivals of all add up to T.
    """
    return users * (1 + math.log2(max(rounds / users, 1.0)))


def bound_exchanges_below(users: int) -> float:
    """The order |U| that near-optimal regret needs (He et al. 2022, quoted by the paper), without its constant."""
    return float(users)
