"""Assumptions 1 to 3 of the paper as numbers, and the lambda~_x of its proof."""

import math
from dataclasses import dataclass

import numpy as np

from fedcascade.checks import POSITIVE, require, require_integer

PANELS, NODES = 64, 16


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """The assumptions of the theorem about an environment."""

    users: int
    clusters: int  # J
    items: int  # I, the maximum number of items on offer
    gamma: float  # least distance between the thetas of two clusters (Assumption 1)
    lambda_x: float  # smallest eigenvalue of E[x x^T] (Assumption 3)
    sigma: float  # sub-Gaussian parameter of (theta . x)^2 (Assumption 3)
    p_min: float  # least arrival probability of a user (Assumption 2: 1/|U|)
    p_max: float  # largest arrival probability of a user (Assumption 2: 1/|U|)

    def __post_init__(self) -> None:
        for name in ("users", "clusters", "items"):
            require_integer(name, getattr(self, name))
        for name in ("gamma", "lambda_x", "sigma", "p_min"):
            POSITIVE.check(name, getattr(self, name))
        require(self.clusters <= self.users, f"clusters must be <= users ({self.users}), got {self.clusters}")
        slack = 1.0 + 1e-9  # for rounding
        fits = self.p_min * self.users <= slack and self.p_max * self.users * slack >= 1.0 and self.p_max <= slack
        require(fits, f"p_min must be <= 1/users <= p_max <= 1, got {self.p_min:.4g} and {self.p_max:.4g}")


def assume_uniform(
    *, users: int, clusters: int, items: int, gamma: float = 1.0, lambda_x: float, sigma: float | None = None
) -> Assumptions:
    """Assume uniform arrivals and, by default, the ``sigma`` of earlier work.

    >>> assumptions = assume_uniform(users=4, clusters=2, items=10, lambda_x=0.1)
    >>> assumptions.p_min, round(assumptions.sigma, 4)
    (0.25, 0.0184)
    """
    if sigma is None:
        require_integer("items", items)
        sigma = lambda_x / math.sqrt(8 * math.log(4 * items))
    require_integer("users", users)
    return Assumptions(
        users=users,
        clusters=clusters,
        items=items,
        gamma=gamma,
        lambda_x=lambda_x,
        sigma=sigma,
        p_min=1 / users,
        p_max=1 / users,
    )


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
