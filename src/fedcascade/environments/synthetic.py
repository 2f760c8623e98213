"""The paper's synthetic world: clusters of users with one theta each, fresh random items in every round."""

from collections.abc import Sequence
from numbers import Integral
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import SHARE, require, require_integer, require_known
from fedcascade.environments.clustered import Clustered, check_seed, lift
from fedcascade.environments.history import History, LivingHistory, OneChange, Tastes
from fedcascade.environments.life import Life
from fedcascade.environments.links import Logistic
from fedcascade.numerics import streams
from fedcascade.numerics.linear import normalise_rows, orthonormalise_rows

FeatureKind = Literal["lifted", "gaussian", "logistic"]
DirectionKind = Literal["orthonormal", "random"]
NEW_TASTES = 1  # which draws of the stream THETA they come from
# Clicks of "logistic" features. With <theta, x> = (1 + cos) / 2 and d = 20, the median probability of a click is 0.005,
# and 1% of the items are at 0.1 to 0.4. In fewer dimensions cosines vary more, and more items are good.
LOGISTIC = Logistic(steepness=12.0, bias=-11.3)


class Synthetic(Clustered):
    """Users in clusters, items drawn afresh in each round; all of it from one seed.

    ``lifted`` features are (z / ||z||, 1) / sqrt(2) with Gaussian z, thetas likewise, so that <theta, x> =
    (1 + cos) / 2 is a probability. ``gaussian`` ones are z / ||z||, and <theta, x> is clipped to [0, 1].
    ``logistic`` ones are lifted, and the probability of a click is sigmoid(12 <theta, x> - 11.3): clicks are rare, and
    the linear model is wrong. Features are rounded toward zero to the grid (``numerics.grid``); clicks follow the
    rounded ones.

    Args:
        users: how many users there are.
        clusters: how many clusters of equal size (as nearly as can be), or the size of each.
        dimension: d, the lifting coordinate included.
        items: how many items a round offers, or the (least, most) between which each round draws.
        features: "lifted", "gaussian" or "logistic".
        directions: "orthonormal" theta directions (before lifting), or independent "random" ones.
        scale: a factor in (0, 1] of all thetas; smaller means fewer clicks, 1 is the paper's.
        gap: how far the thetas of any two clusters are apart before scaling; if None, as far as their directions say.
        drift: the round from which on every second user of each cluster wants something else; None for never.
            ``clusters`` then tells apart who will differ.
        life: what else happens to the population: see ``environments.life``. What is new is a random direction.
        arrivals: how likely each user is to arrive, up to scale; "zipf" is 1, 1/2, 1/3, ...; uniform if None.
        categories: how many categories items belong to, drawn for each item of a round; none if None.
        costs: whether items have costs, uniform in (0, 1].
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
        scale: float = 1.0,
        gap: float | None = None,
        drift: int | None = None,
        life: Life | None = None,
        arrivals: ArrayLike | Literal["zipf"] | None = None,
        categories: int | None = None,
        costs: bool = False,
        seed: int = 0,
    ) -> None:
        require_known("features", features, get_args(FeatureKind))
        require_known("directions", directions, get_args(DirectionKind))
        require_integer("users", users)
        require_integer("dimension", dimension, 2)
        check_seed(seed)
        SHARE.check("scale", scale)
        require(drift is None or life is None, "drift is one change of its own: give it, or a life, not both")
        lifted = features != "gaussian"
        sizes = _compute_cluster_sizes(users, clusters)
        ordered = np.repeat(np.arange(len(sizes)), sizes)
        number = np.concatenate([np.arange(size) for size in sizes])  # of each user within its cluster
        later = ordered if drift is None else ordered + len(sizes) * (number % 2)
        tastes, free = int(later.max()) + 1, dimension - lifted
        if drift is not None:
            require_integer("drift", drift)
            _check_drift(len(sizes), tastes, free if gap is None else free - 1, gap is None and directions == "random")
        units = _draw_directions(tastes, free, directions, gap, seed, lifted)
        thetas = scale * (lift(units) if lifted else units)
        # In random order, so that uneven arrivals do not favour a cluster.
        order = np.argsort(streams.uniforms(np.uint64(seed), streams.CLUSTER, 0, users))
        before, after = ordered[order], later[order]
        if life is not None:
            others = normalise_rows(_draw_rows(len(sizes) + 1, free, seed, NEW_TASTES))
            known = Tastes(before, thetas, scale * (lift(others) if lifted else others), lifted)
            history: History = LivingHistory(life, known, seed)
        elif drift is not None:
            history = OneChange(after, thetas[before], drift, thetas[after])
        else:
            history = OneChange(before, thetas[before])
        super().__init__(
            seed=seed,
            history=history,
            items=items,
            lifted=lifted,
            arrivals=arrivals,
            categories=categories,
            costs=costs,
            link=LOGISTIC if features == "logistic" else None,
        )


def _check_drift(clusters: int, tastes: int, most: int, has_room: bool) -> None:
    """Refuse a drift whose tastes cannot all be as far apart as was asked."""
    words = f"drift gives the users of {clusters} clusters {tastes} tastes in all, and there is room for {most}"
    remedy = f"take at most {most // 2} clusters, a higher dimension, or directions 'random' and no gap"
    require(has_room or tastes <= most, f"{words}: {remedy}")


def _draw_directions(
    clusters: int, free: int, directions: DirectionKind, gap: float | None, seed: int, lifted: bool
) -> NDArray[np.float64]:
    """A unit vector for each cluster, one per row."""
    if gap is not None:
        most = 1.0 if lifted else 2**0.5  # a lift halves the square of a distance
        words = f"a number > 0 and at most {most:.4g}, that of orthonormal directions"
        require(0 < gap <= most, f"gap must be {words}, got {gap:g}")
        return _draw_equidistant(clusters, free, gap * 2**0.5 if lifted else gap, seed)
    orthonormal = directions == "orthonormal"
    dimension = f"{free + 1} (one coordinate lifts)" if lifted else f"{free}"
    refusal = f"clusters must be <= {free} with orthonormal directions in dimension {dimension}, got {clusters}"
    require(not orthonormal or clusters <= free, f"{refusal}; use directions 'random' for more")
    drawn = _draw_rows(clusters, free, seed)
    return orthonormalise_rows(drawn) if orthonormal else normalise_rows(drawn)


def _draw_rows(count: int, size: int, seed: int, which: int = 0) -> NDArray[np.float64]:
    """Rows of standard normals."""
    return np.ascontiguousarray(streams.draw_normals(seed, streams.THETA, which, (size, count)).T)


def _draw_equidistant(clusters: int, free: int, distance: float, seed: int) -> NDArray[np.float64]:
    """Unit vectors with the same distance between any two: a direction that all share, and one of their own."""
    require(clusters < free, f"clusters must be < {free} where a gap is given, got {clusters}")
    basis = orthonormalise_rows(_draw_rows(clusters + 1, free, seed))
    alike = 1.0 - distance**2 / 2.0
    units: NDArray[np.float64] = np.sqrt(alike) * basis[0] + np.sqrt(1.0 - alike) * basis[1:]
    return units


def _compute_cluster_sizes(users: int, clusters: int | Sequence[int]) -> list[int]:
    if isinstance(clusters, int):
        require_integer("clusters", clusters)
        require(clusters <= users, f"clusters must be <= users ({users}), got {clusters}")
        return [users // clusters + (extra < users % clusters) for extra in range(clusters)]
    sizes = list(clusters)
    good = all(isinstance(size, Integral) and size >= 1 for size in sizes) and sum(sizes) == users
    require(good, f"cluster sizes must be whole numbers >= 1 that add up to users ({users}), got {sizes}")
    return sizes
