"""A central and a synchronous policy in NumPy, as baselines of ``make bench``.

One learner serves all users (C3-UCB), or agents learn in every round and synchronise from time to time (DisLinUCB).
Both update inverses by rank one; DisLinUCB also computes the growth of its log-determinants from these updates. The
loops are endless and yield regret and synchronisations after every ``pause`` rounds.
"""

import math
from collections.abc import Iterator
from itertools import count as count_from

import numpy as np
from plain_numpy import BETA, CLUSTERS, ITEMS, LAMBDA, USERS, D, K, lift

BUDGET = 90.0  # D of DisLinUCB for a million rounds of this shape: T / (|U| d ln T)


def draw_thetas(rng: np.random.Generator) -> np.ndarray:
    """Draw the users' thetas."""
    directions = np.linalg.qr(rng.standard_normal((D - 1, CLUSTERS)))[0].T
    return lift(directions)[np.repeat(np.arange(CLUSTERS), USERS // CLUSTERS)]


def play_round(
    rng: np.random.Generator, true: np.ndarray, theta: np.ndarray, inverse: np.ndarray
) -> tuple[np.ndarray, bool, float]:
    """Play one round; return the examined items, whether the last was clicked, and the regret."""
    x = lift(rng.standard_normal((ITEMS, D - 1)))
    width = np.sqrt(np.einsum("ij,ij->i", x @ inverse, x))
    score = np.minimum(x @ theta + BETA * width, 1.0)
    chosen = np.lexsort((rng.random(ITEMS), -score))[:K]
    weights = x @ true
    best = np.partition(weights, -K)[-K:]
    hits = np.flatnonzero(rng.random(K) < weights[chosen])
    regret = np.prod(1 - weights[chosen]) - np.prod(1 - best)
    return x[chosen[: hits[0] + 1 if hits.size else K]], bool(hits.size), float(regret)


def update_inverse(inverse: np.ndarray, examined: np.ndarray) -> float:
    """Update an inverse by rank one, in place; return the growth of the log-determinant of its matrix."""
    growth = 0.0
    for item in examined:
        v = inverse @ item
        more = 1 + item @ v
        inverse -= np.outer(v, v) / more
        growth += math.log(more)
    return growth


def run_c3_ucb(pause: int, seed: int = 0) -> Iterator[tuple[float, int]]:
    """Run one learner for all users."""
    rng = np.random.default_rng(seed)
    thetas, regret = draw_thetas(rng), 0.0
    inverse, moment, theta = np.eye(D) / LAMBDA, np.zeros(D), np.zeros(D)
    for t in count_from(1):
        examined, clicked, missed = play_round(rng, thetas[rng.integers(USERS)], theta, inverse)
        regret += missed
        update_inverse(inverse, examined)
        if clicked:
            moment += examined[-1]
        theta = inverse @ moment
        if t % pause == 0:
            yield regret, 0


def run_dislinucb(pause: int, seed: int = 0) -> Iterator[tuple[float, int]]:
    """Run agents that learn in every round, and all synchronise when one exceeds its budget."""
    rng = np.random.default_rng(seed)
    thetas, regret, synchronisations = draw_thetas(rng), 0.0, 0
    gram, moment = np.zeros((D, D)), np.zeros(D)  # synchronised sums
    inverse, theta = np.tile(np.eye(D) / LAMBDA, (USERS, 1, 1)), np.zeros((USERS, D))
    buffer_gram, buffer_moment = np.zeros((USERS, D, D)), np.zeros((USERS, D))
    growth, count = np.zeros(USERS), np.zeros(USERS)
    for t in count_from(1):
        u = rng.integers(USERS)
        examined, clicked, missed = play_round(rng, thetas[u], theta[u], inverse[u])
        regret += missed
        buffer_gram[u] += examined.T @ examined
        growth[u] += update_inverse(inverse[u], examined)
        count[u] += len(examined)
        if clicked:
            buffer_moment[u] += examined[-1]
        theta[u] = inverse[u] @ (moment + buffer_moment[u])
        if count[u] * growth[u] >= BUDGET:
            synchronisations += 1
            gram += buffer_gram.sum(axis=0)
            moment += buffer_moment.sum(axis=0)
            inverse[:] = np.linalg.inv(LAMBDA * np.eye(D) + gram)
            theta[:] = inverse[0] @ moment
            for array in (buffer_gram, buffer_moment, growth, count):
                array[:] = 0.0
        if t % pause == 0:
            yield regret, synchronisations
