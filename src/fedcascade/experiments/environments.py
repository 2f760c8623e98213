"""Environments as plain values: what a plan names, what a process on any machine builds."""

from functools import cache
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fedcascade.checks import require
from fedcascade.environments.environment import Environment
from fedcascade.environments.matrices import Triplets, generated_ratings, triplets_of
from fedcascade.environments.ratings import Ratings
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
    gap: float | None = None
    drift: Count | None = None
    arrivals: tuple[float, ...] | Literal["zipf"] | None = None


class RatingsWorld(Struct, frozen=True, kw_only=True, tag_field="kind", tag="ratings"):
    """Users and clusters from ratings: those of a file, or generated ones where no file is given.

    The fields from ``top_users`` on are the steps of ``environments.ratings.Steps``; None leaves the preset's.
    """

    file: str | None = None
    preset: Literal["paper", "catalogue"] = "catalogue"
    users: Count = 40
    clusters: Count = 10
    dimension: Annotated[int, Meta(ge=2)] = 20
    items: Count = 200
    top_users: Count | None = None
    top_items: Count | None = None
    selection: Literal["independent", "nested"] | None = None
    values: Literal["stars", "counts", "threshold"] | None = None
    threshold: float | None = None
    scaling: Literal["root", "none"] | None = None
    lifted: bool | None = None
    shelf: Literal["catalogue", "random"] | None = None


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
        gap=world.gap,
        drift=world.drift,
        arrivals=world.arrivals,
        seed=seed,
    )


def _bounds(items: int | tuple[int, ...]) -> int | tuple[int, int]:
    if isinstance(items, int):
        return items
    require(len(items) == 2, f"items must be a number or [least, most], got {list(items)}")
    return items[0], items[1]


def _rated(world: RatingsWorld, seed: int) -> Environment:
    given = {name: getattr(world, name) for name in world.__struct_fields__ if name != "file"}
    return Ratings(
        _ratings(world.file), seed=seed, **{name: value for name, value in given.items() if value is not None}
    )


@cache
def _ratings(file: str | None) -> Triplets:
    """The ratings of a file, read once in a process."""
    if file is None:
        return triplets_of(generated_ratings())
    from fedcascade.data import read_ratings

    return read_ratings(file)


@cache
def fingerprint(world: World) -> str | None:
    """The SHA-256 of the file behind a world, so that results of another file are never taken for this one's."""
    if not isinstance(world, RatingsWorld) or world.file is None:
        return None
    path = Path(world.file)
    require(path.is_file(), f"ratings file '{path}' not found: give the path of an existing file")
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()
