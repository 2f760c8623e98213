"""Policies as a table: a system is one row that names its parts. A new idea is a new row, or one new part."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from fedcascade.checks import require, require_known, require_positive
from fedcascade.federation.decisions import Decision, DownloadAndBuffer, LastDownload
from fedcascade.federation.grouping.evidence import Evidence
from fedcascade.federation.grouping.graph import HeterogeneityGraph
from fedcascade.federation.grouping.partition import Alone, Everyone, Grouping, KnownClusters
from fedcascade.federation.grouping.phases import SplitAndMerge
from fedcascade.federation.personal import AlternatingMinimisation
from fedcascade.federation.replies import Asker, Everybody, Lagging, OnArrival, OneLearner, ReplyRule
from fedcascade.federation.triggers import (
    Always,
    Auxiliary,
    Determinant,
    Doubling,
    Never,
    Ratio,
    SyncBudget,
    Trigger,
)
from fedcascade.learning.confidence import Confidence, Constant, Oful, ProblemSize

Part = TypeVar("Part")


class Order(StrEnum):
    """Algorithm 3 prints 'aggregate' before 'add the upload'; adding first is what its indices say."""

    UPLOAD_FIRST = "upload-first"
    AGGREGATE_FIRST = "aggregate-first"


@dataclass(frozen=True)
class Formula:
    """A constant that follows from the sizes of the problem, and in words how."""

    constant: str
    words: str
    value: Callable[[ProblemSize, float], float]

    def __str__(self) -> str:
        return self.words


# A request and an upload make one exchange; one learner has nobody to speak with.
TRIGGERS: Mapping[type[ReplyRule], type[Trigger]] = {OnArrival: Always, OneLearner: Never}
PARTS = ("grouping", "trigger", "decision", "reply_rule", "personal", "confidence")


@dataclass(frozen=True)
class Policy:
    """A system: who shares, when an agent speaks, what it decides with, who is answered, how far it trusts an estimate.

    >>> POLICIES["fedc3ucb-h"].constants()["alpha_d"]
    7.0
    >>> POLICIES["fedc3ucb-h"].with_constants(alpha_c=2.0).constants()["alpha_c"]
    2.0
    """

    name: str
    grouping: Grouping
    trigger: Trigger
    decision: Decision
    summary: str = ""
    reply_rule: ReplyRule = Asker()  # noqa: RUF009 (frozen)
    personal: AlternatingMinimisation | None = None
    lambda_: float = 4.0
    confidence: Confidence = Constant()  # noqa: RUF009 (frozen)
    formulas: tuple[Formula, ...] = ()
    order: Order = Order.UPLOAD_FIRST
    yardstick: bool = False

    def __post_init__(self) -> None:
        require_positive("lambda", self.lambda_)
        require_known("order", str(self.order), [order.value for order in Order])
        object.__setattr__(self, "order", Order(self.order))
        object.__setattr__(self, "formulas", tuple(sorted(self.formulas, key=lambda formula: formula.constant)))
        needed = TRIGGERS.get(type(self.reply_rule), Trigger)
        words = f"{type(self.reply_rule).__name__}() needs the trigger {needed.__name__}()"
        require(isinstance(self.trigger, needed), f"{words}, got {type(self.trigger).__name__}")

    @property
    def agents(self) -> str:
        """How agents speak, in the words of Table 1."""
        return self.reply_rule.agents

    @property
    def users(self) -> str:
        """Whether users may differ, in the words of Table 1."""
        return "homogeneous" if isinstance(self.grouping, Everyone) and self.personal is None else "heterogeneous"

    def constants(self) -> dict[str, Any]:
        """Every constant of the policy and of its parts, by name; one that follows from the problem is a Formula."""
        found: dict[str, Any] = {"lambda_": self.lambda_, "order": self.order}
        for part in PARTS:
            found |= _constants(getattr(self, part))
        return found | {formula.constant: formula for formula in self.formulas}

    def describe(self) -> dict[str, Any]:
        """This row as plain data."""
        return {
            "name": self.name,
            "summary": self.summary,
            "yardstick": self.yardstick,
            "agents": self.agents,
            "users": self.users,
            "constants": {
                name: str(value) if isinstance(value, Formula) or value == math.inf else value
                for name, value in self.constants().items()
            },
        }

    def with_known_constants(self, constants: Mapping[str, Any]) -> "Policy":
        """This policy with those of the constants that it has."""
        had = self.constants()
        return self.with_constants(**{name: value for name, value in constants.items() if name in had})

    def with_constants(self, **constants: Any) -> "Policy":
        """This policy with other constants: each part takes those that it has; one that none has is refused."""
        for name in constants:
            require_known(f"constant of {self.name}", name, self.constants())
        kept = [formula for formula in self.formulas if formula.constant not in constants]
        given = [value for value in constants.values() if isinstance(value, Formula)]
        numbers = {name: value for name, value in constants.items() if not isinstance(value, Formula)}
        own = {name: numbers[name] for name in ("lambda_", "order") if name in numbers}
        parts = {name: _tuned(getattr(self, name), numbers) for name in PARTS}
        return replace(self, **parts, **own, formulas=tuple(kept + given))

    def with_beta(self, beta: float) -> "Policy":
        """This policy with a constant beta, whatever its own was."""
        kept = tuple(formula for formula in self.formulas if formula.constant != "beta")
        return replace(self, confidence=Constant(beta=beta), formulas=kept)

    def fit_to(self, problem: ProblemSize) -> "Policy":
        """This policy with every formula worked out for a problem, lambda first: others may need it."""
        ordered = sorted(self.formulas, key=lambda formula: formula.constant != "lambda_")
        policy = self
        for formula in ordered:
            policy = policy.with_constants(**{formula.constant: formula.value(problem, policy.lambda_)})
        return policy


def match_regret(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """DisLinUCB's D."""
    return problem.rounds / (problem.users * problem.dimension * math.log(max(2, problem.rounds)))


