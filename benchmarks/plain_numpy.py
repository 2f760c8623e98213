"""FedC3UCB-H as a good researcher would write it with NumPy: the yardstick of ``make bench``.

One loop, vectorised over items, nothing computed twice: the inverse and the estimate are kept between
downloads, the determinant of the download is kept, and cluster sums are formed only at an exchange. It draws
its own random numbers, so its runs match the engine's in distribution, not number by number.

Both loops are endless: they pause after every ``pause`` rounds and hand out regret and exchanges so far.
"""

import math
from collections.abc import Iterator
from itertools import count as count_from

import numpy as np

USERS, CLUSTERS, D, ITEMS, K = 40, 10, 20, 200, 4
LAMBDA, ALPHA_C, ALPHA_D, BETA = 4.0, 1.0, 7.0, 10.5


def lift(z: np.ndarray) -> np.ndarray:
    """Return (z / ||z||, 1) / sqrt(2) of every row."""
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    return np.hstack([z, np.ones((len(z), 1))]) * math.sqrt(0.5)


def compute_width(count: np.ndarray) -> np.ndarray:
    """Return F(T)."""
    return np.sqrt((1 + np.log1p(count)) / (1 + count))


def find_component(edges: np.ndarray, start: int) -> np.ndarray:
    """Return the users that are connected to ``start``."""
    reached = np.zeros(len(edges), bool)
    reached[start] = True
    while True:
        grown = reached | edges[reached].any(axis=0)
        if (grown == reached).all():
            return np.flatnonzero(reached)
        reached = grown


def run_fedc3ucb_h(pause: int, seed: int = 0) -> Iterator[tuple[float, int]]:
    """Run the paper's system."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((D - 1, CLUSTERS)))[0].T
    thetas = lift(directions)[np.repeat(np.arange(CLUSTERS), USERS // CLUSTERS)]

    gram, moment, count = np.zeros((USERS, D, D)), np.zeros((USERS, D)), np.zeros(USERS)
    estimate, edges = np.zeros((USERS, D)), ~np.eye(USERS, dtype=bool)
    sigma = np.tile(LAMBDA * np.eye(D), (USERS, 1, 1))
    inverse = np.tile(np.eye(D) / LAMBDA, (USERS, 1, 1))
    log_det = np.full(USERS, D * math.log(LAMBDA))
    theta = np.zeros((USERS, D))
    buffer_gram, buffer_moment, buffer_count = np.zeros((USERS, D, D)), np.zeros((USERS, D)), np.zeros(USERS)
    regret, exchanges, level = 0.0, 0, math.log1p(ALPHA_C)

    for t in count_from(1):
        u = rng.integers(USERS)
        x = lift(rng.standard_normal((ITEMS, D - 1)))
        width = np.sqrt(np.einsum("ij,ij->i", x @ inverse[u], x))
        score = np.minimum(x @ theta[u] + BETA * width, 1.0)
        chosen = np.lexsort((rng.random(ITEMS), -score))[:K]  # ties at random

        weights = x @ thetas[u]
        best = np.partition(weights, -K)[-K:]
        regret += np.prod(1 - weights[chosen]) - np.prod(1 - best)
        hits = np.flatnonzero(rng.random(K) < weights[chosen])
        examined = x[chosen[: hits[0] + 1 if hits.size else K]]
        buffer_gram[u] += examined.T @ examined
        buffer_count[u] += len(examined)
        if hits.size:
            buffer_moment[u] += examined[-1]

        grown = np.linalg.slogdet(sigma[u] + buffer_gram[u])[1] - log_det[u] > level
        if grown or rng.random() < 3 * math.log(t) / t:
            exchanges += 1
            gram[u] += buffer_gram[u]
            moment[u] += buffer_moment[u]
            count[u] += buffer_count[u]
            buffer_gram[u], buffer_moment[u], buffer_count[u] = 0.0, 0.0, 0.0
            members = find_component(edges, u)
            sigma[u] = LAMBDA * np.eye(D) + gram[members].sum(axis=0)
            inverse[u] = np.linalg.inv(sigma[u])
            log_det[u] = np.linalg.slogdet(sigma[u])[1]
            theta[u] = inverse[u] @ moment[members].sum(axis=0)
            estimate[u] = np.linalg.solve(LAMBDA * np.eye(D) + gram[u], moment[u])
            gap = np.linalg.norm(estimate - estimate[u], axis=1)
            refuted = edges[u] & (gap > ALPHA_D * (compute_width(count) + compute_width(count[u])))
            edges[u, refuted] = edges[refuted, u] = False
        if t % pause == 0:
            yield regret, exchanges


def run_fedind(pause: int, seed: int = 0) -> Iterator[tuple[float, int]]:
    """Run every agent alone, up to date in every round, with rank-one updates of the inverse."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((D - 1, CLUSTERS)))[0].T
    thetas = lift(directions)[np.repeat(np.arange(CLUSTERS), USERS // CLUSTERS)]
    inverse = np.tile(np.eye(D) / LAMBDA, (USERS, 1, 1))
    moment, theta, regret = np.zeros((USERS, D)), np.zeros((USERS, D)), 0.0

    for t in count_from(1):
        u = rng.integers(USERS)
        x = lift(rng.standard_normal((ITEMS, D - 1)))
        width = np.sqrt(np.einsum("ij,ij->i", x @ inverse[u], x))
        score = np.minimum(x @ theta[u] + BETA * width, 1.0)
        chosen = np.lexsort((rng.random(ITEMS), -score))[:K]

        weights = x @ thetas[u]
        best = np.partition(weights, -K)[-K:]
        regret += np.prod(1 - weights[chosen]) - np.prod(1 - best)
        hits = np.flatnonzero(rng.random(K) < weights[chosen])
        for item in chosen[: hits[0] + 1 if hits.size else K]:
            v = inverse[u] @ x[item]
            inverse[u] -= np.outer(v, v) / (1 + x[item] @ v)
        if hits.size:
            moment[u] += x[chosen[hits[0]]]
        theta[u] = inverse[u] @ moment[u]
        if t % pause == 0:
            yield regret, 0
