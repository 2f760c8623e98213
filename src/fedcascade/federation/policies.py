"""Policies: each is a row of parts in ``POLICIES``."""

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
from fedcascade.federation.decisions import Decision, DownloadAndBuffer, ItemShares, LastDownload
from fedcascade.federation.grouping.graph.complete import ClubGraph, HeterogeneityGraph
from fedcascade.federation.grouping.graph.guarded import GuardedGraph
from fedcascade.federation.grouping.partition import Alone, Everyone, Grouping, KnownClusters
from fedcascade.federation.grouping.phases import SplitAndMerge
from fedcascade.federation.grouping.population.partition import Population
from fedcascade.federation.personal import AlternatingMinimisation
from fedcascade.federation.privacy import PrivateUploads
from fedcascade.federation.replies import AllAgents, Asker, Lagging, LocalServers, OnArrival, OneLearner, ReplyRule
from fedcascade.federation.sharing import Sharing
from fedcascade.federation.triggers import Always, Auxiliary, Determinant, Doubling, Never, Ratio, SyncBudget, Trigger
from fedcascade.federation.trust import Trust
from fedcascade.learning.confidence import Confidence, Constant, Oful, ProblemSize
from fedcascade.plugins import Plugin, PluginError, list_plugins


class Order(StrEnum):
    """Order of adding an upload and answering it. Algorithm 3 prints the answer first; its indices add first."""

    UPLOAD_FIRST = "upload-first"
    AGGREGATE_FIRST = "aggregate-first"


class Drift(StrEnum):
    """Reaction of an agent to drift of its user."""

    IGNORE = "ignore"
    RESTART = "restart"


@dataclass(frozen=True)
class Formula:
    """A constant that is computed from the sizes of the problem."""

    constant: str
    words: str
    value: Callable[[ProblemSize, float], float]

    def __str__(self) -> str:
        return self.words


# Triggers that a reply rule requires.
TRIGGERS: Mapping[type[ReplyRule], type[Trigger]] = {OnArrival: Always, OneLearner: Never}
PARTS = (
    "grouping", "trigger", "decision", "reply_rule", "personal", "sharing", "trust", "changes", "privacy", "confidence",
)  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """A policy: the parts that decide which agents share, when they upload, and how lists are chosen.

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
    sharing: Sharing | None = None
    trust: Trust | None = None
    changes: ChangeDetection | None = None
    privacy: PrivateUploads | None = None
    lambda_: float = constant(4.0, meaning="regulariser of the ridge estimate", symbol="lambda", range=POSITIVE)
    confidence: Confidence = Constant()  # noqa: RUF009 (frozen)
    formulas: tuple[Formula, ...] = ()
    order: Order = constant(
        Order.UPLOAD_FIRST,
        meaning="whether the server adds an upload before or after it answers",
        range=enum_values(Order),
    )
    drift: Drift = constant(
        Drift.IGNORE, meaning="whether an agent starts over when its own clicks show drift", range=enum_values(Drift)
    )
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
        fits = not self.keeps_own_data or (isinstance(self.reply_rule, Asker) and self.personal is None)
        require(fits, "Trust() and ChangeDetection() need the reply rule Asker() and no personal part")
        # With the other order a download lacks the upload that the agent subtracts as its own data.
        fits = not self.keeps_own_data or self.order is Order.UPLOAD_FIRST
        require(fits, f"Trust() and ChangeDetection() need the order {Order.UPLOAD_FIRST.value}, got {self.order}")

        # The time of an upload must not depend on data, and an answer must not be taken for the agent's own data.
        is_scheduled = all(trigger.is_scheduled for trigger in self.trigger.list_joined())
        fits = self.privacy is None or (is_scheduled and self.trust is not None and self.changes is None)
        require(fits, "PrivateUploads() needs Trust(), no ChangeDetection() and a scheduled trigger, like Doubling()")

    def __repr__(self) -> str:
        constants = [f"{name.rstrip('_')}={value}" for name, value in self.constants().items()]
        return f"<Policy {self.name}: {', '.join(constants)}>"

    @property
    def keeps_own_data(self) -> bool:
        """True if agents keep their own data apart from downloads."""
        return self.trust is not None or self.changes is not None

    @property
    def agents(self) -> str:
        """The column *agents* of Table 1."""
        return self.reply_rule.agents

    @property
    def users(self) -> str:
        """The column *users* of Table 1."""
        return "homogeneous" if isinstance(self.grouping, Everyone) and self.personal is None else "heterogeneous"

    def constants(self) -> dict[str, Any]:
        """Return the values of all constants by name; those that depend on the problem are Formulas."""
        return {description.name: description.value for description in self.describe_constants()}

    def describe_constants(self) -> list[ConstantDescription]:
        """Describe all constants of the policy and its parts."""
        own = [describe_field(field, getattr(self, field.name)) for field in fields(self) if field.metadata]
        parts = [description for part in PARTS for description in describe_constants(getattr(self, part))]
        formulas = [ConstantDescription(formula.constant, formula) for formula in self.formulas]
        described: dict[str, ConstantDescription] = {}
        for entry in [*own, *parts, *formulas]:  # meaning of the first entry, value of the last
            described[entry.name] = replace(described.get(entry.name, entry), value=entry.value)
        return list(described.values())

    def parse_constant(self, name: str, text: str) -> Any:
        """Parse the value of a constant, or reject it with the constant's range.

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
        """Return this policy with the ``drift`` of these constants, if any; it decides which constants exist."""
        is_new = constants.get("drift", self.drift) != self.drift
        return replace(self, drift=constants["drift"], changes=None) if is_new else self

    def with_known_constants(self, constants: Mapping[str, Any]) -> "Policy":
        """Return this policy with the given constants, without those that it does not have."""
        own = self.with_drift(constants).constants()
        return self.with_constants(**{name: value for name, value in constants.items() if name in own})

    def with_constants(self, **constants: Any) -> "Policy":
        """Return this policy with other constants; reject those that it does not have."""
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
        """Return this policy with a constant beta."""
        formulas = tuple(formula for formula in self.formulas if formula.constant != "beta")
        return replace(self, confidence=Constant(beta=beta), formulas=formulas)

    def fit_to(self, problem: ProblemSize) -> "Policy":
        """Return this policy with its formulas evaluated for a problem, lambda first: others may use it."""
        policy = self
        for formula in sorted(self.formulas, key=lambda formula: formula.constant != "lambda_"):
            policy = policy.with_constants(**{formula.constant: formula.value(problem, policy.lambda_)})
        return policy


