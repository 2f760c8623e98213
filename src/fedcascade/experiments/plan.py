"""Plans: environments x policies x grids of constants x seeds, read from TOML and checked before anything runs."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from fedcascade.checks import require, require_known
from fedcascade.experiments.environments import Count, RatingsWorld, SyntheticWorld, World
from fedcascade.experiments.toml_lines import Path as KeyPath
from fedcascade.experiments.toml_lines import line_of
from fedcascade.federation import policies

Value = bool | int | float | str
Kind = TypeVar("Kind")


class NamedWorld(Struct, frozen=True):
    """An environment and what it is called in tables and figures."""

    name: str
    world: World


class System(Struct, frozen=True):
    """A policy with all its constants, and what it is called in tables and figures."""

    label: str
    policy: str
    constants: dict[str, Value]
    on: tuple[str, ...] = ("*",)  # patterns of the environments that it plays in


class Plan(Struct, frozen=True, kw_only=True):
    """Every combination of ``environments``, the ``systems`` that play there and ``seeds`` is one run."""

    name: str
    title: str
    rounds: int
    checkpoints: int
    list_length: int
    seeds: tuple[int, ...]
    environments: tuple[NamedWorld, ...]
    systems: tuple[System, ...]


class _Head(Struct, kw_only=True):
    name: str
    title: str = ""
    rounds: Count
    checkpoints: Count = 100
    list_length: Count = 4
    seeds: Count | tuple[Annotated[int, Meta(ge=0, le=2**63 - 1)], ...] = 3


class _EnvironmentTable(Struct, kw_only=True):
    name: str
    kind: str
    grid: dict[str, list[Any]] = {}


class _PolicyTable(Struct, kw_only=True):
    name: str | tuple[str, ...]
    label: str = ""
    constants: dict[str, Value] = {}
    grid: dict[str, list[Value]] = {}
    on: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)


_WORLDS: Mapping[str, type[SyntheticWorld] | type[RatingsWorld]] = {
    "synthetic": SyntheticWorld,
    "ratings": RatingsWorld,
}


def load_plan(path: Path) -> Plan:
    """Read and check a plan file; files that it names are looked up beside it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"plan '{path}' not found: give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"plan '{path}' cannot be read as UTF-8 text: {error}") from None
    return read_plan(text, source=str(path), folder=path.parent)


