"""The terms of Theorem 1 one by one: rounds until all are grouped rightly, exchanges, and regret after that.

As the paper says, p_min takes the place of 1/|U|. By Chernoff's bound, a user of probability p arrives at least t p / 2
times in t rounds but with probability exp(-t p / 8).
"""

import math

from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.theory.assumptions import Assumptions

LARGEST_EXPONENT = 700.0


def bound_rounds_to_separate(problem: ProblemSize, world: Assumptions, *, lambda_tilde: float, delta: float) -> float:
    """T_0: after so many rounds the estimates of all users would be within gamma / 2, if the server had them."""
    if lambda_tilde <= math.sqrt(5e-324):  # its square would vanish
        return math.inf
    users, d = problem.users, problem.dimension
    regular = 1024 / lambda_tilde**2 * math.log(512 * d / (lambda_tilde**2 * delta))
    apart = 512 * d / (world.gamma**2 * lambda_tilde) * math.log(4 * users / delta)
    return bound_rounds_of_arrivals(problem, world, max(regular, apart), delta)


def bound_rounds_of_arrivals(problem: ProblemSize, world: Assumptions, arrivals: float, delta: float) -> float:
    """Within so many rounds every user arrives ``arrivals`` times, but with probability delta / 4."""
    return (16 * math.log(4 * problem.users * problem.rounds / delta) + 4 * arrivals) / world.p_min


def quote_rounds_until_auxiliary(problem: ProblemSize, world: Assumptions, delta: float) -> float:
    """T_1 as the paper has it: sqrt(1/delta) arrivals of every user, by when Lemma 1.1 has everybody speak."""
    return bound_rounds_of_arrivals(problem, world, math.sqrt(1 / delta), delta)


def bound_rounds_until_auxiliary(world: Assumptions, delta: float, *, separated: float, p_scale: float) -> float:
    """T_1 as we derive it: p_t falls in every round, not in those of one user alone.

    A user stays silent from T_0 to T_0 + T_1 with probability at most exp(-p_min sum of p_t), which is delta^1.5 once
    k (ln^2(T_0 + T_1) - ln^2(T_0)) / 2 = 1.5 ln(1/delta) / p_min.
    """
    start = max(separated, 3.0, 2 * p_scale * math.log(max(2 * p_scale, 1.0)))  # from here on p_t is < 1 and falls
    if math.isinf(start):
        return math.inf
    exponent = math.sqrt(math.log(start + 1) ** 2 + 3 * math.log(1 / delta) / (p_scale * world.p_min))
    return math.exp(exponent) - separated if exponent < LARGEST_EXPONENT else math.inf


def quote_rounds_until_forced(problem: ProblemSize, world: Assumptions, delta: float, *, separated: float) -> float:
    """T_1 of ForceComm as the paper has it: T_0 arrivals of every user, which double what each had at most."""
    return (16 * math.log(4 * problem.rounds / delta) + 4 * separated) / world.p_min


def bound_rounds_until_forced(problem: ProblemSize, world: Assumptions, delta: float, *, separated: float) -> float:
    """T_1 of ForceComm as we derive it: by T_0 nobody has arrived more than 2 p_max T_0 + 3 ln(4 |U| / delta) times.

    As many arrivals again take every count past a power of two. (A binomial of mean m exceeds 2 m + 3 L with
    probability at most exp(-L), by Bernstein's inequality.)
    """
    arrived = 2 * world.p_max * separated + 3 * math.log(4 * problem.users / delta)
    return bound_rounds_of_arrivals(problem, world, arrived, delta)


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
