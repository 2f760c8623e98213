"""How many rounds pass until the server groups everybody rightly: T_0, and T_1 of either protocol.

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
