"""Plans: environments x policies x grids of constants x seeds, as values; ``plan_reader`` reads them from TOML."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from hashlib import file_digest
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fedcascade.checks import require
from fedcascade.environments.environment import Environment
from fedcascade.environments.matrices import Triplets, generate_ratings, to_triplets
from fedcascade.environments.options import ClusteredOptions, RatingsOptions, SyntheticOptions
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.plugins import get_plugin

Value = bool | int | float | str
OPTIONS: Mapping[str, type[ClusteredOptions]] = {"synthetic": SyntheticOptions, "ratings": RatingsOptions}


class EnvironmentSpec(Struct, frozen=True):
    """An environment as a plain value that a process on any machine can build; the seed comes with each run.

    ``kind`` is synthetic, ratings, or the name of a plug-in. ``file`` holds the ratings; without one, they are
    generated. ``package`` is that of a plug-in, with its version, so that no other version's results pass for its.
    """

    kind: str
    options: dict[str, Any]
    file: str | None = None
    package: str | None = None

    @property
    def declared(self) -> ClusteredOptions:
        """The options of an environment of this package."""
        require(self.kind in OPTIONS, f"the sizes of environment '{self.kind}' are known to its plug-in alone")
        return msgspec.convert(self.options, OPTIONS[self.kind])

    def build(self, seed: int) -> Environment:
        """Build the environment of one run."""
        if self.kind not in OPTIONS:
            environment: Environment = get_plugin("environment", self.kind).build(**self.options, seed=seed)
            return environment
        options = self.declared
        if isinstance(options, RatingsOptions):
            return _build_ratings(options, self.file, seed)
        assert isinstance(options, SyntheticOptions)
        return Synthetic(options, seed=seed)

    def hash_file(self) -> str | None:
        """Return the SHA-256 of the file of ratings, so that no other file's results pass for its."""
        return None if self.file is None else _hash_file(self.file)


@lru_cache(maxsize=4)
def _build_ratings(options: RatingsOptions, file: str | None, seed: int) -> Ratings:
    """Factorise the ratings once for systems that meet the same users, whose runs come one after another."""
    return Ratings(_read_ratings(file), options, seed=seed)


@cache
def _read_ratings(file: str | None) -> Triplets:
    """Read the ratings of a file, once in a process."""
    if file is None:
        return to_triplets(generate_ratings())
    from fedcascade.data.readers import read_ratings

    return read_ratings(file)


@cache
def _hash_file(file: str) -> str:
    path = Path(file)
    require(path.is_file(), f"ratings file '{path}' not found: give the path of an existing file")
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


class NamedEnvironment(Struct, frozen=True):
    """An environment and what it is called in tables and figures, with settings that replace those of its plan."""

    name: str
    spec: EnvironmentSpec
    rounds: int | None = None
    checkpoints: int | None = None
    list_length: int | None = None
    seeds: tuple[int, ...] | None = None


class System(Struct, frozen=True):
    """A policy with all its constants, and what it is called in tables and figures."""

    label: str
    policy: str
    constants: dict[str, Value]
    on: tuple[str, ...] = ("*",)  # patterns of the environments that it runs in
    warm: int = 0  # logged random lists per user that it learns from before the first round


class Compare(Struct, frozen=True, forbid_unknown_fields=True):
    """Which systems the others are compared with, and when.

    Regret is compared ``after`` so many rounds, counted as the plan counts them, or else at the end; and, where
    ``since`` is given, from that round on.
    """

    against: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    since: int = 0


class Plan(Struct, frozen=True, kw_only=True):
    """Every combination of ``environments``, the ``systems`` that run there and ``seeds`` is one run.

    ``rounds`` are those of a run, or ``per_user`` those of each of its users, on average.
    """

    name: str
    title: str
    rounds: int
    checkpoints: int
    list_length: int
    oracle: str
    set_oracle: dict[str, Value]
    seeds: tuple[int, ...]
    environments: tuple[NamedEnvironment, ...]
    systems: tuple[System, ...]
    per_user: bool = False
    compare: Compare = Compare()

    def describe_rounds(self) -> str:
        """How many rounds a run has, in words."""
        return f"{self.rounds:,} rounds for each user" if self.per_user else f"{self.rounds:,} rounds"


def select_systems(systems: Iterable[System], environment: str) -> list[System]:
    """Return the systems that run in an environment, in their order."""
    return [system for system in systems if any(matches_pattern(environment, pattern) for pattern in system.on)]


def matches_pattern(name: str, pattern: str) -> bool:
    """Return whether a pattern equals a name or, with its * and ?, matches it.

    A name may have brackets, which a pattern would read as a set of letters; hence the test for equality.
    """
    return name == pattern or fnmatchcase(name, pattern)


def resize_plan(plan: Plan, *, rounds: int | None = None, seeds: Sequence[int] | None = None) -> Plan:
    """Return the plan with other rounds or seeds, in every environment."""
    require(rounds is None or rounds >= 1, f"rounds must be a whole number >= 1, got {rounds}")
    length = plan.rounds if rounds is None else rounds
    replaced = {"rounds": None, "checkpoints": None} if rounds is not None else {}
    replaced |= {"seeds": None} if seeds is not None else {}
    return msgspec.structs.replace(
        plan,
        environments=tuple(msgspec.structs.replace(each, **replaced) for each in plan.environments),
        rounds=length,
        checkpoints=min(plan.checkpoints, length),
        seeds=plan.seeds if seeds is None else tuple(seeds),
    )


def to_plain_names(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Rename constants to what people type: ``lambda``, not ``lambda_``."""
    return {name.rstrip("_"): value for name, value in constants.items()}


def to_field_names(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Rename constants to the fields of policies: ``lambda_``, not ``lambda``."""
    return {"lambda_" if name == "lambda" else name: value for name, value in constants.items()}
