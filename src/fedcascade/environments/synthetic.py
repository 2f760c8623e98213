"""The paper's synthetic environment: one theta per cluster of users, new random items in each round."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments.behaviours import Logistic
from fedcascade.environments.clustered import Clustered, check_seed, lift
from fedcascade.environments.history import EventHistory, History, OneChange, Tastes
from fedcascade.environments.options import SyntheticOptions
from fedcascade.numerics import streams
from fedcascade.numerics.linear import normalise_rows, orthonormalise_rows

NEW_TASTES, VALUES = 1, 2  # round numbers of their draws in the stream THETA
# For "logistic" features. With <theta, x> = (1 + cos) / 2 and d = 20, the median click probability is 0.005, and 1% of
# the items have 0.1 to 0.4. In fewer dimensions cosines vary more, so more items are good.
LOGISTIC = Logistic(steepness=12.0, bias=-11.3)


class Synthetic(Clustered):
    """An environment with users in clusters and random items, all drawn from one seed.

    ``lifted`` features are (z / ||z||, 1) / sqrt(2) with Gaussian z, thetas likewise, so that <theta, x> =
    (1 + cos) / 2 is a probability. ``gaussian`` features are z / ||z||, and <theta, x> is clipped to [0, 1].
    ``logistic`` features are lifted, and the click probability is sigmoid(12 <theta, x> - 11.3): clicks are rare, and
    the linear model is misspecified. Features are rounded toward zero to the grid (``numerics.grid``); clicks follow
    the rounded features. ``SyntheticOptions`` documents the options.

    >>> environment = Synthetic(users=4, clusters=2, dimension=3, items=5, seed=1)
    >>> environment.items(1).shape, sorted(environment.clusters.tolist())
    ((5, 3), [0, 0, 1, 1])
    """

    options: SyntheticOptions

    def __init__(self, options: SyntheticOptions | None = None, *, seed: int = 0, **changes: Any) -> None:
        options = replace(options or SyntheticOptions(), **changes)
        check_seed(seed)
        users, drift = options.users, options.drift
        lifted = options.features != "gaussian"
        free = options.dimension - lifted
        sizes = _compute_cluster_sizes(users, options.clusters)
        ordered = np.repeat(np.arange(len(sizes)), sizes)
        number = np.concatenate([np.arange(size) for size in sizes])  # position of each user in its cluster
        later = ordered if drift is None else ordered + len(sizes) * (number % 2)
        tastes = int(later.max()) + 1
        if drift is not None:
            _check_drift(options, len(sizes), tastes, free)
        units = _draw_directions(options, tastes, free, seed)
        thetas = options.scale * (lift(units) if lifted else units)
        # Random order, so that uneven arrivals do not favour a cluster.
        order = np.argsort(streams.uniforms(np.uint64(seed), streams.CLUSTER, 0, users))
        before, after = ordered[order], later[order]
        if options.has_events:
            others = normalise_rows(_draw_rows(len(sizes) + 1, free, seed, NEW_TASTES))
            known = Tastes(before, thetas, options.scale * (lift(others) if lifted else others), lifted)
            history: History = EventHistory(options, known, seed)
        elif drift is not None:
            history = OneChange(after, thetas[before], drift, thetas[after])
        else:
            history = OneChange(before, thetas[before])
        link = LOGISTIC if options.features == "logistic" else None
        super().__init__(options, seed=seed, history=history, lifted=lifted, link=link)
        self.categories, self.has_costs = options.categories or 0, options.costs
        if options.rewards == "beta":
            values = normalise_rows(_draw_rows(tastes, free, seed, VALUES))
            self.value_thetas = lift(values) if lifted else values

    def with_seed(self, seed: int) -> "Synthetic":
        """Return an environment with the same options, and other users, items and clicks."""
        return Synthetic(self.options, seed=seed)


def _check_drift(options: SyntheticOptions, clusters: int, tastes: int, free: int) -> None:
    """Reject a drift if its tastes cannot all have the requested distance."""
    most = free if options.gap is None else free - 1
    is_random = options.gap is None and options.directions == "random"
    remedy = f"use at most {most // 2} clusters, a higher dimension, or directions 'random' without a gap"
    found = f"drift gives {clusters} clusters {tastes} tastes, and this dimension has at most {most}"
    require(is_random or tastes <= most, f"{found}: {remedy}")


def _draw_directions(options: SyntheticOptions, clusters: int, free: int, seed: int) -> NDArray[np.float64]:
    """Draw a unit vector for each cluster, one per row."""
    gap, lifted = options.gap, free < options.dimension
    if gap is not None:
        most = 1.0 if lifted else 2**0.5  # lifting halves squared distances
        require(0 < gap <= most, f"gap must be > 0 and at most {most:.4g}, that of orthonormal directions, got {gap:g}")
        return _draw_equidistant(clusters, free, gap * 2**0.5 if lifted else gap, seed)
    orthonormal = options.directions == "orthonormal"
    dimension = f"{free + 1} (one coordinate lifts)" if lifted else f"{free}"
    refusal = f"clusters must be <= {free} with orthonormal directions in dimension {dimension}, got {clusters}"
    require(not orthonormal or clusters <= free, f"{refusal}; use directions 'random' for more")
    drawn = _draw_rows(clusters, free, seed)
    return orthonormalise_rows(drawn) if orthonormal else normalise_rows(drawn)


def _draw_rows(count: int, size: int, seed: int, which: int = 0) -> NDArray[np.float64]:
    return np.ascontiguousarray(streams.draw_normals(seed, streams.THETA, which, (size, count)).T)


def _draw_equidistant(clusters: int, free: int, distance: float, seed: int) -> NDArray[np.float64]:
    """Draw unit vectors at equal distances: each is the sum of a shared and an own direction."""
    require(clusters < free, f"clusters must be < {free} where a gap is given, got {clusters}")
    basis = orthonormalise_rows(_draw_rows(clusters + 1, free, seed))
    alike = 1.0 - distance**2 / 2.0
    units: NDArray[np.float64] = np.sqrt(alike) * basis[0] + np.sqrt(1.0 - alike) * basis[1:]
    return units


def _compute_cluster_sizes(users: int, clusters: int | Sequence[int]) -> list[int]:
    if isinstance(clusters, int):
        require(clusters <= users, f"clusters must be <= users ({users}), got {clusters}")
        return [users // clusters + (extra < users % clusters) for extra in range(clusters)]
    sizes = list(clusters)
    require(
        sum(sizes) == users, f"cluster sizes must be whole numbers >= 1 that add up to users ({users}), got {sizes}"
    )
    return sizes
