"""A world made from ratings: users and items are singular vectors, clusters and true thetas come from k-means."""

import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments import matrices
from fedcascade.environments.clustered import Clustered, check_seed, lift
from fedcascade.environments.history import History, LivingHistory, OneChange, Tastes
from fedcascade.environments.matrices import Triplets, Vectors
from fedcascade.environments.options import RatingsOptions
from fedcascade.numerics import streams
from fedcascade.numerics.grid import round_to_grid


class Ratings(Clustered):
    """Users and items from ratings. The centres of k-means, rounded to the grid, are the true thetas, not made longer.

    Two presets, of which every step can be changed. In a "catalogue" world, the default, items are those of the file,
    as vectors of norm 1, and <theta, x> is clipped to [0, 1]. A "paper" world takes only the users from the file,
    lifted, and offers random lifted items. What users who change come to want is what users of the file want who were
    not sampled.

    The options are those of ``RatingsOptions``; ``seed`` names the world: who is sampled, where k-means starts, and all
    that happens in its rounds.

    >>> world = Ratings.from_matrix(matrices.generate_ratings(60, 80), users=12, clusters=3, dimension=5, items=20)
    >>> world.items(1).shape, np.unique(world.clusters).tolist()
    ((20, 5), [0, 1, 2])
    """

    def __init__(
        self, ratings: Triplets, options: RatingsOptions | None = None, *, seed: int = 0, **changes: Any
    ) -> None:
        options = replace(options or RatingsOptions(), **changes)
        users, clusters, lifted = options.users, options.clusters, options.choose_step("lifted")
        assert isinstance(clusters, int)
        require(clusters <= users, f"clusters must be <= users ({users}), got {clusters}")
        check_seed(seed)
        self.options, vectors = options, _compute_vectors(ratings, options)
        available = len(vectors.users)
        require(users <= available, f"users must be <= {available}, as many as the ratings leave, got {users}")
        order = np.argsort(streams.uniforms(np.uint64(seed), streams.SAMPLE, 0, available))
        sampled, others, catalogue = vectors.users[order[:users]], vectors.users[order[users:]], vectors.items
        if lifted:
            sampled, others, catalogue = lift(sampled), lift(others), lift(catalogue)
        centres, labels = matrices.cluster_points(sampled, clusters, seed=seed)
        # On the grid, as items are: the last bits, which depend on the solver of the SVD, are rounded away.
        self.centres = options.scale * round_to_grid(centres).astype(np.float64)
        history: History = OneChange(labels, self.centres[labels])
        if options.is_living:
            needed = f"users who change, lie, join or leave need {clusters + 1} users beside those that are sampled"
            require(len(others) > clusters, f"{needed}, the ratings leave {len(others)}: take fewer users")
            wanted = options.scale * round_to_grid(others[: clusters + 1]).astype(np.float64)
            history = LivingHistory(options, Tastes(labels, self.centres, wanted, lifted), seed)
        has_catalogue = options.choose_step("shelf") == "catalogue"
        shelf = round_to_grid(np.ascontiguousarray(catalogue.T)) if has_catalogue else None
        super().__init__(options, seed=seed, history=history, lifted=lifted, catalogue=shelf)
        self.singular_values = vectors.singular_values

    @classmethod
    def from_matrix(cls, matrix: NDArray[np.float64], **options: Any) -> Self:
        """The world of a matrix (users, items), 0 where a user has not rated; options are those of ``Ratings``."""
        return cls(matrices.to_triplets(matrix), **options)


def _compute_vectors(ratings: Triplets, options: RatingsOptions) -> Vectors:
    matrix = matrices.build_rating_matrix(ratings, options)
    free = options.dimension - options.choose_step("lifted")
    vectors = matrices.compute_vectors(matrix, free, options.choose_step("scaling"))
    counts = {"users": (len(matrix), len(vectors.users)), "items": (matrix.shape[1], len(vectors.items))}
    lost = [f"{rows - left} of {rows} {kind}" for kind, (rows, left) in counts.items() if left < rows]
    if lost:
        warnings.warn(f"left out, because their vector is zero: {' and '.join(lost)}", stacklevel=4)
    return vectors