def read_plan(text: str, *, source: str = "plan", folder: Path | None = None) -> Plan:
    """Read and check the text of a plan.

    >>> plan = read_plan('''
    ... name = "small"
    ... rounds = 100
    ... seeds = 2
    ... [[environments]]
    ... name = "J=2"
    ... kind = "synthetic"
    ... clusters = 2
    ... [[policies]]
    ... name = "fedind"
    ... grid = { beta = [1, 5] }
    ... ''')
    >>> plan.seeds, [system.label for system in plan.systems]
    ((0, 1), ['fedind beta=1', 'fedind beta=5'])
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source}: not valid TOML: {error}") from None
    return _Reader(text, source, folder or Path()).plan(raw)


class _Reader:
    """Turns tables into values, and knows the line of whatever it refuses."""

    def __init__(self, text: str, source: str, folder: Path) -> None:
        self.text = text
        self.source = source
        self.folder = folder

    def plan(self, raw: dict[str, Any]) -> Plan:
        """The whole plan."""
        self.keys(raw, [*_Head.__struct_fields__, "environments", "policies"], ())
        head = self.convert({k: v for k, v in raw.items() if k in _Head.__struct_fields__}, _Head, ())
        placed = [(at, world) for at, table in self.tables(raw, "environments") for world in self.worlds(table, at)]
        environments = [world for _, world in placed]
        names = [world.name for world in environments]
        systems = [system for at, table in self.tables(raw, "policies") for system in self.systems(table, at, names)]
        self.distinct("environments", names)
        for at, world in placed:
            labels = [system.label for system in _playing(systems, world.name)]
            self.check(len(labels) > 0, f"no policy plays in environment '{world.name}': see their 'on'", at)
            self.distinct("policies", labels)
        self.check(head.checkpoints <= head.rounds, f"checkpoints must be <= rounds ({head.rounds})", ("checkpoints",))
        seeds = tuple(range(head.seeds)) if isinstance(head.seeds, int) else head.seeds
        self.check(len(seeds) == len(set(seeds)) > 0, "seeds must be a count or distinct numbers", ("seeds",))
        return Plan(
            name=head.name,
            title=head.title or head.name,
            rounds=head.rounds,
            checkpoints=head.checkpoints,
            list_length=head.list_length,
            seeds=seeds,
            environments=tuple(environments),
            systems=tuple(systems),
        )

    def tables(self, raw: dict[str, Any], name: str) -> list[tuple[KeyPath, dict[str, Any]]]:
        """The tables of an array, each with its place."""
        found = raw.get(name)
        good = isinstance(found, list) and found and all(isinstance(table, dict) for table in found)
        self.check(bool(good), f"expected at least one [[{name}]] table", (name,))
        return [((name, index), table) for index, table in enumerate(found or [])]

    def worlds(self, table: dict[str, Any], at: KeyPath) -> list[NamedWorld]:
        """The environments of one table: one for each point of its grid."""
        kind = table.get("kind")
        self.check(kind in _WORLDS, f"kind must be one of {', '.join(_WORLDS)}, got {kind!r}", (*at, "kind"))
        shape = _WORLDS[str(kind)]
        self.keys(table, [*_EnvironmentTable.__struct_fields__, *shape.__struct_fields__], at)
        own = {k: v for k, v in table.items() if k in _EnvironmentTable.__struct_fields__}
        entry = self.convert(own, _EnvironmentTable, at)
        self.keys(entry.grid, shape.__struct_fields__, (*at, "grid"))
        fixed = {k: v for k, v in table.items() if k not in own}
        return [
            NamedWorld(_suffixed(entry.name, point), self.world(fixed | point, shape, at))
            for point in self.points(entry.grid, at)
        ]

    def world(self, values: dict[str, Any], shape: type[World], at: KeyPath) -> World:
        """One environment; a file's path is made absolute."""
        if isinstance(values.get("file"), str):
            values["file"] = str((self.folder / values["file"]).resolve())
        return self.convert(values | {"kind": shape.__struct_config__.tag}, shape, at)

    def systems(self, table: dict[str, Any], at: KeyPath, environments: Sequence[str]) -> list[System]:
        """The systems of one table: one for each of its policies and each point of its grid."""
        self.keys(table, _PolicyTable.__struct_fields__, at)
        entry = self.convert(table, _PolicyTable, at)
        for pattern in entry.on:
            found = any(_matches(name, pattern) for name in environments)
            self.check(found, f"on: '{pattern}' is none of the environments: {'; '.join(environments)}", (*at, "on"))
        names = [entry.name] if isinstance(entry.name, str) else list(entry.name)
        rows = [self.at((*at, "name"), lambda name=name: policies.get_policy(name)) for name in names]
        had = {name for row in rows for name in _outside(row.constants())}
        self.keys(entry.constants, had, (*at, "constants"))
        self.keys(entry.grid, had, (*at, "grid"))
        return [
            self.system(row, entry, point, at)
            for row in rows
            for point in self.points({k: v for k, v in entry.grid.items() if k in _outside(row.constants())}, at)
        ]

    def system(self, row: policies.Policy, entry: _PolicyTable, point: dict[str, Value], at: KeyPath) -> System:
        """One system; the policy itself refuses a constant that is out of bounds."""
        tuned = self.at((*at, "constants"), lambda: row.with_known_constants(inside(entry.constants)))
        tuned = self.at((*at, "grid"), lambda: tuned.with_known_constants(inside(point)))
        return System(_suffixed(entry.label or row.name, point), row.name, _plain(tuned.constants()), entry.on)

    def points(self, grid: Mapping[str, Sequence[Any]], at: KeyPath) -> list[dict[str, Any]]:
        """Every combination of a grid's values; of an empty grid there is one."""
        for name, values in grid.items():
            self.check(len(values) > 0, f"grid.{name} must list at least one value", (*at, "grid", name))
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def keys(self, table: Mapping[str, Any], valid: Iterable[str], at: KeyPath) -> None:
        """Refuse a key that is not among the valid ones."""
        names = list(valid)
        for key in table:
            try:
                require_known("key", key, names)
            except ValueError as error:
                expected = "" if "expected" in str(error) else f" (expected one of {', '.join(sorted(names))})"
                raise self.refusal(f"{error}{expected}", (*at, key)) from None

    def convert(self, value: Any, shape: type[Kind], at: KeyPath) -> Kind:
        """A checked value of that shape."""
        try:
            return msgspec.convert(value, shape, strict=True)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at ")
            path = (*at, *_key_path(where))
            name = ".".join(str(part) for part in path if isinstance(part, str))
            raise self.refusal(f"{name}: {what}".lstrip(": ").replace("`", "'"), path) from None

    def at(self, at: KeyPath, call: Any) -> Any:
        """What ``call`` returns; its refusal gets a line."""
        try:
            return call()
        except (ValueError, TypeError) as error:
            raise self.refusal(str(error), at) from None

    def distinct(self, name: str, labels: Sequence[str]) -> None:
        """Refuse two things of one name, which tables could not tell apart."""
        twice = sorted({label for label in labels if labels.count(label) > 1})
        self.check(not twice, f"{name} must have distinct names, got {', '.join(twice)} twice", (name,))

    def check(self, condition: bool, message: str, at: KeyPath) -> None:
        """Refuse unless the condition holds."""
        if not condition:
            raise self.refusal(message, at)

    def refusal(self, message: str, at: KeyPath) -> ValueError:
        """An error that names the line."""
        return ValueError(f"{self.source} line {line_of(self.text, at)}: {message}")


