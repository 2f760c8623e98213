"""Plans: environments x policies x grids of constants x seeds, as values; ``plan_reader`` reads them from TOML."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Struct

from fedcascade.checks import require
from fedcascade.experiments.environments import EnvironmentSpec

Value = bool | int | float | str


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
