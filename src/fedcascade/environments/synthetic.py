"""The paper's synthetic world: clusters of users with one theta each, fresh random items in every round."""

from collections.abc import Sequence
from numbers import Integral
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import known, require, whole
from fedcascade.environments import streams
from fedcascade.environments.clustered import Clustered, check_seed, lift

FeatureKind = Literal["lifted", "gaussian"]
DirectionKind = Literal["orthonormal", "random"]


class Synthetic(Clustered):
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
        check_seed(seed)
        lifted = features == "lifted"
        sizes = _sizes(users, clusters)
        labels = _shuffled(np.repeat(np.arange(len(sizes)), sizes), seed)
        thetas = _thetas(len(sizes), dimension, lifted, directions, seed)
        super().__init__(
            seed=seed, clusters=labels, thetas=thetas[labels], items=items, lifted=lifted, arrivals=arrivals
        )


def _shuffled(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Clusters in random order over users, so that uneven arrivals do not favour a cluster."""
    return labels[np.argsort(streams.uniforms(np.uint64(seed), streams.CLUSTER, 0, labels.size))]


def _thetas(clusters: int, dimension: int, lifted: bool, directions: DirectionKind, seed: int) -> NDArray[np.float64]:
    free = dimension - lifted
    require(
        directions == "random" or clusters <= free,
        f"clusters must be <= {free} with orthonormal directions in dimension {dimension}"
        f"{' (one coordinate lifts)' if lifted else ''}, got {clusters}; use directions 'random' for more",
    )
    normals = np.empty((free, clusters), np.float32)
    streams.normals_into(np.uint64(seed), streams.THETA, 0, normals)
    drawn = normals.astype(np.float64)
    units: NDArray[np.float64] = (
        np.linalg.qr(drawn).Q if directions == "orthonormal" else drawn / np.linalg.norm(drawn, axis=0)
    )
    return lift(units.T) if lifted else np.array(units.T)


def _sizes(users: int, clusters: int | Sequence[int]) -> list[int]:
    if isinstance(clusters, int):
        whole("clusters", clusters)
        require(clusters <= users, f"clusters must be <= users ({users}), got {clusters}")
        return [users // clusters + (extra < users % clusters) for extra in range(clusters)]
    sizes = list(clusters)
    good = all(isinstance(size, Integral) and size >= 1 for size in sizes) and sum(sizes) == users
    require(good, f"cluster sizes must be whole numbers >= 1 that add up to users ({users}), got {sizes}")
    return sizes
