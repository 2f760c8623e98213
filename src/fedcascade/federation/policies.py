"""Policies as a table: a system is one row that names its parts. A new idea is a new row, or one new part."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from typing import Any

from fedcascade.checks import POSITIVE, require, require_known
from fedcascade.constants import (
    ConstantDescription,
    check_constants,
    constant,
    describe_constants,
    describe_field,
    enum_values,
    replace_constants,
)
from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.decisions import Decision, DownloadAndBuffer, LastDownload
from fedcascade.federation.grouping.graph.complete import HeterogeneityGraph
from fedcascade.federation.grouping.graph.guarded import GuardedGraph
from fedcascade.federation.grouping.partition import Alone, Everyone, Grouping, KnownClusters
from fedcascade.federation.grouping.phases import SplitAndMerge
from fedcascade.federation.grouping.population.partition import Population
from fedcascade.federation.personal import AlternatingMinimisation
from fedcascade.federation.replies import Asker, Everybody, Lagging, LocalServers, OnArrival, OneLearner, ReplyRule
from fedcascade.federation.sharing import Sharing
from fedcascade.federation.triggers import Always, Auxiliary, Determinant, Doubling, Never, Ratio, SyncBudget, Trigger
from fedcascade.federation.trust import Trust
from fedcascade.learning.confidence import Confidence, Constant, Oful, ProblemSize
from fedcascade.learning.discounts import PositionDiscounts
from fedcascade.plugins import Plugin, PluginError, list_plugins


class Order(StrEnum):
    """Algorithm 3 prints 'aggregate' before 'add the upload'; adding first is what its indices say."""

    UPLOAD_FIRST = "upload-first"
    AGGREGATE_FIRST = "aggregate-first"


class Drift(StrEnum):
    """What an agent does about a user whose preferences change."""

    IGNORE = "ignore"
    RESTART = "restart"


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
PARTS = (
    "grouping", "trigger", "decision", "reply_rule", "personal", "positions", "sharing", "trust", "changes",
    "confidence",
)  # fmt: skip


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
    positions: PositionDiscounts | None = None
    sharing: Sharing | None = None
    trust: Trust | None = None
    changes: ChangeDetection | None = None
    lambda_: float = constant(4.0, meaning="regulariser of the ridge estimate", symbol="lambda", range=POSITIVE)
    confidence: Confidence = Constant()  # noqa: RUF009 (frozen)
    formulas: tuple[Formula, ...] = ()
    order: Order = constant(Order.UPLOAD_FIRST, range=enum_values(Order),
                            meaning="whether the server adds an upload before or after it answers")  # fmt: skip
    drift: Drift = constant(Drift.IGNORE, range=enum_values(Drift),
                            meaning="whether an agent starts over when its own clicks show drift")  # fmt: skip
    yardstick: bool = False

    def __post_init__(self) -> None:
        check_constants(self)
        detects = self.changes is not None or Drift(self.drift) is Drift.RESTART
        object.__setattr__(self, "drift", Drift.RESTART if detects else Drift.IGNORE)
        object.__setattr__(self, "changes", (self.changes or ChangeDetection()) if detects else None)
        object.__setattr__(self, "order", Order(self.order))
        object.__setattr__(self, "formulas", tuple(sorted(self.formulas, key=lambda formula: formula.constant)))
        needed = TRIGGERS.get(type(self.reply_rule), Trigger)
        words = f"{type(self.reply_rule).__name__}() needs the trigger {needed.__name__}()"
        require(isinstance(self.trigger, needed), f"{words}, got {type(self.trigger).__name__}")
        # Elsewhere the discounted moment would have to travel, and a server takes those of the grid alone.
        fits = self.positions is None or (self.reply_rule.single_learner and self.personal is None)
        require(fits, "PositionDiscounts() needs the reply rule OneLearner() and no personal part")
        fits = not self.keeps_own_data or (isinstance(self.reply_rule, Asker) and self.personal is None)
        require(fits, "Trust() and ChangeDetection() need the reply rule Asker() and no personal part")
        # Elsewhere a download would miss what the agent takes for its own part of it.
        fits = not self.keeps_own_data or self.order is Order.UPLOAD_FIRST
        require(fits, f"Trust() and ChangeDetection() need the order {Order.UPLOAD_FIRST.value}, got {self.order}")

    @property
    def keeps_own_data(self) -> bool:
        """Whether agents keep their own data apart from what others sent."""
        return self.trust is not None or self.changes is not None

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
        return {description.name: description.value for description in self.describe_constants()}

    def describe_constants(self) -> list[ConstantDescription]:
        """Every constant of the policy and of its parts: name, value or formula, meaning, symbol, range."""
        own = [describe_field(field, getattr(self, field.name)) for field in fields(self) if field.metadata]
        parts = [description for part in PARTS for description in describe_constants(getattr(self, part))]
        formulas = [ConstantDescription(formula.constant, formula) for formula in self.formulas]
        described: dict[str, ConstantDescription] = {}
        for entry in [*own, *parts, *formulas]:  # the words of the first that has words, the value of the last
            described[entry.name] = replace(described.get(entry.name, entry), value=entry.value)
        return list(described.values())

    def parse_constant(self, name: str, text: str) -> Any:
        """The value that a text stands for as the constant of that name; it is refused with the constant's range.

        >>> POLICIES["fedc3ucb-h"].parse_constant("alpha_d", "1.5")
        1.5
        """
        described = {description.name: description for description in self.describe_constants()}
        require_known(f"constant of {self.name}", name, described)
        return described[name].parse(text)

    def describe(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in ("name", "summary", "yardstick", "agents", "users")}
        constants = self.constants()
        for name, value in constants.items():
            constants[name] = str(value) if isinstance(value, Formula) or value == math.inf else value
        return row | {"constants": constants}

    def with_drift(self, constants: Mapping[str, Any]) -> "Policy":
        """This policy with the ``drift`` of these constants, if they name it: change detection has more constants."""
        is_new = constants.get("drift", self.drift) != self.drift
        return replace(self, drift=constants["drift"], changes=None) if is_new else self

    def with_known_constants(self, constants: Mapping[str, Any]) -> "Policy":
        """This policy with those of the constants that it has."""
        own = self.with_drift(constants).constants()
        return self.with_constants(**{name: value for name, value in constants.items() if name in own})

    def with_constants(self, **constants: Any) -> "Policy":
        """This policy with other constants: each part takes those that it has; one that none has is refused."""
        policy = self.with_drift(constants)
        for name in constants:
            require_known(f"constant of {self.name}", name, policy.constants())
        unchanged = [formula for formula in self.formulas if formula.constant not in constants]
        formulas = [value for value in constants.values() if isinstance(value, Formula)]
        numbers = {name: value for name, value in constants.items() if not isinstance(value, Formula)}
        own = {name: numbers[name] for name in ("lambda_", "order") if name in numbers}
        parts = {name: replace_constants(getattr(policy, name), numbers) for name in PARTS}
        return replace(policy, **parts, **own, formulas=tuple(unchanged + formulas))

    def with_beta(self, beta: float) -> "Policy":
        """This policy with a constant beta, whatever its own was."""
        formulas = tuple(formula for formula in self.formulas if formula.constant != "beta")
        return replace(self, confidence=Constant(beta=beta), formulas=formulas)

    def fit_to(self, problem: ProblemSize) -> "Policy":
        """This policy with every formula worked out for a problem, lambda first: others may need it."""
        policy = self
        for formula in sorted(self.formulas, key=lambda formula: formula.constant != "lambda_"):
            policy = policy.with_constants(**{formula.constant: formula.value(problem, policy.lambda_)})
        return policy


def compute_budget(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """DisLinUCB's D, which matches the regret of one learner."""
    return problem.rounds / (problem.users * problem.dimension * math.log(max(2, problem.rounds)))


