"""Links: from <theta, x> to the probability that an examined item is clicked."""

from typing import NamedTuple

from fedcascade.numerics.elementary import exp
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.linear import Features, Vector, compute_means


class Logistic(NamedTuple):
    """Clicks with probability sigmoid(steepness <theta, x> + bias); None in its place is <theta, x>, clipped."""

    steepness: float
    bias: float


@jit_inline
def apply_link(link: Logistic | None, mean: float) -> float:
    """Return the probability of a click on an item with <theta, x> = ``mean``."""
    if link is None:
        return min(max(mean, 0.0), 1.0)
    return 1.0 / (1.0 + exp(-(link.steepness * mean + link.bias)))


@jit
def compute_weights(link: Logistic | None, theta: Vector, columns: Features) -> Vector:
    """Return the probability of a click on every item."""
    weights = compute_means(theta, columns)
    for item in range(weights.size):
        weights[item] = apply_link(link, weights[item])
    return weights