class PolicyTable(dict[str, Policy]):
    """Policies by name; a missing one is refused with the nearest name."""

    def __missing__(self, name: str) -> Policy:
        try:
            return get_policy(name)
        except ValueError as error:
            raise KeyError(str(error)) from None


def compute_budget(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """Compute D of DisLinUCB, at which its regret matches that of one learner."""
    return problem.rounds / (problem.users * problem.dimension * math.log(max(2, problem.rounds)))


def get_list_length(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """Return lambda of CLUB-cascade."""
    return float(problem.list_length)


def compute_edge_width(problem: ProblemSize, lambda_: float) -> float:  # noqa: ARG001
    """Compute alpha_d of CLUB-cascade."""
    return 8.0 * math.sqrt(problem.dimension)


def compute_club_beta(problem: ProblemSize, lambda_: float) -> float:
    """Compute beta of CLUB-cascade."""
    d, rounds = problem.dimension, problem.rounds
    logs = d * math.log1p(rounds / (d * lambda_)) + 2.0 * math.log(4.0 * rounds * problem.list_length)
    return math.sqrt(logs) + math.sqrt(lambda_)


CLUB = (
    Formula("lambda_", "K", get_list_length),
    Formula("beta", "sqrt(d ln(1 + T / (d lambda)) + 2 ln(4 T K)) + sqrt(lambda)", compute_club_beta),
    Formula("alpha_d", "8 sqrt(d)", compute_edge_width),
)
LINUCB_BOUND = Oful(noise=0.1, delta=0.1)
DEFAULT_POLICY = "population"  # of every command except the paper's evaluation
UNTUNED_BETA = Constant(beta=0.7)  # works without tuning in all environments tried: docs/how-to-choose-a-policy.md
NOISE_SCALED_BETA = Constant(beta=1.5)  # in standard deviations of a click, which ``Trust`` estimates

POLICIES: Mapping[str, Policy] = PolicyTable(
    (row.name, row)
    for row in (
        # name, grouping, trigger, decision, summary, reply rule
        Policy("oful", Everyone(), Never(), DownloadAndBuffer(),
               "one learner for all users, without exchanges", OneLearner()),
        Policy("c3-ucb", Everyone(), Never(), DownloadAndBuffer(),
               "oful with lists and cascade feedback", OneLearner()),
        Policy("dislinucb", Everyone(), SyncBudget(), DownloadAndBuffer(),
               "all agents synchronise when one of them has learned enough", AllAgents(),
               formulas=(Formula("budget", "T / (|U| d ln T)", compute_budget),)),
        Policy("club-cascade", ClubGraph(), Always(), LastDownload(),
               "a similarity graph of users at the server, with an exchange in every round", OnArrival(),
               formulas=CLUB),
        Policy("async-linucb", Everyone(), Ratio(), DownloadAndBuffer(),
               "agents upload when they have learned enough; the server pushes to agents that are behind", Lagging(),
               lambda_=0.1, confidence=LINUCB_BOUND),
        Policy("async-linucb-am", Everyone(), Ratio(), DownloadAndBuffer(),
               "async-linucb for a shared part of theta, and a personal part at each agent", Lagging(),
               AlternatingMinimisation(), lambda_=0.1, confidence=LINUCB_BOUND),
        Policy("phase-fclub", SplitAndMerge(), Always(), LastDownload(),
               "local servers split their users into clusters; a global server merges them in phases", LocalServers()),
        Policy("fedlinucb", Everyone(), Determinant(), LastDownload(),
               "all agents share; an agent exchanges when it has learned enough"),
        Policy("fedc3ucb-h", HeterogeneityGraph(), Determinant() | Auxiliary(), LastDownload(),
               "the paper's policy: a similarity graph of users, exchanges when needed and rare random ones"),
        Policy("force-comm", HeterogeneityGraph(), Determinant() | Doubling(), LastDownload(),
               "fedc3ucb-h with exchanges at an agent's 1st, 2nd, 4th, 8th... arrival instead of random ones"),
        Policy("no-auxiliary", HeterogeneityGraph(), Determinant(), LastDownload(),
               "fedc3ucb-h without random exchanges"),
        Policy("fedind", Alone(), Never(), DownloadAndBuffer(),
               "every agent learns alone, without exchanges", confidence=UNTUNED_BETA),
        Policy("population", Population(), Determinant(alpha_c=0.5) | Doubling(), DownloadAndBuffer(),
               "our policy: answers are posteriors of theta in a hierarchical model of all users",
               trust=Trust(), lambda_=0.01, confidence=NOISE_SCALED_BETA),
        Policy("known-clusters", KnownClusters(), Determinant(), LastDownload(),
               "an upper baseline: the server knows the true clusters", yardstick=True, confidence=UNTUNED_BETA),
    )
)  # fmt: skip

# Policies of simulations that no agent can run.
BASELINES = {
    "popularity": Policy("popularity", Everyone(), Never(), ItemShares(),
        "a baseline for catalogues: the most clicked items, the same for all users", OneLearner(),
        yardstick=True, lambda_=1.0, confidence=Constant(beta=0.3)),
}  # fmt: skip
# ``population`` with a fixed schedule, and with private uploads: options, not rows. Plans name both.
SCHEDULED_POPULATION = replace(POLICIES["population"], name="population-scheduled", trigger=Doubling())
PRIVATE_POPULATION = replace(SCHEDULED_POPULATION, name="population-private", privacy=PrivateUploads(epsilon=5.0))
UNLISTED = {**BASELINES, PRIVATE_POPULATION.name: PRIVATE_POPULATION}


def make_private(policy: Policy, privacy: PrivateUploads) -> Policy:
    """Return ``population`` with private uploads, which follow a fixed schedule."""
    expected = PRIVATE_POPULATION.name.removesuffix("-private")
    require(policy.name == expected, f"private uploads need the policy {expected}, got {policy.name}: choose that one")
    return replace(policy, name=PRIVATE_POPULATION.name, trigger=Doubling(), privacy=privacy)


def guard_policy(policy: Policy) -> Policy:
    """Return the policy as a server runs it: with ``Sharing``, and a guarded graph if it has a graph."""
    grouping = policy.grouping
    if type(grouping) is HeterogeneityGraph:
        grouping = GuardedGraph(alpha_d=grouping.alpha_d)
    return replace(policy, grouping=grouping, sharing=policy.sharing or Sharing())


@cache
def load_policies() -> Mapping[str, Policy]:
    """Load the policies of this package and of plug-ins; a plug-in that fails to load is skipped with a warning."""
    offered: dict[str, Policy] = {}
    for plugin in list_plugins("policy"):
        try:
            offered[plugin.name] = _load_plugin_policy(plugin)
        except PluginError as error:
            warnings.warn(str(error), stacklevel=2)
    return offered | dict(POLICIES)


def get_policy(name: str) -> Policy:
    """Return the policy of that name; reject an unknown name with the nearest one."""
    if name in POLICIES or name in UNLISTED:
        return UNLISTED[name] if name in UNLISTED else POLICIES[name]
    plugins = {plugin.name: plugin for plugin in list_plugins("policy")}
    require_known("policy", name, [*POLICIES, *BASELINES, *plugins])
    return _load_plugin_policy(plugins[name])


def _load_plugin_policy(plugin: Plugin) -> Policy:
    policy = plugin.load()
    if not isinstance(policy, Policy):
        raise plugin.refuse(f"it is of type {type(policy).__name__}, not a Policy")
    if policy.name != plugin.name:
        raise plugin.refuse(f"its entry point must have the policy's name '{policy.name}'")
    return policy