def get_list_length(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """CLUB-cascade's lambda."""
    return float(problem.list_length)


def compute_edge_width(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """CLUB-cascade's factor before the sum of two F's."""
    return 8.0 * math.sqrt(problem.dimension)


def compute_club_beta(problem: ProblemSize, lambda_: float) -> float:
    """CLUB-cascade's beta."""
    d, rounds = problem.dimension, problem.rounds
    logs = d * math.log1p(rounds / (d * lambda_)) + 2.0 * math.log(4.0 * rounds * problem.list_length)
    return math.sqrt(logs) + math.sqrt(lambda_)


CLUB = (
    Formula("lambda_", "K", get_list_length),
    Formula("beta", "sqrt(d ln(1 + T / (d lambda)) + 2 ln(4 T K)) + sqrt(lambda)", compute_club_beta),
    Formula("alpha_d", "8 sqrt(d)", compute_edge_width),
)
NARROW = Oful(noise=0.1, delta=0.1)
DEFAULT_POLICY = "population"  # of every command that is not the paper's evaluation
DEPLOYED = Constant(beta=0.7)  # right without tuning in all worlds that were tried: docs/how-to-choose-a-policy.md
SCALED = Constant(beta=1.5)  # in standard deviations of a click, which ``Trust`` learns

POLICIES: Mapping[str, Policy] = {
    row.name: row
    for row in (
        # name, who shares, when an agent speaks, what it decides with, in words, who is answered
        Policy("oful", Everyone(), Never(), DownloadAndBuffer(),
               "one learner serves everybody and learns in every round", OneLearner()),
        Policy("c3-ucb", Everyone(), Never(), DownloadAndBuffer(),
               "the same with lists: one learner serves everybody", OneLearner(), positions=PositionDiscounts()),
        Policy("dislinucb", Everyone(), SyncBudget(), DownloadAndBuffer(),
               "an agent that has learned enough makes all agents upload and download at once", Everybody(),
               formulas=(Formula("budget", "T / (|U| d ln T)", compute_budget),)),
        Policy("club-cascade", HeterogeneityGraph(), Always(), LastDownload(),
               "the server serves every round: a graph of users who may be alike, always up to date", OnArrival(),
               formulas=CLUB),
        Policy("async-linucb", Everyone(), Ratio(), DownloadAndBuffer(),
               "an agent that has learned enough uploads; the server pushes to those who miss too much", Lagging(),
               lambda_=0.1, confidence=NARROW),
        Policy("async-linucb-am", Everyone(), Ratio(), DownloadAndBuffer(),
               "the same for a part of theta that all share; beside it, each agent keeps a part of its own", Lagging(),
               AlternatingMinimisation(), lambda_=0.1, confidence=NARROW),
        Policy("phase-fclub", SplitAndMerge(), Always(), LastDownload(),
               "local servers pool their users and split them on evidence; when a phase starts, clusters are merged",
               LocalServers()),
        Policy("fedlinucb", Everyone(), Determinant(), LastDownload(),
               "everybody is taken to be alike; exchanges when an agent has learned enough"),
        Policy("fedc3ucb-h", HeterogeneityGraph(), Determinant() | Auxiliary(), LastDownload(),
               "the paper's system: a graph of users who may be alike, rare random exchanges beside the needed ones"),
        Policy("force-comm", HeterogeneityGraph(), Determinant() | Doubling(), LastDownload(),
               "the same, but an exchange at an agent's 1st, 2nd, 4th, 8th... arrival instead of random ones"),
        Policy("no-auxiliary", HeterogeneityGraph(), Determinant(), LastDownload(),
               "the same, but exchanges only when an agent has learned enough"),
        Policy("fedind", Alone(), Never(), DownloadAndBuffer(),
               "every agent learns alone, every round, and never speaks", confidence=DEPLOYED),
        Policy("population", Population(), Determinant(alpha_c=0.5) | Doubling(), DownloadAndBuffer(),
               "our own: an answer is the posterior of the user's theta in a model of all users",
               trust=Trust(), lambda_=0.01, confidence=SCALED),
        Policy("known-clusters", KnownClusters(), Determinant(), LastDownload(),
               "yardstick: the server is told the true clusters", yardstick=True, confidence=DEPLOYED),
    )
}  # fmt: skip

REPLACED = {
    "fedc3ucb-e": "population", "fedc3ucb-p": "population", "fedc3ucb-l": "population", "fedc3ucb-ts": "population",
    "fedc3ucb-ht": "fedc3ucb-h", "fedind-c": "fedind",
}  # fmt: skip


def guard_policy(policy: Policy) -> Policy:
    """The policy as a service runs it, among people who lie, look or say nothing.

    An answer holds of others what ``Sharing`` lets in, and in a graph nobody of little data connects others.
    """
    grouping = policy.grouping
    if type(grouping) is HeterogeneityGraph:
        grouping = GuardedGraph(alpha_d=grouping.alpha_d)
    return replace(policy, grouping=grouping, sharing=policy.sharing or Sharing())


@cache
def load_policies() -> Mapping[str, Policy]:
    """The policies of this package and of plug-ins; a plug-in that cannot be loaded is left out with a warning."""
    offered: dict[str, Policy] = {}
    for plugin in list_plugins("policy"):
        try:
            offered[plugin.name] = _load_plugin_policy(plugin)
        except PluginError as error:
            warnings.warn(str(error), stacklevel=2)
    return offered | dict(POLICIES)


def get_policy(name: str) -> Policy:
    """The policy of that name; an unknown one is refused with the nearest name."""
    if name in POLICIES:
        return POLICIES[name]
    require(name not in REPLACED, f"policy '{name}' no longer exists: use '{REPLACED.get(name)}'")
    plugins = {plugin.name: plugin for plugin in list_plugins("policy")}
    require_known("policy", name, [*POLICIES, *plugins])
    return _load_plugin_policy(plugins[name])


def _load_plugin_policy(plugin: Plugin) -> Policy:
    policy = plugin.load()
    if not isinstance(policy, Policy):
        raise plugin.refuse(f"it is of type {type(policy).__name__}, not a Policy")
    if policy.name != plugin.name:
        raise plugin.refuse(f"its entry point must have the policy's name '{policy.name}'")
    return policy
