"""The plans that come with the package."""

from importlib.resources import files
from pathlib import Path

import msgspec

from fedcascade.checks import require
from fedcascade.experiments.environments import RatingsWorld, World
from fedcascade.experiments.plan import NamedWorld, Plan, load_plan, read_plan

_FOLDER = files("fedcascade.experiments") / "plans"


def names() -> list[str]:
    """The names of the plans that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml"))


def shipped(name: str) -> Plan:
    """One of the plans that come with the package."""
    return read_plan((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"), source=f"{name}.toml")


def find_plan(path: Path) -> Plan:
    """The plan of a file or, where there is no such file, the shipped plan of that name."""
    if str(path) in names() and not path.is_file():
        return shipped(str(path))
    require(
        path.exists(),
        f"plan '{path}' not found: give the path of a TOML file, or a plan that comes with the package: "
        f"{', '.join(names())}",
    )
    return load_plan(path)


def with_ratings(plan: Plan, ratings: Path | None) -> Plan:
    """The plan with a ratings file for those of its ratings environments that name none."""
    if ratings is None:
        return plan
    file = str(ratings.resolve())
    places = [NamedWorld(place.name, _with_file(place.world, file)) for place in plan.environments]
    return msgspec.structs.replace(plan, environments=tuple(places))


def takes_ratings(plan: Plan) -> bool:
    """Whether an environment of a plan has ratings, and names no file for them."""
    return any(_lacks_file(place.world) for place in plan.environments)


def _with_file(world: World, file: str) -> World:
    return msgspec.structs.replace(world, file=file) if _lacks_file(world) else world


def _lacks_file(world: World) -> bool:
    return isinstance(world, RatingsWorld) and world.file is None
