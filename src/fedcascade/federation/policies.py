"""Policies as a table: a system is one row that names its parts. A new idea is a new row, or one new part."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from fedcascade.checks import known, positive
from fedcascade.federation.decisions import Decision, DownloadAndBuffer, LastDownload
from fedcascade.federation.evidence import Evidence
from fedcascade.federation.grouping import Alone, Everyone, Grouping, HeterogeneityGraph, KnownClusters
from fedcascade.federation.triggers import Auxiliary, Determinant, Doubling, Never, Trigger
from fedcascade.learning.confidence import Confidence, Constant

Part = TypeVar("Part")


class Order(StrEnum):
    """Algorithm 3 prints 'aggregate' before 'add the upload'; adding first is what its indices say."""

    UPLOAD_FIRST = "upload-first"
    AGGREGATE_FIRST = "aggregate-first"


@dataclass(frozen=True)
class Policy:
    """A system: who shares, when an agent speaks, what it decides with, how far it trusts an estimate.

    >>> POLICIES["fedc3ucb-h"].constants()["alpha_d"]
    7.0
    >>> POLICIES["fedc3ucb-h"].tuned(alpha_c=2.0).constants()["alpha_c"]
    2.0
    """

    name: str
    grouping: Grouping
    trigger: Trigger
    decision: Decision
    summary: str = ""
    lambda_: float = 4.0
    confidence: Confidence = Constant()  # noqa: RUF009 (frozen)
    order: Order = Order.UPLOAD_FIRST
    yardstick: bool = False

    def __post_init__(self) -> None:
        positive("lambda", self.lambda_)
        known("order", str(self.order), [order.value for order in Order])
        object.__setattr__(self, "order", Order(self.order))

    def constants(self) -> dict[str, Any]:
        """Every constant of the policy and of its parts, by name."""
        found: dict[str, Any] = {"lambda_": self.lambda_, "order": self.order}
        for part in (self.grouping, self.trigger, self.decision, self.confidence):
            found |= _constants(part)
        return found

    def described(self) -> dict[str, Any]:
        """This row as plain data."""
        return {
            "name": self.name,
            "summary": self.summary,
            "yardstick": self.yardstick,
            "constants": self.constants(),
        }

    def tuned_where_known(self, constants: Mapping[str, Any]) -> "Policy":
        """This policy with those of the constants that it has."""
        had = self.constants()
        return self.tuned(**{name: value for name, value in constants.items() if name in had})

    def tuned(self, **constants: Any) -> "Policy":
        """This policy with other constants: each part takes those that it has; one that none has is refused."""
        for name in constants:
            known(f"constant of {self.name}", name, self.constants())
        own = {name: constants[name] for name in ("lambda_", "order") if name in constants}
        parts = {
            name: _tuned(getattr(self, name), constants) for name in ("grouping", "trigger", "decision", "confidence")
        }
        return replace(self, **parts, **own)


POLICIES: Mapping[str, Policy] = {
    row.name: row
    for row in (
        # name, who shares, when an agent speaks, what it decides with
        Policy("fedc3ucb-h", HeterogeneityGraph(), Determinant() | Auxiliary(), LastDownload(),
               "the paper's system: a graph of users who may be alike, rare random exchanges beside the needed ones"),
        Policy("force-comm", HeterogeneityGraph(), Determinant() | Doubling(), LastDownload(),
               "the same, but an exchange at an agent's 1st, 2nd, 4th, 8th... arrival instead of random ones"),
        Policy("no-auxiliary", HeterogeneityGraph(), Determinant(), LastDownload(),
               "the same, but exchanges only when an agent has learned enough"),
        Policy("fedlinucb", Everyone(), Determinant(), LastDownload(),
               "everybody is taken to be alike; exchanges when an agent has learned enough"),
        Policy("fedind", Alone(), Never(), DownloadAndBuffer(),
               "every agent learns alone, every round, and never speaks"),
        Policy("fedc3ucb-e", Evidence(), Determinant(alpha_c=7.0), DownloadAndBuffer(),
               "beyond the paper: users start apart and join on evidence; agents also decide with their own data",
               confidence=Constant(beta=2.0)),
        Policy("known-clusters", KnownClusters(), Determinant(), LastDownload(),
               "yardstick: the server is told the true clusters", yardstick=True),
    )
}  # fmt: skip


@cache
def installed() -> Mapping[str, Policy]:
    """The policies of this package and those that other packages offer (entry point ``fedcascade.policies``)."""
    offered = [entry.load() for entry in entry_points(group="fedcascade.policies")]
    return {row.name: row for row in [*offered, *POLICIES.values()]}


def policy(name: str) -> Policy:
    """The policy of that name; an unknown one is refused with the nearest name."""
    known("policy", name, installed())
    return installed()[name]


def _constants(part: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(part) if is_dataclass(part) else ():
        value = getattr(part, field.name)
        found |= _constants(value) if is_dataclass(value) else {field.name: value}
    return found


def _tuned(part: Part, constants: Mapping[str, Any]) -> Part:
    changed = {
        field.name: _tuned(getattr(part, field.name), constants)
        if is_dataclass(getattr(part, field.name))
        else constants.get(field.name, getattr(part, field.name))
        for field in (fields(part) if is_dataclass(part) else ())
    }
    return replace(part, **changed) if changed else part  # type: ignore[type-var]
