"""The plans that come with the package."""

from importlib.resources import files
from pathlib import Path

from msgspec import structs

from fedcascade.checks import require
from fedcascade.experiments.environments import RatingsSpec
from fedcascade.experiments.plan import NamedEnvironment, Plan
from fedcascade.experiments.plan_reader import load_plan, read_plan

_FOLDER = files("fedcascade.experiments") / "plans"


def list_builtin_plans() -> list[str]:
    """Return the names of the plans that come with the package, sorted."""
    return sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml"))


def load_builtin_plan(name: str) -> Plan:
    """Read a plan that comes with the package."""
    return read_plan((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"), source=f"{name}.toml")


def find_plan(path: Path) -> Plan:
    """Read the plan of a file or, where there is no such file, the built-in plan of that name."""
    names = list_builtin_plans()
    if str(path) in names and not path.is_file():
        return load_builtin_plan(str(path))
    require(
        path.exists(),
        f"plan '{path}' not found: give the path of a TOML file, or a plan that comes with the package: "
        f"{', '.join(names)}",
    )
    return load_plan(path)


def set_ratings_file(plan: Plan, ratings: Path | None) -> Plan:
    """Return the plan with a ratings file in those of its ratings environments that name none.

    Their names, and the plan's title, then no longer say 'generated ratings'.
    """
    if ratings is None:
        return plan
    file = str(ratings.resolve())
    environments = tuple(_set_file(each, file) if _lacks_file(each) else each for each in plan.environments)
    title = plan.title.replace("Generated ratings", "Ratings")
    return structs.replace(plan, title=title, environments=environments)


def _set_file(environment: NamedEnvironment, file: str) -> NamedEnvironment:
    name = environment.name.replace("generated ratings", "ratings")
    return structs.replace(environment, name=name, spec=structs.replace(environment.spec, file=file))


def can_take_ratings(plan: Plan) -> bool:
    """Return whether an environment of the plan is made from ratings and names no file for them."""
    return any(_lacks_file(environment) for environment in plan.environments)


def _lacks_file(environment: NamedEnvironment) -> bool:
    return isinstance(environment.spec, RatingsSpec) and environment.spec.file is None