def systems_in(plan: Plan, environment: str) -> list[System]:
    """The systems that play in an environment, in the plan's order."""
    return _playing(plan.systems, environment)


def _playing(systems: Iterable[System], environment: str) -> list[System]:
    return [system for system in systems if any(_matches(environment, pattern) for pattern in system.on)]


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern is a name or, with its * and ?, fits it; a name may have brackets, which a pattern reads."""
    return name == pattern or fnmatchcase(name, pattern)


def changed(plan: Plan, *, rounds: int | None = None, seeds: Sequence[int] | None = None) -> Plan:
    """The plan with other rounds or seeds."""
    require(rounds is None or rounds >= 1, f"rounds must be a whole number >= 1, got {rounds}")
    total = plan.rounds if rounds is None else rounds
    return msgspec.structs.replace(
        plan,
        rounds=total,
        checkpoints=min(plan.checkpoints, total),
        seeds=plan.seeds if seeds is None else tuple(seeds),
    )


def _key_path(where: str) -> KeyPath:
    """'`$.seeds[0]`' -> ("seeds", 0)."""
    parts = where.strip("`").removeprefix("$").replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdecimal() else part for part in parts if part and part != "...")


def _suffixed(name: str, point: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in point.items())])


def _outside(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Constants under the names that people type: lambda, not lambda_."""
    return {name.rstrip("_"): value for name, value in constants.items()}


def inside(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Constants under the names that policies use."""
    return {"lambda_" if name == "lambda" else name: value for name, value in constants.items()}


def _plain(constants: Mapping[str, Any]) -> dict[str, Value]:
    """Constants as plain values; one that follows from the problem is the policy's own affair."""
    return {
        name: str(value) if isinstance(value, str) else value
        for name, value in _outside(constants).items()
        if not isinstance(value, policies.Formula)
    }
