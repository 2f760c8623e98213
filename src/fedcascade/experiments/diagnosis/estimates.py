"""Estimates what the theorem supposes of a world from the world itself: gamma, lambda_x, sigma, p_min and p_max."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.learning.theory.assumptions import Assumptions

SAMPLED_ITEMS = 40_000
RANDOM_DIRECTIONS = 32
LARGEST_GAP = 2.0  # between two thetas of norm at most 1


def estimate_assumptions(environment: Environment, *, items: int = SAMPLED_ITEMS) -> Assumptions:
    """Look at the thetas, the arrivals and at least ``items`` items of the first rounds of a world.

    >>> from fedcascade.environments.synthetic import Synthetic
    >>> world = estimate_assumptions(Synthetic(users=4, clusters=2, dimension=5, items=50))
    >>> world.clusters, round(world.gamma, 3), world.p_min, round(8 * world.lambda_x, 1)
    (2, 1.0, 0.25, 1.0)
    """
    kind = type(environment).__name__
    require(isinstance(environment, Clustered), f"{kind} does not say its thetas: the theory needs a world that does")
    assert isinstance(environment, Clustered)
    require(environment.link is None, "the theory needs linear clicks: take features 'lifted' or 'gaussian'")
    rounds = range(1, items // environment.fewest_items + 2)
    features = np.concatenate([environment.items(t) for t in rounds]).astype(np.float64)
    return Assumptions(
        users=environment.users,
        clusters=len(np.unique(environment.clusters)),
        items=environment.most_items,
        gamma=compute_gap(environment.thetas, environment.clusters),
        lambda_x=float(np.linalg.eigvalsh(features.T @ features / len(features))[0]),
        sigma=estimate_sigma(features, environment.thetas),
        p_min=float(environment.arrival_shares.min()),
        p_max=float(environment.arrival_shares.max()),
    )


def compute_gap(thetas: NDArray[np.float64], clusters: NDArray[np.int64]) -> float:
    """gamma: the least distance between the thetas of two clusters; the largest possible where there is one cluster."""
    firsts = thetas[np.unique(clusters, return_index=True)[1]]
    gaps = [float(np.linalg.norm(a - b)) for number, a in enumerate(firsts) for b in firsts[:number]]
    return min(gaps, default=LARGEST_GAP)


def estimate_sigma(features: NDArray[np.float64], thetas: NDArray[np.float64]) -> float:
    """The least sigma with P((theta . x)^2 < mean - a) <= exp(-a^2 / (2 sigma^2)) for all a, in many directions.

    The proof of the paper's lemma on lambda~_x uses this tail alone. Directions are the eigenvectors of E[x x^T], the
    thetas and some random ones, so the true sigma may be a little larger.
    """
    d = features.shape[1]
    eigenvectors = np.linalg.eigh(features.T @ features)[1].T
    drawn = np.random.Generator(np.random.Philox(key=7)).normal(size=(RANDOM_DIRECTIONS, d))
    directions = np.concatenate([eigenvectors, np.unique(thetas, axis=0), drawn])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return max(_fit_lower_tail((features @ direction) ** 2) for direction in directions)


def _fit_lower_tail(sample: NDArray[np.float64]) -> float:
    """The least sigma of one direction; the sample's share below a value stands for the probability."""
    ordered = np.sort(sample)
    below = ordered.mean() - ordered
    share = np.arange(1, ordered.size + 1) / ordered.size
    tail = (below > 0) & (share < 1)
    return float(np.sqrt(np.max(below[tail] ** 2 / (-2 * np.log(share[tail])), initial=1e-300)))
