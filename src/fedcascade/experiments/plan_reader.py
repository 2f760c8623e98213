"""Read plans from TOML and check them before anything runs; an error names the line."""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from fedcascade.plugins import Plugin, list_plugins

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
    """Return the plan with a ratings file in its ratings environments that name none.

    Removes 'generated' from their names and from the title of the plan.
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
    return environment.spec.kind == "ratings" and environment.spec.file is None


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
        self.check_keys(tables, [*PlanHead.__struct_fields__, "environments", "policies"], ())
        head = self.convert({k: v for k, v in tables.items() if k in PlanHead.__struct_fields__}, PlanHead, ())
        is_plain = head.name.isprintable() and not set("/\\") & set(head.name) and head.name.strip(". ") != ""
        self.check(is_plain, f"name must be usable as a folder name, without / and \\, got '{head.name}'", ("name",))
        located: list[tuple[KeyPath, NamedEnvironment]] = []
        for path, table in self.list_tables(tables, "environments"):
            located += [(path, environment) for environment in self.read_environments(table, path)]
        names = [environment.name for _, environment in located]
        policies: list[PlannedPolicy] = []
        for path, table in self.list_tables(tables, "policies"):
            policies += self.read_policies(table, path, names)
        self.check_distinct("environments", names)
        known = {policy.label for policy in policies}
        self.locate_errors(("compare", "against"), partial(_require_all_known, head.compare.against, known))
        for path, environment in located:
            labels = [policy.label for policy in select_policies(policies, environment.name)]
            self.check(len(labels) > 0, f"no policy plays in environment '{environment.name}': see their 'on'", path)
            self.check_list_length(environment.list_length or head.list_length, environment)
            self.check_lengths(head, environment, path)
            has_users = not head.per_user or environment.spec.kind in OPTIONS
            self.check(has_users, f"per_user needs users, which environment '{environment.name}' does not name", path)
            self.check_distinct("policies", labels)
        self.check_oracle(head.oracle, head.set_oracle, head.list_length, ())
        seeds = tuple(range(head.seeds)) if isinstance(head.seeds, int) else head.seeds
        self.check_seeds(seeds, ("seeds",))
        settings = msgspec.structs.asdict(head) | {"title": head.title or head.name, "seeds": seeds}
        return Plan(**settings, environments=tuple(each for _, each in located), policies=tuple(policies))

    def list_tables(self, tables: dict[str, Any], name: str) -> list[tuple[KeyPath, dict[str, Any]]]:
        array = tables.get(name)
        is_good = isinstance(array, list) and array and all(isinstance(table, dict) for table in array)
        self.check(bool(is_good), f"expected at least one [[{name}]] table", (name,))
        return [((name, index), table) for index, table in enumerate(array or [])]

    def read_environments(self, table: dict[str, Any], path: KeyPath) -> list[NamedEnvironment]:
        """Read the environments of one table: one for each point of its grid."""
        kind = str(table.get("kind"))
        plugins = {plugin.name: plugin for plugin in list_plugins("environment")}
        kinds = [*OPTIONS, *plugins]
        self.check(kind in kinds, f"kind must be one of {', '.join(kinds)}, got {kind!r}", (*path, "kind"))
        if kind in OPTIONS:
            keys = [declared.name for declared in fields(OPTIONS[kind])] + ["file"] * (kind == "ratings")
            read = partial(self.read_spec, kind, path)
        else:
            keys = self.list_arguments(plugins[kind], path)
            read = partial(EnvironmentSpec, kind, package=plugins[kind].distribution)
        self.check_keys(table, [*_EnvironmentTable.__struct_fields__, *keys], path)
        head = {k: v for k, v in table.items() if k in _EnvironmentTable.__struct_fields__}
        entry = self.convert(head, _EnvironmentTable, path)
        self.check_keys(entry.grid, keys, (*path, "grid"))
        fixed = {k: v for k, v in table.items() if k not in head}
        own = {name: getattr(entry, name) for name in ("rounds", "checkpoints", "list_length", "seeds")}
        return [
            NamedEnvironment(_add_suffix(entry.name, point), read(fixed | point), **own)
            for point in self.list_points(entry.grid, path)
        ]

    def list_arguments(self, plugin: Plugin, path: KeyPath) -> list[str]:
        """Return the names of the arguments of a plug-in's environment, except the seed."""
        arguments = self.locate_errors((*path, "kind"), plugin.list_arguments)
        return [name for name in arguments if name != "seed"]

    def read_spec(self, kind: str, path: KeyPath, values: dict[str, Any]) -> EnvironmentSpec:
        """Read one environment of this package, and make the path of its file absolute."""
        file = values.pop("file", None)
        for declared in fields(OPTIONS[kind]):
            value = values.get(declared.name)
            if value is not None and not isinstance(value, dict):  # events check their own values
                check = partial(declared.metadata["range"].check, declared.name, value)
                self.locate_errors((*path, declared.name), check)
        options = self.convert(values, OPTIONS[kind], path)
        if file is not None:
            file = str((self.folder / self.convert(file, str, (*path, "file"))).resolve())
        return EnvironmentSpec(kind, msgspec.to_builtins(asdict(options)), file)

    def read_policies(self, table: dict[str, Any], path: KeyPath, environments: Sequence[str]) -> list[PlannedPolicy]:
        """Read the policies of one table: one for each of its names and each point of its grid."""
        self.check_keys(table, _PolicyTable.__struct_fields__, path)
        entry = self.convert(table, _PolicyTable, path)
        for pattern in entry.on:
            is_used = any(matches_pattern(name, pattern) for name in environments)
            words = f"on: '{pattern}' is none of the environments: {'; '.join(environments)}"
            self.check(is_used, words, (*path, "on"))
        names = [entry.name] if isinstance(entry.name, str) else list(entry.name)
        # A file is looked up beside the plan.
        sources = [f"{self.folder.resolve()}/{name}" if ".py:" in name else name * (":" in name) for name in names]
        policies = [
            self.locate_errors((*path, "name"), partial(find_policy, name, source))
            for name, source in zip(names, sources, strict=True)
        ]
        constants = {name for policy in policies for name in to_plain_names(policy.constants())}
        self.check_keys(entry.constants, constants, (*path, "constants"))
        self.check_keys(entry.grid, constants, (*path, "grid"))
        self.check(bool(entry.oracle) or not entry.set_oracle, "set_oracle belongs to an oracle", (*path, "set_oracle"))
        if entry.oracle:
            self.check_oracle(entry.oracle, entry.set_oracle, 1, path)
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
            tune = partial(policy.with_known_constants, to_field_names(constants))
            policy = self.locate_errors((*path, key), tune)
        label = _add_suffix(entry.label or policy.name, point)
        more = {name: getattr(entry, name) for name in ("on", "warm", "oracle", "set_oracle")} | {"swept": tuple(point)}
        more |= {"source": source, "digest": hash_policy(policy) if source else ""}
        return PlannedPolicy(label, policy.name, list_values(policy), **more)

    def list_points(self, grid: Mapping[str, Sequence[Any]], path: KeyPath) -> list[dict[str, Any]]:
        """Return every combination of a grid's values; an empty grid has one."""
        for name, values in grid.items():
            self.check(len(values) > 0, f"grid.{name} must list at least one value", (*path, "grid", name))
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def check_keys(self, table: Mapping[str, Any], valid: Iterable[str], path: KeyPath) -> None:
        """Refuse a key that is not among the valid ones."""
        names = list(valid)
        for key in table:
            try:
                require_known("key", key, names)
            except ValueError as error:
                expected = "" if "expected" in str(error) else f" (expected one of {', '.join(sorted(names))})"
                raise self.make_error(f"{error}{expected}", (*path, key)) from None

    def convert(self, value: Any, shape: type[Shape], path: KeyPath) -> Shape:
        """Return the value in that shape, checked by msgspec."""
        try:
            return msgspec.convert(value, shape, strict=True)
        except msgspec.ValidationError as error:
            message, _, location = str(error).partition(" - at ")
            full_path = (*path, *_parse_key_path(location))
            name = ".".join(str(part) for part in full_path if isinstance(part, str))
            raise self.make_error(f"{name}: {message}".lstrip(": ").replace("`", "'"), full_path) from None

    def locate_errors(self, path: KeyPath, call: Callable[[], Shape]) -> Shape:
        """Call a function, and add the line to an error that it raises."""
        try:
            return call()
        except (ValueError, TypeError) as error:
            raise self.make_error(str(error), path) from None

    def check_oracle(self, name: str, arguments: Mapping[str, Value], length: int, path: KeyPath) -> None:
        """Refuse an oracle that cannot be built."""
        key = "set_oracle" if arguments else "oracle"
        self.locate_errors((*path, key), partial(build_oracle, name, length, arguments))

    def check_list_length(self, length: int, environment: NamedEnvironment) -> None:
        """Refuse lists that are longer than what an environment of this package offers."""
        most = environment.spec.declared.item_range[1] if environment.spec.kind in OPTIONS else length
        words = f"list_length must be <= items ({most}) of environment '{environment.name}', got {length}"
        self.check(length <= most, words, ("list_length",))

    def check_lengths(self, head: PlanHead, environment: NamedEnvironment, path: KeyPath) -> None:
        """Refuse more checkpoints than rounds, and seeds of an environment that repeat."""
        rounds, own = environment.rounds or head.rounds, environment.rounds or environment.checkpoints
        is_good = (environment.checkpoints or head.checkpoints) <= rounds
        self.check(is_good, f"checkpoints must be <= rounds ({rounds})", (*path, "name") if own else ("checkpoints",))
        if environment.seeds is not None:
            self.check_seeds(environment.seeds, (*path, "seeds"))

    def check_seeds(self, seeds: Sequence[int], path: KeyPath) -> None:
        """Refuse seeds that repeat, and none at all."""
        self.check(len(seeds) == len(set(seeds)) > 0, "seeds must be a count or distinct numbers", path)

    def check_distinct(self, name: str, labels: Sequence[str]) -> None:
        """Refuse a name that is used twice."""
        repeated = sorted({label for label in labels if labels.count(label) > 1})
        self.check(not repeated, f"{name} must have distinct names, got {', '.join(repeated)} twice", (name,))

    def check(self, condition: bool, message: str, path: KeyPath) -> None:
        if not condition:
            raise self.make_error(message, path)

    def make_error(self, message: str, path: KeyPath) -> ValueError:
        """Return an error that names the line of a key."""
        return ValueError(f"{self.source} line {find_line(self.text, path)}: {message}")


def _require_all_known(names: Iterable[str], labels: Iterable[str]) -> None:
    for name in names:
        require_known("policy of this plan", name, labels)


def _parse_key_path(location: str) -> KeyPath:
    """Read msgspec's '`$.seeds[0]`' as ("seeds", 0)."""
    parts = location.strip("`").removeprefix("$").replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdecimal() else part for part in parts if part and part != "...")


def _add_suffix(name: str, point: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in point.items())])


def _select_known(grid: Mapping[str, list[Value]], policy: Policy) -> dict[str, list[Value]]:
    names = to_plain_names(policy.constants())
    return {name: values for name, values in grid.items() if name in names}
