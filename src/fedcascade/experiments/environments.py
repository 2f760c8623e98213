"""Environments as plain values: what a plan names, and a process on any machine builds."""

from functools import cache, lru_cache
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from fedcascade.checks import require
from fedcascade.environments.behaviours import Behaviour
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.environments.life import Life
from fedcascade.environments.matrices import Triplets, generate_ratings, to_triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import DirectionKind, FeatureKind, Synthetic
from fedcascade.plugins import get_plugin

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Scale = Annotated[float, Meta(gt=0, le=1)]
ClickModel = Literal["dcm", "dbn", "pbm"]  # left out for the cascade, so that runs of it keep their keys


class SyntheticSpec(Struct, frozen=True, kw_only=True, tag_field="kind", tag="synthetic"):
    """The paper's synthetic environment; the seed comes with each run."""

    users: Count = 40
    clusters: Count | tuple[Count, ...] = 10
    dimension: Annotated[int, Meta(ge=2)] = 20
    items: Count | tuple[Count, ...] = 200  # a pair; msgspec 0.22 crashes on tuple[Count, Count]
    features: FeatureKind = "lifted"
    directions: DirectionKind = "orthonormal"
    gap: float | None = None
    drift: Count | None = None
    scale: Scale | UnsetType = (
        UNSET  # this and those below are left out if not given, so that such runs keep their keys
    )
    life: Life | UnsetType = UNSET
    clicks: ClickModel | UnsetType = UNSET
    click_level: Share | UnsetType = UNSET
    arrivals: tuple[float, ...] | Literal["zipf"] | None = None
    categories: Count | None = None
    costs: bool = False


class RatingsSpec(Struct, frozen=True, kw_only=True, tag_field="kind", tag="ratings"):
    """An environment made from the ratings of a file, or from generated ones where no file is named.

    The fields from ``top_users`` on are the steps of ``environments.ratings.Steps``; None leaves the preset's.
    """

    file: str | None = None
    preset: Literal["paper", "catalogue"] = "catalogue"
    users: Count = 40
    clusters: Count = 10
    dimension: Annotated[int, Meta(ge=2)] = 20
    items: Count = 200
    scale: Scale | UnsetType = UNSET
    life: Life | UnsetType = UNSET
    clicks: ClickModel | UnsetType = UNSET
    click_level: Share | UnsetType = UNSET
    top_users: Count | None = None
    top_items: Count | None = None
    selection: Literal["independent", "nested"] | None = None
    values: Literal["stars", "counts", "threshold"] | None = None
    threshold: float | None = None
    scaling: Literal["root", "none"] | None = None
    lifted: bool | None = None
    shelf: Literal["catalogue", "random"] | None = None


class PluginSpec(Struct, frozen=True, kw_only=True, tag_field="kind", tag="plugin"):
    """An environment of another package: its entry point, its arguments beside the seed, and where it comes from."""

    name: str
    arguments: dict[str, Any]
    package: str  # with its version, so that no other version's results pass for this one's


EnvironmentSpec = SyntheticSpec | RatingsSpec | PluginSpec


def build_environment(spec: EnvironmentSpec, seed: int) -> Environment:
    """Build the environment of one run."""
    if isinstance(spec, PluginSpec):
        environment: Environment = get_plugin("environment", spec.name).build(**spec.arguments, seed=seed)
        return environment
    world = _build_ratings(spec, seed) if isinstance(spec, RatingsSpec) else _build_synthetic(spec, seed)
    return _set_clicks(world, spec)


def _build_synthetic(spec: SyntheticSpec, seed: int) -> Synthetic:
    return Synthetic(**_select_options(spec) | {"items": _to_range(spec.items)}, seed=seed)


@lru_cache(maxsize=4)
def _build_ratings(spec: RatingsSpec, seed: int) -> Ratings:
    """Factorise the ratings once for systems that meet the same users, whose runs come one after another."""
    options = {name: value for name, value in _select_options(spec).items() if value is not None}
    return Ratings(_read_ratings(spec.file), seed=seed, **options)


def _select_options(spec: SyntheticSpec | RatingsSpec) -> dict[str, Any]:
    """What a plan says of a world whose users follow the cascade."""
    left_out = ("file", "clicks", "click_level")
    values = structs.asdict(spec).items()
    return {name: value for name, value in values if name not in left_out and value is not UNSET}


def _set_clicks(world: Clustered, spec: SyntheticSpec | RatingsSpec) -> Clustered:
    """The world with users who click as its plan says."""
    if spec.clicks is UNSET:
        require(spec.click_level is UNSET, "click_level belongs to clicks: name a click model, or leave it out")
        return world
    level = {} if spec.click_level is UNSET else {"level": spec.click_level}
    return world.with_behaviour(Behaviour(model=spec.clicks, **level))


def count_users(spec: EnvironmentSpec) -> int:
    """How many users an environment has; refused where its plug-in alone knows."""
    require(not isinstance(spec, PluginSpec), "how many users an environment of a plug-in has is not in its plan")
    return 0 if isinstance(spec, PluginSpec) else spec.users


def _to_range(items: int | tuple[int, ...]) -> int | tuple[int, int]:
    if isinstance(items, int):
        return items
    require(len(items) == 2, f"items must be a number or [least, most], got {list(items)}")
    return items[0], items[1]


@cache
def _read_ratings(file: str | None) -> Triplets:
    """Read the ratings of a file, once in a process."""
    if file is None:
        return to_triplets(generate_ratings())
    from fedcascade.data.readers import read_ratings

    return read_ratings(file)


def hash_ratings_file(spec: EnvironmentSpec) -> str | None:
    """Return the SHA-256 of the file that an environment is made from, so that no other file's results pass for its."""
    return _hash_file(spec.file) if isinstance(spec, RatingsSpec) and spec.file is not None else None


@cache
def _hash_file(file: str) -> str:
    path = Path(file)
    require(path.is_file(), f"ratings file '{path}' not found: give the path of an existing file")
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()
