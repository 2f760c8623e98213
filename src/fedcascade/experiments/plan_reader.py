"""Read plans from TOML and check them before anything runs; an error names the line."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from fedcascade.checks import require, require_known
from fedcascade.experiments.own_policies import find_policy, hash_policy
from fedcascade.experiments.plan import (
    OPTIONS,
    Count,
    EnvironmentSpec,
    NamedEnvironment,
    Plan,
    PlanHead,
    PlannedPolicy,
    Seed,
    Value,
    list_values,
    matches_pattern,
    select_policies,
    to_field_names,
    to_plain_names,
)
from fedcascade.experiments.toml_lines import KeyPath, find_line
from fedcascade.federation.policies import Policy
from fedcascade.learning.named_oracles import build_oracle
from fedcascade.plugins import list_plugins

Shape = TypeVar("Shape")


class _EnvironmentTable(Struct, kw_only=True):
    name: str
    kind: str
    grid: dict[str, list[Any]] = {}
    rounds: Count | None = None
    checkpoints: Count | None = None
    list_length: Count | None = None
    seeds: tuple[Seed, ...] | None = None


class _PolicyTable(Struct, kw_only=True):
    name: str | tuple[str, ...]
    label: str = ""
    constants: dict[str, Value] = {}
    grid: dict[str, list[Value]] = {}
    on: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)
    warm: Annotated[int, Meta(ge=0)] = 0
    oracle: str = ""
    set_oracle: dict[str, Value] = {}


_FOLDER = files("fedcascade.experiments") / "plans"


def list_builtin_plans() -> list[str]:
    """Return the names of the plans that come with the package, sorted."""
    return sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml"))


def load_builtin_plan(name: str) -> Plan:
    """Read a plan that comes with the package."""
    return read_plan((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"), source=f"{name}.toml")


def load_plan(path: Path) -> Plan:
    """Read and check a plan file or, where there is no such file, the built-in plan of that name.

    Files that it names are looked up beside it.
    """
    names = list_builtin_plans()
    if str(path) in names and not path.is_file():
        return load_builtin_plan(str(path))
    require(
        path.exists(),
        f"plan '{path}' not found: give the path of a TOML file, or a plan that comes with the package: "
        f"{', '.join(names)}",
    )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"plan '{path}' cannot be read as UTF-8 text: {error}") from None
    return read_plan(text, source=str(path), folder=path.parent)


def set_ratings_file(plan: Plan, ratings: Path) -> Plan:
    """Return the plan with a ratings file in its ratings environments that name none.

    Removes 'generated' from their names and from the title of the plan.
    """
    environments = tuple(
        structs.replace(
            each,
            name=each.name.replace("generated ratings", "ratings"),
            spec=structs.replace(each.spec, file=str(ratings.resolve())),
        )
        if each.spec.kind == "ratings" and each.spec.file is None
        else each
        for each in plan.environments
    )
    return structs.replace(plan, title=plan.title.replace("Generated ratings", "Ratings"), environments=environments)


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
    >>> plan.seeds, [policy.label for policy in plan.policies]
    ((0, 1), ['fedind beta=1', 'fedind beta=5'])
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source}: not valid TOML: {error}") from None
    return _PlanReader(text, source, folder or Path()).read_plan(tables)


class _PlanReader:
    """A reader of TOML tables whose errors name the line."""

    def __init__(self, text: str, source: str, folder: Path) -> None:
        self.text, self.source, self.folder = text, source, folder

    def read_plan(self, tables: dict[str, Any]) -> Plan:
        self.check_keys(tables, [*PlanHead.__struct_fields__, "environments", "policies"])
        head = self.convert({k: v for k, v in tables.items() if k in PlanHead.__struct_fields__}, PlanHead)
        is_plain = head.name.isprintable() and not set("/\\") & set(head.name) and head.name.strip(". ") != ""
        self.check(is_plain, f"name must be usable as a folder name, without / and \\, got '{head.name}'", "name")
        located = [
            (path, environment)
            for path, table in self.list_tables(tables, "environments")
            for environment in self.read_environments(table, path)
        ]
        names = [environment.name for _, environment in located]
        policies = [
            policy
            for path, table in self.list_tables(tables, "policies")
            for policy in self.read_policies(table, path, names)
        ]
        self.check_distinct("environments", names)
        with self.locate("compare", "against"):
            for label in head.compare.against:
                require_known("policy of this plan", label, {policy.label for policy in policies})
        for path, environment in located:
            self.check_environment(head, environment, path)
            labels = [policy.label for policy in select_policies(policies, environment.name)]
            self.check(len(labels) > 0, f"no policy plays in environment '{environment.name}': see their 'on'", *path)
            self.check_distinct("policies", labels)
        self.check_oracle(head.oracle, head.set_oracle, head.list_length)
        seeds = tuple(range(head.seeds)) if isinstance(head.seeds, int) else head.seeds
        self.check_seeds(seeds, "seeds")
        settings = structs.asdict(head) | {"title": head.title or head.name, "seeds": seeds}
        return Plan(**settings, environments=tuple(each for _, each in located), policies=tuple(policies))

    @contextmanager
    def locate(self, *path: str | int) -> Iterator[None]:
        """Add the line of a key to an error of the block."""
        try:
            yield
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.source} line {find_line(self.text, path)}: {error}") from None

    def list_tables(self, tables: dict[str, Any], name: str) -> list[tuple[KeyPath, dict[str, Any]]]:
        array = tables.get(name)
        is_good = isinstance(array, list) and array and all(isinstance(table, dict) for table in array)
        self.check(bool(is_good), f"expected at least one [[{name}]] table", name)
        return [((name, index), table) for index, table in enumerate(array or [])]

    def read_environments(self, table: dict[str, Any], path: KeyPath) -> list[NamedEnvironment]:
        """Read the environments of one table: one for each point of its grid."""
        kind = str(table.get("kind"))
        plugins = {plugin.name: plugin for plugin in list_plugins("environment")}
        kinds = [*OPTIONS, *plugins]
        self.check(kind in kinds, f"kind must be one of {', '.join(kinds)}, got {kind!r}", *path, "kind")
        if kind in OPTIONS:
            keys = [declared.name for declared in fields(OPTIONS[kind])] + ["file"] * (kind == "ratings")
            read = partial(self.read_spec, kind, path)
        else:
            with self.locate(*path, "kind"):
                keys = [name for name in plugins[kind].list_arguments() if name != "seed"]
            read = partial(EnvironmentSpec, kind, package=plugins[kind].distribution)
        self.check_keys(table, [*_EnvironmentTable.__struct_fields__, *keys], *path)
        head = {k: v for k, v in table.items() if k in _EnvironmentTable.__struct_fields__}
        entry = self.convert(head, _EnvironmentTable, *path)
        self.check_keys(entry.grid, keys, *path, "grid")
        fixed = {k: v for k, v in table.items() if k not in head}
        own = {name: getattr(entry, name) for name in ("rounds", "checkpoints", "list_length", "seeds")}
        return [
            NamedEnvironment(_add_suffix(entry.name, point), read(fixed | point), **own)
            for point in self.list_points(entry.grid, path)
        ]

    def read_spec(self, kind: str, path: KeyPath, values: dict[str, Any]) -> EnvironmentSpec:
        """Read one environment of this package, and make the path of its file absolute."""
        file = values.pop("file", None)
        for declared in fields(OPTIONS[kind]):
            value = values.get(declared.name)
            if value is not None and not isinstance(value, dict):  # events check their own values
                with self.locate(*path, declared.name):
                    declared.metadata["range"].check(declared.name, value)
        options = self.convert(values, OPTIONS[kind], *path)
        if file is not None:
            file = str((self.folder / self.convert(file, str, *path, "file")).resolve())
        return EnvironmentSpec(kind, msgspec.to_builtins(asdict(options)), file)

    def read_policies(self, table: dict[str, Any], path: KeyPath, environments: Sequence[str]) -> list[PlannedPolicy]:
        """Read the policies of one table: one for each of its names and each point of its grid."""
        self.check_keys(table, _PolicyTable.__struct_fields__, *path)
        entry = self.convert(table, _PolicyTable, *path)
        for pattern in entry.on:
            is_used = any(matches_pattern(name, pattern) for name in environments)
            self.check(is_used, f"on: '{pattern}' is none of the environments: {'; '.join(environments)}", *path, "on")
        names = [entry.name] if isinstance(entry.name, str) else entry.name
        # A file is looked up beside the plan.
        sources = [f"{self.folder.resolve()}/{name}" if ".py:" in name else name * (":" in name) for name in names]
        with self.locate(*path, "name"):
            policies = [find_policy(name, source) for name, source in zip(names, sources, strict=True)]
        constants = {name for policy in policies for name in to_plain_names(policy.constants())}
        self.check_keys(entry.constants, constants, *path, "constants")
        self.check_keys(entry.grid, constants, *path, "grid")
        self.check(bool(entry.oracle) or not entry.set_oracle, "set_oracle belongs to an oracle", *path, "set_oracle")
        if entry.oracle:
            self.check_oracle(entry.oracle, entry.set_oracle, 1, *path)
        return [
            self.read_policy(policy, source, entry, point, path)
            for policy, source in zip(policies, sources, strict=True)
            for point in self.list_points(_select_known(entry.grid, policy), path)
        ]

    def read_policy(
        self, policy: Policy, source: str, entry: _PolicyTable, point: dict[str, Value], path: KeyPath
    ) -> PlannedPolicy:
        """Read one policy; it refuses a constant that is out of bounds."""
        for key, constants in (("constants", entry.constants), ("grid", point)):
            with self.locate(*path, key):
                policy = policy.with_known_constants(to_field_names(constants))
        label = _add_suffix(entry.label or policy.name, point)
        more = {name: getattr(entry, name) for name in ("on", "warm", "oracle", "set_oracle")} | {"swept": tuple(point)}
        more |= {"source": source, "digest": hash_policy(policy) if source else ""}
        return PlannedPolicy(label, policy.name, list_values(policy), **more)

    def list_points(self, grid: Mapping[str, Sequence[Any]], path: KeyPath) -> list[dict[str, Any]]:
        """Return every combination of a grid's values; an empty grid has one."""
        for name, values in grid.items():
            self.check(len(values) > 0, f"grid.{name} must list at least one value", *path, "grid", name)
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def check_keys(self, table: Mapping[str, Any], valid: Iterable[str], *path: str | int) -> None:
        """Refuse a key that is not among the valid ones."""
        names = sorted(valid)
        for key in set(table) - set(names):
            with self.locate(*path, key):
                try:
                    require_known("key", key, names)
                except ValueError as error:
                    expected = "" if "expected" in str(error) else f" (expected one of {', '.join(names)})"
                    raise ValueError(f"{error}{expected}") from None

    def convert(self, value: Any, shape: type[Shape], *path: str | int) -> Shape:
        """Return the value in that shape, checked by msgspec."""
        try:
            return msgspec.convert(value, shape, strict=True)
        except msgspec.ValidationError as error:
            message, _, location = str(error).partition(" - at ")
            full_path = (*path, *_parse_key_path(location))
            name = ".".join(str(part) for part in full_path if isinstance(part, str))
            with self.locate(*full_path):
                raise ValueError(f"{name}: {message}".lstrip(": ").replace("`", "'")) from None
            raise

    def check_oracle(self, name: str, arguments: Mapping[str, Value], length: int, *path: str | int) -> None:
        """Refuse an oracle that cannot be built."""
        with self.locate(*path, "set_oracle" if arguments else "oracle"):
            build_oracle(name, length, arguments)

    def check_environment(self, head: PlanHead, environment: NamedEnvironment, path: KeyPath) -> None:
        """Refuse settings that do not fit an environment: lists, checkpoints, seeds and rounds per user."""
        if environment.spec.kind in OPTIONS:
            length, most = environment.list_length or head.list_length, environment.spec.declared.item_range[1]
            words = f"list_length must be <= items ({most}) of environment '{environment.name}', got {length}"
            self.check(length <= most, words, "list_length")
        rounds, own = environment.rounds or head.rounds, environment.rounds or environment.checkpoints
        fits = (environment.checkpoints or head.checkpoints) <= rounds
        self.check(fits, f"checkpoints must be <= rounds ({rounds})", *((*path, "name") if own else ("checkpoints",)))
        if environment.seeds is not None:
            self.check_seeds(environment.seeds, *path, "seeds")
        has_users = not head.per_user or environment.spec.kind in OPTIONS
        self.check(has_users, f"per_user needs users, which environment '{environment.name}' does not name", *path)

    def check_seeds(self, seeds: Sequence[int], *path: str | int) -> None:
        """Refuse seeds that repeat, and none at all."""
        self.check(len(seeds) == len(set(seeds)) > 0, "seeds must be a count or distinct numbers", *path)

    def check_distinct(self, name: str, labels: Sequence[str]) -> None:
        """Refuse a name that is used twice."""
        repeated = sorted({label for label in labels if labels.count(label) > 1})
        self.check(not repeated, f"{name} must have distinct names, got {', '.join(repeated)} twice", name)

    def check(self, condition: bool, message: str, *path: str | int) -> None:
        with self.locate(*path):
            require(condition, message)


def _parse_key_path(location: str) -> KeyPath:
    """Read msgspec's '`$.seeds[0]`' as ("seeds", 0)."""
    parts = location.strip("`").removeprefix("$").replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdecimal() else part for part in parts if part and part != "...")


def _add_suffix(name: str, point: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in point.items())])


def _select_known(grid: Mapping[str, list[Value]], policy: Policy) -> dict[str, list[Value]]:
    names = to_plain_names(policy.constants())
    return {name: values for name, values in grid.items() if name in names}
