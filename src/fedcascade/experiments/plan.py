"""Plans: environments x policies x grids of constants x seeds, as values; ``plan_reader`` reads them from TOML."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fedcascade.checks import require
from fedcascade.environments.environment import Environment
from fedcascade.environments.matrices import Triplets, generate_ratings, to_triplets
from fedcascade.environments.options import ClusteredOptions, RatingsOptions, SyntheticOptions
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import Formula, Policy
from fedcascade.plugins import get_plugin

Value = bool | int | float | str
Count = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
OPTIONS: Mapping[str, type[ClusteredOptions]] = {"synthetic": SyntheticOptions, "ratings": RatingsOptions}


class EnvironmentSpec(Struct, frozen=True):
    """An environment as a plain value that a process on any machine can build; each run brings its seed.

    ``kind`` is synthetic, ratings, or the name of a plug-in. ``file`` holds the ratings; without one, they are
    generated. ``package`` names a plug-in's package and version, so that results of another version are not reused.
    """

    kind: str
    options: dict[str, Any]
    file: str | None = None
    package: str | None = None

    @property
    def declared(self) -> ClusteredOptions:
        """The options of an environment of this package."""
        require(self.kind in OPTIONS, f"only its plug-in knows the sizes of environment '{self.kind}'")
        return msgspec.convert(self.options, OPTIONS[self.kind])

    def build(self, seed: int) -> Environment:
        if self.kind not in OPTIONS:
            environment: Environment = get_plugin("environment", self.kind).build(**self.options, seed=seed)
            return environment
        options = self.declared
        if isinstance(options, RatingsOptions):
            return _build_ratings(options, self.file, seed)
        assert isinstance(options, SyntheticOptions)
        return Synthetic(options, seed=seed)


@lru_cache(maxsize=4)
def _build_ratings(options: RatingsOptions, file: str | None, seed: int) -> Ratings:
    """Factorise the ratings once for policies that meet the same users: their runs follow one another."""
    return Ratings(_read_ratings(file), options, seed=seed)


@cache
def _read_ratings(file: str | None) -> Triplets:
    """Read the ratings of a file, once in a process."""
    if file is None:
        return to_triplets(generate_ratings())
    from fedcascade.data.readers import read_ratings

    return read_ratings(file)


@cache
def hash_file(file: str) -> str:
    """Return the SHA-256 of a ratings file, so that results of another file are not reused."""
    path = Path(file)
    require(path.is_file(), f"ratings file '{path}' not found: give the path of an existing file")
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


class NamedEnvironment(Struct, frozen=True):
    """An environment with its name in tables and figures, and with settings that replace those of its plan."""

    name: str
    spec: EnvironmentSpec
    rounds: int | None = None
    checkpoints: int | None = None
    list_length: int | None = None
    seeds: tuple[int, ...] | None = None


class PlannedPolicy(Struct, frozen=True):
    """A policy with all its constants, and its label in tables and figures."""

    label: str
    policy: str
    constants: dict[str, Value]
    on: tuple[str, ...] = ("*",)  # patterns of the environments that it runs in
    warm: int = 0  # logged random lists per user that it learns from before the first round
    oracle: str = ""  # instead of the plan's, with its own arguments
    set_oracle: dict[str, Value] = {}
    source: str = ""  # of a policy that no package offers: file.py:attribute, module:attribute, or a given object
    swept: tuple[str, ...] = ()  # constants of the grid of which it is a point; its label ends with their values
    digest: str = ""  # of that policy's parts and their code, so that results of other code are not reused


class Compare(Struct, frozen=True, forbid_unknown_fields=True):
    """The baselines of a plan's comparisons, and the rounds at which regret is compared.

    All rounds count as the plan counts them: per run or per user. Regret is compared at the end unless ``after`` is
    given.
    """

    against: tuple[str, ...] = ()  # labels of the baselines
    after: tuple[int, ...] = ()  # compare regret after these rounds
    since: int = 0  # also compare the regret gained from this round on
    worst_from: int = 0  # also report the largest share over all checkpoints from this round on


class PlanHead(Struct, frozen=True, kw_only=True):
    """The keys of a plan beside its environments and policies.

    ``rounds`` counts the rounds of a run or, with ``per_user``, the average rounds of each user.
    """

    name: str
    title: str = ""
    rounds: Count
    per_user: bool = False
    checkpoints: Count = 100
    list_length: Count = 4
    oracle: str = "top-k"
    set_oracle: dict[str, Value] = {}
    seeds: Count | tuple[Seed, ...] = 3
    compare: Compare = Compare()


class Plan(PlanHead, frozen=True, kw_only=True):
    """Environments, policies and seeds; every combination is one run."""

    seeds: tuple[int, ...]
    environments: tuple[NamedEnvironment, ...]
    policies: tuple[PlannedPolicy, ...]

    def describe_rounds(self) -> str:
        """Describe the length of a run."""
        return f"{self.rounds:,} rounds for each user" if self.per_user else f"{self.rounds:,} rounds"


def select_policies(policies: Iterable[PlannedPolicy], environment: str) -> list[PlannedPolicy]:
    """Return the policies that run in an environment, in their order."""
    return [each for each in policies if any(matches_pattern(environment, pattern) for pattern in each.on)]


def matches_pattern(name: str, pattern: str) -> bool:
    """Return whether a pattern equals a name or, with its * and ?, matches it.

    A name may have brackets, which a pattern would read as a set of letters; hence the test for equality.
    """
    return name == pattern or fnmatchcase(name, pattern)


def to_plain_names(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Rename constants to their typed names: ``lambda``, not ``lambda_``."""
    return {name.rstrip("_"): value for name, value in constants.items()}


def to_field_names(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Rename constants to the fields of policies: ``lambda_``, not ``lambda``."""
    return {"lambda_" if name == "lambda" else name: value for name, value in constants.items()}


def list_values(policy: Policy) -> dict[str, Value]:
    """Return the constants of a policy as plain values, except those that it derives from the problem."""
    return {
        name: str(value) if isinstance(value, str) else value
        for name, value in to_plain_names(policy.constants()).items()
        if not isinstance(value, Formula)
    }
