"""An environment from ratings: users and items are singular vectors, k-means gives clusters and true thetas."""

import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments import matrices
from fedcascade.environments.clustered import Clustered, check_seed, lift
from fedcascade.environments.history import EventHistory, History, OneChange, Tastes
from fedcascade.environments.matrices import Triplets, Vectors
from fedcascade.environments.options import RatingsOptions
from fedcascade.numerics import streams
from fedcascade.numerics.grid import round_to_grid


class Ratings(Clustered):
    """An environment with users and items from ratings; the true thetas are k-means centres, rounded to the grid.

    The preset "catalogue" takes items from the file, as vectors of norm 1, and clips <theta, x> to [0, 1]. The preset
    "paper" takes only users from the file, lifted, and offers random lifted items. The new thetas of changed users are
    those of users of the file that were not sampled.

    ``RatingsOptions`` documents the options. ``seed`` determines the sampled users, the starts of k-means and all
    draws of the rounds.

    >>> ratings = matrices.generate_ratings(60, 80)
    >>> environment = Ratings.from_matrix(ratings, users=12, clusters=3, dimension=5, items=20)
    >>> environment.items(1).shape, np.unique(environment.clusters).tolist()
    ((20, 5), [0, 1, 2])
    """

    options: RatingsOptions

    def __init__(
        self, ratings: Triplets, options: RatingsOptions | None = None, *, seed: int = 0, **changes: Any
    ) -> None:
        options = replace(options or RatingsOptions(), **changes)
        users, clusters = options.users, options.clusters
        lifted = options.preset == "paper"
        assert isinstance(clusters, int)
        require(clusters <= users, f"clusters must be <= users ({users}), got {clusters}")
        check_seed(seed)
        self.ratings = ratings
        vectors = _compute_vectors(ratings, options)
        available = len(vectors.users)
        require(users <= available, f"users must be <= {available}, the users of the ratings, got {users}")
        order = np.argsort(streams.uniforms(np.uint64(seed), streams.SAMPLE, 0, available))
        sampled, others = vectors.users[order[:users]], vectors.users[order[users:]]
        if lifted:
            sampled, others = lift(sampled), lift(others)
        centres, labels = matrices.cluster_points(sampled, clusters, seed=seed)
        # Rounding removes the last bits, which depend on the SVD solver.
        self.centres = options.scale * round_to_grid(centres).astype(np.float64)
        history: History = OneChange(labels, self.centres[labels])
        if options.has_events:
            needed = f"change, poisoning, joins and leaves need {clusters + 1} users beside the sampled ones"
            require(len(others) > clusters, f"{needed}, the ratings have {len(others)}: use fewer users")
            wanted = options.scale * round_to_grid(others[: clusters + 1]).astype(np.float64)
            history = EventHistory(options, Tastes(labels, self.centres, wanted, lifted), seed)
        catalogue = None if lifted else round_to_grid(np.ascontiguousarray(vectors.items.T))
        super().__init__(options, seed=seed, history=history, lifted=lifted, catalogue=catalogue)
        self.singular_values = vectors.singular_values

    def with_seed(self, seed: int) -> "Ratings":
        """Return an environment of the same ratings and options, with other sampled users and other rounds."""
        return Ratings(self.ratings, self.options, seed=seed)

    @classmethod
    def from_matrix(cls, matrix: NDArray[np.float64], **options: Any) -> Self:
        """Build the environment of a matrix (users, items), 0 without a rating; options are those of ``Ratings``."""
        return cls(matrices.to_triplets(matrix), **options)


def _compute_vectors(ratings: Triplets, options: RatingsOptions) -> Vectors:
    matrix = matrices.build_rating_matrix(ratings, options)
    is_paper = options.preset == "paper"
    vectors = matrices.compute_vectors(matrix, options.dimension - is_paper, is_scaled=not is_paper)
    counts = {"users": (len(matrix), len(vectors.users)), "items": (matrix.shape[1], len(vectors.items))}
    lost = [f"{rows - left} of {rows} {kind}" for kind, (rows, left) in counts.items() if left < rows]
    if lost:
        warnings.warn(f"left out {' and '.join(lost)}: their vectors are zero", stacklevel=4)
    return vectors
