"""A world made from ratings: users and items are singular vectors, clusters and true thetas come from k-means."""

import warnings
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import SHARE, require, require_integer, require_known
from fedcascade.environments import matrices
from fedcascade.environments.clustered import Clustered, check_seed, lift
from fedcascade.environments.history import History, LivingHistory, OneChange, Tastes
from fedcascade.environments.kmeans import cluster_points
from fedcascade.environments.life import Life
from fedcascade.environments.matrices import Scaling, Selection, Triplets, Values, Vectors
from fedcascade.numerics import streams
from fedcascade.numerics.grid import round_to_grid

Shelf = Literal["catalogue", "random"]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps from ratings to a world that can be taken in more than one way.

    Args:
        top_users: how many of the most active users to keep, at most.
        top_items: how many of the most rated items to keep, at most.
        selection: "independent" or "nested", see ``build_rating_matrix``.
        values: what the matrix holds: "stars", "counts", or 1 for stars of at least the "threshold".
        threshold: see ``values``.
        scaling: "root": singular vectors times the roots of their singular values; "none": without.
        lifted: whether vectors become (., 1) / sqrt(2), with one singular vector less.
        shelf: "catalogue": a round offers items of the file; "random": fresh random ones, as in ``Synthetic``.
    """

    top_users: int = 1_000
    top_items: int = 1_000
    selection: Selection = "independent"
    values: Values = "stars"
    threshold: float = 4.0
    scaling: Scaling = "root"
    lifted: bool = False
    shelf: Shelf = "catalogue"

    def __post_init__(self) -> None:
        require_known("shelf", self.shelf, get_args(Shelf))
        require(isinstance(self.lifted, bool), f"lifted must be true or false, got {self.lifted}")
        number = isinstance(self.threshold, int | float) and np.isfinite(self.threshold)
        require(bool(number), f"threshold must be a number, got {self.threshold}")

    def build_matrix(self, ratings: Triplets) -> NDArray[np.float64]:
        names = ("top_users", "top_items", "selection", "values", "threshold")
        return matrices.build_rating_matrix(ratings, **{name: getattr(self, name) for name in names})


PRESETS = {"catalogue": Steps(), "paper": Steps(scaling="none", lifted=True, shelf="random")}


class Ratings(Clustered):
    """Users and items from ratings. The centres of k-means, rounded to the grid, are the true thetas, not made longer.

    Two presets, of which every step can be changed (see ``Steps``). In a "catalogue" world, the default, items
    are those of the file, as vectors of norm 1, and <theta, x> is clipped to [0, 1]. A "paper" world takes only
    the users from the file, lifted, and offers random lifted items.

    Args:
        ratings: who rated what, and how.
        users: how many users to sample.
        clusters: J, how many clusters k-means makes of them.
        dimension: d, the lifting coordinate included.
        items: how many items a round offers, or the (least, most) between which each round draws.
        scale: a factor in (0, 1] of all thetas; smaller means fewer clicks.
        preset: "catalogue" or "paper".
        arrivals: how likely each user is to arrive, up to scale; uniform if None.
        life: what happens to the population: see ``environments.life``. What is new is what users of the file want who
            were not sampled.
        seed: names this world: who is sampled, where k-means starts, and all that happens in its rounds.
        steps: steps that differ from the preset's.

    >>> world = Ratings.from_matrix(matrices.generate_ratings(60, 80), users=12, clusters=3, dimension=5, items=20)
    >>> world.items(1).shape, np.unique(world.clusters).tolist()
    ((20, 5), [0, 1, 2])
    """

    def __init__(
        self,
        ratings: Triplets,
        *,
        users: int = 40,
        clusters: int = 10,
        dimension: int = 20,
        items: int | tuple[int, int] = 200,
        scale: float = 1.0,
        preset: str = "catalogue",
        arrivals: ArrayLike | None = None,
        life: Life | None = None,
        seed: int = 0,
        **steps: Any,
    ) -> None:
        require_integer("users", users)
        require_integer("clusters", clusters)
        require(clusters <= users, f"clusters must be <= users ({users}), got {clusters}")
        require_integer("dimension", dimension, 2)
        check_seed(seed)
        SHARE.check("scale", scale)
        require_known("preset", preset, PRESETS)
        for name in steps:
            require_known("step", name, (field.name for field in fields(Steps)))
        self.steps = replace(PRESETS[preset], **steps)
        vectors = self._compute_vectors(self.steps.build_matrix(ratings), dimension)
        available = len(vectors.users)
        require(users <= available, f"users must be <= {available}, as many as the ratings leave, got {users}")
        order = np.argsort(streams.uniforms(np.uint64(seed), streams.SAMPLE, 0, available))
        sampled, others, catalogue = vectors.users[order[:users]], vectors.users[order[users:]], vectors.items
        if self.steps.lifted:
            sampled, others, catalogue = lift(sampled), lift(others), lift(catalogue)
        centres, labels = cluster_points(sampled, clusters, seed=seed)
        # On the grid, as items are: the last bits, which depend on the solver of the SVD, are rounded away.
        self.centres = scale * round_to_grid(centres).astype(np.float64)
        history: History = OneChange(labels, self.centres[labels])
        if life is not None:
            spare = f"a life needs {clusters + 1} users beside those that are sampled, the ratings leave {len(others)}"
            require(len(others) > clusters, f"{spare}: take fewer users")
            wanted = scale * round_to_grid(others[: clusters + 1]).astype(np.float64)
            history = LivingHistory(life, Tastes(labels, self.centres, wanted, self.steps.lifted), seed)
        super().__init__(
            seed=seed,
            history=history,
            items=items,
            lifted=self.steps.lifted,
            catalogue=round_to_grid(np.ascontiguousarray(catalogue.T)) if self.steps.shelf == "catalogue" else None,
            arrivals=arrivals,
        )
        self.singular_values = vectors.singular_values

    @classmethod
    def from_matrix(cls, matrix: NDArray[np.float64], **options: Any) -> Self:
        """The world of a matrix (users, items), 0 where a user has not rated; options are those of ``Ratings``."""
        return cls(matrices.to_triplets(matrix), **options)

    def _compute_vectors(self, matrix: NDArray[np.float64], dimension: int) -> Vectors:
        vectors = matrices.compute_vectors(matrix, dimension - self.steps.lifted, self.steps.scaling)
        counts = {"users": (len(matrix), len(vectors.users)), "items": (matrix.shape[1], len(vectors.items))}
        lost = [f"{rows - left} of {rows} {kind}" for kind, (rows, left) in counts.items() if left < rows]
        if lost:
            warnings.warn(f"left out, because their vector is zero: {' and '.join(lost)}", stacklevel=4)
        return vectors
