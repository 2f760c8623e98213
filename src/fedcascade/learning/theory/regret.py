"""Bounds on regret once the partition is right, and the order that nobody can beat."""

import math

from fedcascade.learning.confidence import ProblemSize


def bound_learning_regret(
    problem: ProblemSize, *, clusters: int, beta: float, lambda_: float, alpha_c: float, base: float = 2.0
) -> float:
    """2 d K |U| log2(1 + KT/lambda) + 4 beta sqrt(J + |U| alpha_c) sqrt(d K T ln(1 + KT/lambda)).

    The log2 counts doublings. The last line of the paper's equation 25 writes ln instead, which is the ``base`` e.
    """
    users, d, seen = problem.users, problem.dimension, problem.list_length * problem.rounds
    logs = math.log1p(seen / lambda_)
    root = math.sqrt((clusters + users * alpha_c) * d * seen * logs)
    return 2 * d * problem.list_length * users * logs / math.log(base) + 4 * beta * root


def bound_regret_below(problem: ProblemSize, *, clusters: int) -> float:
    """The order sqrt(d J T) that nobody can beat (Liu et al. 2022, quoted by the paper), without its constant."""
    return math.sqrt(problem.dimension * clusters * problem.rounds)
