"""Thompson sampling: a theta is drawn around the estimate, and items are scored by it.

The words that break ties are the only randomness, so that both engines draw the same theta. The chance of a list has no
closed form, so lists that are chosen so have no known propensities.
"""

import numpy as np

from fedcascade.learning.oracles import Ties
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Features, Matrix, Vector, compute_means
from fedcascade.numerics.streams import THOMPSON, draw_normals_into


@jit
def draw_theta(theta: Vector, root: Matrix, beta: float, ties: Ties) -> Vector:
    """Draw from N(theta, beta^2 Sigma^-1), where ``root`` is that of Sigma^-1."""
    key = np.uint64(ties[0]) << np.uint64(32) | np.uint64(ties[ties.size - 1])
    normals, drawn = np.empty((theta.size, 1), np.float32), theta.copy()
    draw_normals_into(key, THOMPSON, ties.size, normals)
    for j in range(theta.size):
        for k in range(j + 1):
            drawn[k] += beta * root[j, k] * np.float64(normals[j, 0])
    return drawn


@jit
def sample_scores(theta: Vector, root: Matrix, beta: float, columns: Features, ties: Ties) -> Vector:
    """<theta, x> of every item, for a theta that is drawn around the estimate."""
    return compute_means(draw_theta(theta, root, beta, ties), columns)
