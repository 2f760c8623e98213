"""Environments as plain values: what a plan names, what a process on any machine builds."""

from functools import cache
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.environments.environment import Environment
from fedcascade.environments.synthetic import DirectionKind, FeatureKind, Synthetic

Count = Annotated[int, Meta(ge=1)]


class SyntheticWorld(Struct, frozen=True, kw_only=True, tag_field="kind", tag="synthetic"):
    """The paper's synthetic world; the seed comes with each run."""

    users: Count = 40
    clusters: Count | tuple[Count, ...] = 10
    dimension: Annotated[int, Meta(ge=2)] = 20
    items: Count | tuple[Count, ...] = 200  # a pair; msgspec 0.22 crashes on tuple[Count, Count]
    features: FeatureKind = "lifted"
    directions: DirectionKind = "orthonormal"
    arrivals: tuple[float, ...] | None = None


class RatingsWorld(Struct, frozen=True, kw_only=True, tag_field="kind", tag="ratings"):
    """Users and clusters from ratings: those of a file, or generated ones where no file is given."""

    file: str | None = None
    preset: Literal["paper", "catalogue"] = "catalogue"
    users: Count = 40
    clusters: Count = 10
    dimension: Annotated[int, Meta(ge=2)] = 20
    items: Count = 200


World = SyntheticWorld | RatingsWorld


def build(world: World, seed: int) -> Environment:
    """The environment of one run."""
    return _synthetic(world, seed) if isinstance(world, SyntheticWorld) else _rated(world, seed)


def _synthetic(world: SyntheticWorld, seed: int) -> Synthetic:
    return Synthetic(
        users=world.users,
        clusters=world.clusters,
        dimension=world.dimension,
        items=_bounds(world.items),
        features=world.features,
        directions=world.directions,
        arrivals=world.arrivals,
        seed=seed,
    )


def _bounds(items: int | tuple[int, ...]) -> int | tuple[int, int]:
    if isinstance(items, int):
        return items
    require(len(items) == 2, f"items must be a number or [least, most], got {list(items)}")
    return items[0], items[1]


def _rated(world: RatingsWorld, seed: int) -> Environment:
    from fedcascade.environments.ratings import Ratings

    sizes = {name: getattr(world, name) for name in ("users", "clusters", "dimension", "items", "preset")}
    if world.file is None:
        return Ratings.from_matrix(_generated(), **sizes, seed=seed)
    return Ratings.from_file(world.file, **sizes, seed=seed)


@cache
def _generated() -> NDArray[np.float64]:
    from fedcascade.environments.ratings import generated_ratings

    return generated_ratings()


@cache
def fingerprint(world: World) -> str | None:
    """The SHA-256 of the file behind a world, so that results of another file are never taken for this one's."""
    if not isinstance(world, RatingsWorld) or world.file is None:
        return None
    path = Path(world.file)
    require(path.is_file(), f"ratings file '{path}' not found: give the path of an existing file")
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()
