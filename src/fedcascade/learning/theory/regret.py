"""Bounds on regret once the partition is right, and the order that nobody can beat."""

import math

from fedcascade.learning.confidence import ProblemSize


def quote_learning_regret(problem: ProblemSize, *, clusters: int, beta: float, lambda_: float, alpha_c: float) -> float:
    """2 d K |U| ln(1 + KT/lambda) + 4 beta sqrt(J + |U| alpha_c) sqrt(d K T ln(1 + KT/lambda))."""
    return _sum_learning_regret(problem, clusters, beta, lambda_, alpha_c, math.e)


def bound_learning_regret(problem: ProblemSize, *, clusters: int, beta: float, lambda_: float, alpha_c: float) -> float:
    """The same with the log2 that counts doublings in the first term, where the last line of equation 25 writes ln."""
    return _sum_learning_regret(problem, clusters, beta, lambda_, alpha_c, 2.0)


def _sum_learning_regret(
    problem: ProblemSize, clusters: int, beta: float, lambda_: float, alpha_c: float, base: float
) -> float:
    users, d, seen = problem.users, problem.dimension, problem.list_length * problem.rounds
    logs = math.log1p(seen / lambda_)
    root = math.sqrt((clusters + users * alpha_c) * d * seen * logs)
    return 2 * d * problem.list_length * users * logs / math.log(base) + 4 * beta * root


def bound_regret_below(problem: ProblemSize, *, clusters: int) -> float:
    """The order sqrt(d J T) that nobody can beat (Liu et al. 2022, quoted by the paper), without its constant."""
    return math.sqrt(problem.dimension * clusters * problem.rounds)
