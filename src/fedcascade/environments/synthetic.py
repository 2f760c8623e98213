"""The paper's synthetic world: clusters of users with one theta each, fresh random items in every round."""

from collections.abc import Sequence
from numbers import Integral
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import known, require, whole
from fedcascade.environments import streams
from fedcascade.learning.linear import means

FeatureKind = Literal["lifted", "gaussian"]
DirectionKind = Literal["orthonormal", "random"]


class Synthetic:
    """Users in clusters, items drawn afresh in each round; all of it from one seed.

    ``lifted`` features are (z / ||z||, 1) / sqrt(2) with Gaussian z, thetas likewise, so that <theta, x> =
    (1 + cos) / 2 is a probability. ``gaussian`` ones are z / ||z||, and <theta, x> is clipped to [0, 1].

    Args:
        users: how many users there are.
        clusters: how many clusters of equal size (as nearly as can be), or the size of each.
        dimension: d, the lifting coordinate included.
        items: how many items a round offers, or the (least, most) between which each round draws.
        features: "lifted" or "gaussian".
        directions: "orthonormal" theta directions (before lifting), or independent "random" ones.
        arrivals: how likely each user is to arrive, up to scale; uniform if None.
        seed: names this world; the same seed is the same world, round by round.

    >>> world = Synthetic(users=4, clusters=2, dimension=3, items=5, seed=1)
    >>> world.items(1).shape, sorted(world.clusters.tolist())
    ((5, 3), [0, 0, 1, 1])
    """

    def __init__(
        self,
        *,
        users: int = 40,
        clusters: int | Sequence[int] = 10,
        dimension: int = 20,
        items: int | tuple[int, int] = 200,
        features: FeatureKind = "lifted",
        directions: DirectionKind = "orthonormal",
        arrivals: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        known("features", features, get_args(FeatureKind))
        known("directions", directions, get_args(DirectionKind))
        whole("users", users)
        whole("dimension", dimension, 2)
        whole("seed", seed, 0)
        require(seed < 2**64, f"seed must be in 0..2^64 - 1, got {seed}")
        self.seed = np.uint64(seed)
        self.users = users
        self.dimension = dimension
        self.lifted = features == "lifted"
        self.fewest_items, self.most_items = _bounds(items)
        sizes = _sizes(users, clusters)
        self.clusters = self._shuffled(np.repeat(np.arange(len(sizes)), sizes))
        self.thetas = self._thetas(len(sizes), directions)[self.clusters]
        self._arrival_steps = _steps(users, arrivals)

    def arrival(self, round_: int) -> int:
        """The user who arrives."""
        return int(self.arrivals(round_, 1)[0])

    def arrivals(self, first: int, count: int) -> NDArray[np.int64]:
        """The users who arrive in ``count`` rounds from ``first`` on."""
        users = np.empty(count, np.int64)
        streams.arrivals(self.seed, first, self._arrival_steps, users)
        return users

    def items(self, round_: int) -> NDArray[np.float32]:
        """The features on offer, one row per item."""
        columns = np.empty((self.dimension, self.shelf(round_)), np.float32)
        streams.unit_items_into(self.seed, round_, columns, self.lifted)
        return columns.T

    def shelf(self, round_: int) -> int:
        """How many items a round offers."""
        return int(streams.shelf(self.seed, round_, self.fewest_items, self.most_items))

    def weights(self, round_: int, user: int, features: NDArray[np.float32]) -> NDArray[np.float64]:  # noqa: ARG002
        """<theta, x>, clipped to [0, 1]."""
        return np.clip(means(self.thetas[user], np.ascontiguousarray(features.T)), 0.0, 1.0)

    def attracted(self, round_: int, items: NDArray[np.intp], weights: NDArray[np.float64]) -> NDArray[np.bool_]:
        """w_t(i): each item has its own luck in a round, wherever in a list it stands."""
        luck = [streams.uniform(self.seed, streams.CLICK, round_, int(item)) for item in items]
        return np.asarray(luck) < weights

    def ties(self, round_: int, items: int) -> NDArray[np.uint32]:
        """A random word per item."""
        return streams.words(self.seed, streams.TIE, round_, items)

    def draw(self, round_: int) -> float:
        """The round's uniform number."""
        return float(streams.uniform(self.seed, streams.AUXILIARY, round_, 0))

    def _shuffled(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Clusters in random order over users, so that uneven arrivals do not favour a cluster."""
        return labels[np.argsort(streams.uniforms(self.seed, streams.CLUSTER, 0, labels.size))]

    def _thetas(self, clusters: int, directions: DirectionKind) -> NDArray[np.float64]:
        free = self.dimension - self.lifted
        require(
            directions == "random" or clusters <= free,
            f"clusters must be <= {free} with orthonormal directions in dimension {self.dimension}"
            f"{' (one coordinate lifts)' if self.lifted else ''}, got {clusters}; use directions 'random' for more",
        )
        normals = np.empty((free, clusters), np.float32)
        streams.normals_into(self.seed, streams.THETA, 0, normals)
        drawn = normals.astype(np.float64)
        units: NDArray[np.float64] = (
            np.linalg.qr(drawn).Q if directions == "orthonormal" else drawn / np.linalg.norm(drawn, axis=0)
        )
        return lift(units.T) if self.lifted else np.array(units.T)


def lift(units: NDArray[np.float64]) -> NDArray[np.float64]:
    """(z, 1) / sqrt(2) of every row."""
    lifted: NDArray[np.float64] = np.hstack([units, np.ones((len(units), 1))]) * 0.5**0.5
    return lifted


def _bounds(items: int | tuple[int, int]) -> tuple[int, int]:
    fewest, most = (items, items) if isinstance(items, int) else items
    whole("items", fewest)
    whole("items", most)
    require(fewest <= most, f"items must be (least, most) with least <= most, got {items}")
    return fewest, most


def _sizes(users: int, clusters: int | Sequence[int]) -> list[int]:
    if isinstance(clusters, int):
        whole("clusters", clusters)
        require(clusters <= users, f"clusters must be <= users ({users}), got {clusters}")
        return [users // clusters + (extra < users % clusters) for extra in range(clusters)]
    sizes = list(clusters)
    good = all(isinstance(size, Integral) and size >= 1 for size in sizes) and sum(sizes) == users
    require(good, f"cluster sizes must be whole numbers >= 1 that add up to users ({users}), got {sizes}")
    return sizes


def _steps(users: int, arrivals: ArrayLike | None) -> NDArray[np.float64]:
    """The inner steps of the cumulative distribution: as many as are <= a draw, that user arrives."""
    weights = np.ones(users) if arrivals is None else np.asarray(arrivals, np.float64)
    good = weights.shape == (users,) and bool(np.all(np.isfinite(weights))) and bool(np.all(weights > 0))
    require(good, f"arrivals must be {users} finite numbers > 0, one per user")
    shares = weights / weights.max()
    steps: NDArray[np.float64] = np.cumsum(shares) / shares.sum()
    return steps[:-1]