def list_length(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """CLUB-cascade's lambda."""
    return float(problem.list_length)


def edge_width(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """CLUB-cascade's factor before the sum of two F's."""
    return 8.0 * math.sqrt(problem.dimension)


def club_beta(problem: ProblemSize, lambda_: float) -> float:
    """CLUB-cascade's beta."""
    d, rounds = problem.dimension, problem.rounds
    logs = d * math.log1p(rounds / (d * lambda_)) + 2.0 * math.log(4.0 * rounds * problem.list_length)
    return math.sqrt(logs) + math.sqrt(lambda_)


CLUB = (
    Formula("lambda_", "K", list_length),
    Formula("beta", "sqrt(d ln(1 + T / (d lambda)) + 2 ln(4 T K)) + sqrt(lambda)", club_beta),
    Formula("alpha_d", "8 sqrt(d)", edge_width),
)
NARROW = Oful(noise=0.1, delta=0.1)

POLICIES: Mapping[str, Policy] = {
    row.name: row
    for row in (
        # name, who shares, when an agent speaks, what it decides with, in words, who is answered
        Policy("oful", Everyone(), Never(), DownloadAndBuffer(),
               "one learner serves everybody and learns in every round", OneLearner()),
        Policy("c3-ucb", Everyone(), Never(), DownloadAndBuffer(),
               "the same with lists: one learner serves everybody", OneLearner()),
        Policy("dislinucb", Everyone(), SyncBudget(), DownloadAndBuffer(),
               "an agent that has learned enough makes all agents upload and download at once", Everybody(),
               formulas=(Formula("budget", "T / (|U| d ln T)", match_regret),)),
        Policy("club-cascade", HeterogeneityGraph(), Always(), LastDownload(),
               "the server serves every round: a graph of users who may be alike, always up to date", OnArrival(),
               formulas=CLUB),
        Policy("async-linucb", Everyone(), Ratio(), DownloadAndBuffer(),
               "an agent that has learned enough uploads; the server pushes to those who miss too much", Lagging(),
               lambda_=0.1, confidence=NARROW),
        Policy("async-linucb-am", Everyone(), Ratio(), DownloadAndBuffer(),
               "the same for a part of theta that all share; beside it, each agent keeps a part of its own", Lagging(),
               AlternatingMinimisation(), lambda_=0.1, confidence=NARROW),
        Policy("phase-fclub", SplitAndMerge(), Ratio(gamma_u=1.01), DownloadAndBuffer(),
               "local servers split their users on evidence; at the end of each phase a global one merges clusters",
               Lagging(gamma_d=1.01)),
        Policy("fedlinucb", Everyone(), Determinant(), LastDownload(),
               "everybody is taken to be alike; exchanges when an agent has learned enough"),
        Policy("fedc3ucb-h", HeterogeneityGraph(), Determinant() | Auxiliary(), LastDownload(),
               "the paper's system: a graph of users who may be alike, rare random exchanges beside the needed ones"),
        Policy("force-comm", HeterogeneityGraph(), Determinant() | Doubling(), LastDownload(),
               "the same, but an exchange at an agent's 1st, 2nd, 4th, 8th... arrival instead of random ones"),
        Policy("no-auxiliary", HeterogeneityGraph(), Determinant(), LastDownload(),
               "the same, but exchanges only when an agent has learned enough"),
        Policy("fedind", Alone(), Never(), DownloadAndBuffer(),
               "every agent learns alone, every round, and never speaks"),
        Policy("fedc3ucb-e", Evidence(), Determinant(alpha_c=5.0), DownloadAndBuffer(),
               "beyond the paper: others' data count by the probability that they are alike; own data count at once",
               confidence=Constant(beta=2.0)),
        Policy("known-clusters", KnownClusters(), Determinant(), LastDownload(),
               "yardstick: the server is told the true clusters", yardstick=True),
    )
}  # fmt: skip


@cache
def load_policies() -> Mapping[str, Policy]:
    """The policies of this package and those that other packages offer (entry point ``fedcascade.policies``)."""
    offered = [entry.load() for entry in entry_points(group="fedcascade.policies")]
    return {row.name: row for row in [*offered, *POLICIES.values()]}


def get_policy(name: str) -> Policy:
    """The policy of that name; an unknown one is refused with the nearest name."""
    require_known("policy", name, load_policies())
    return load_policies()[name]


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
