"""Compiled forms of the parts of a scenario, in one table per kind of part.

Parts without a row are unsupported: ``find_unsupported`` names them, and ``lower`` raises. Tables use the exact type,
because a subclass may override compiled methods. Register a subclass that does not by its parent's row:
``ENVIRONMENTS[Shop] = ENVIRONMENTS[Synthetic]``.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedcascade.environments.clustered import Clustered
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation import triggers
from fedcascade.federation.changes import ChangeDetection, CompiledDetection
from fedcascade.federation.decisions import DownloadAndBuffer, LastDownload
from fedcascade.federation.messages import Cause
from fedcascade.federation.personal import AlternatingMinimisation
from fedcascade.federation.policies import Policy
from fedcascade.federation.privacy import Unit
from fedcascade.federation.replies import AllAgents, Asker, Lagging, LocalServers, OnArrival, OneLearner
from fedcascade.federation.trust import Trust
from fedcascade.learning.confidence import BetaTerms, Confidence, Constant, Oful, ProblemSize, Theory
from fedcascade.learning.exploration import EpsilonMixed, PlackettLuce
from fedcascade.learning.knapsack import Budget
from fedcascade.learning.oracles import Oracle, PerCategory, TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.simulation.exact import arrays
from fedcascade.simulation.exact.arrays import CompiledLimits
from fedcascade.simulation.exact.screening import bound_error
from fedcascade.simulation.scenario import Scenario

Compiled = TypeVar("Compiled")


class RoundOrder(Enum):
    """The order in which rounds are played."""

    BY_AGENT = "an exchange reaches only the uploading agent: each agent plays ahead until its next upload"
    BY_TIME = "an exchange may reach other agents: rounds are played one after another"
    ON_ARRIVAL = "an agent asks the server before every round: rounds are played one after another"


class LoweredTrigger(NamedTuple):
    """A kind of trigger, a constant of ``arrays``, and its level."""

    kind: int
    level: float


def _lower_clustered(environment: Clustered) -> arrays.CompiledEnvironment:
    behaviour = environment.behaviour
    return arrays.CompiledEnvironment(
        seed=environment.seed,
        lifted=environment.lifted,
        fewest_items=environment.fewest_items,
        most_items=environment.most_items,
        thetas=environment.thetas,
        catalogue=environment.catalogue,
        categories=environment.categories,
        behaviour=None if behaviour is None else behaviour.compile(environment.most_items),
        link=environment.link,
        values=None if environment.value_thetas is None else environment.value_thetas[environment.clusters],
    )


def _lower_growth(trigger: triggers.Determinant | triggers.Ratio) -> list[LoweredTrigger]:
    return [LoweredTrigger(arrays.DETERMINANT, trigger.level)]


def _lower_fixed_beta(confidence: Confidence, lambda_: float, problem: ProblemSize) -> BetaTerms:
    """Return a beta that does not depend on data."""
    return BetaTerms(confidence.radius(Ridge(Statistics.zero(problem.dimension), lambda_), problem), 0.0, 0.0)


ENVIRONMENTS: dict[type, Callable[[Any], arrays.CompiledEnvironment]] = {
    Synthetic: _lower_clustered,
    Ratings: _lower_clustered,
}
ORACLES: dict[type, Callable[[Any], CompiledLimits | None]] = {
    TopK: lambda _: None,
    PerCategory: lambda oracle: CompiledLimits(oracle.limit, np.inf, oracle.length),
    Budget: lambda oracle: CompiledLimits(0, float(oracle.budget), oracle.length),
    PlackettLuce: lambda oracle: CompiledLimits(0, np.inf, oracle.length, oracle.kind, oracle.level),
    EpsilonMixed: lambda oracle: CompiledLimits(0, np.inf, oracle.length, oracle.kind, oracle.level),
}
# Whether an agent solves for its decision in each round.
DECISIONS: dict[type, bool] = {LastDownload: False, DownloadAndBuffer: True}
TRIGGERS: dict[type, Callable[[Any], list[LoweredTrigger]]] = {
    triggers.Determinant: _lower_growth,
    triggers.Ratio: _lower_growth,
    triggers.Auxiliary: lambda trigger: [LoweredTrigger(arrays.AUXILIARY, trigger.p_scale)],
    triggers.Doubling: lambda _: [LoweredTrigger(arrays.DOUBLING, 0.0)],
    triggers.Always: lambda _: [LoweredTrigger(arrays.ALWAYS, 0.0)],
    triggers.SyncBudget: lambda trigger: [LoweredTrigger(arrays.SYNCHRONISATION, trigger.budget)],
    triggers.Never: lambda _: [],
}
CAUSES = {
    arrays.DETERMINANT: Cause.DETERMINANT,
    arrays.AUXILIARY: Cause.AUXILIARY,
    arrays.DOUBLING: Cause.FORCED,
    arrays.ALWAYS: Cause.FORCED,
    arrays.SYNCHRONISATION: Cause.SYNCHRONISATION,
    arrays.CHANGE: Cause.CHANGE,
}
REPLY_RULES: dict[type, RoundOrder] = {
    Asker: RoundOrder.BY_AGENT,
    OneLearner: RoundOrder.BY_TIME,
    AllAgents: RoundOrder.BY_TIME,
    Lagging: RoundOrder.BY_TIME,
    OnArrival: RoundOrder.ON_ARRIVAL,
    LocalServers: RoundOrder.ON_ARRIVAL,
}
TRUSTS: dict[type, Callable[[Any], float | None]] = {
    type(None): lambda _: None,
    Trust: lambda trust: float(trust.every),
}
DETECTIONS: dict[type, Callable[[Any], CompiledDetection | None]] = {
    type(None): lambda _: None,
    ChangeDetection: ChangeDetection.compile,
}
# Whether agents have a personal part beside the shared one.
PERSONAL_PARTS: dict[type, bool] = {type(None): False, AlternatingMinimisation: True}
CONFIDENCES: dict[type, Callable[[Any, float, ProblemSize], BetaTerms]] = {
    Constant: _lower_fixed_beta,
    Theory: _lower_fixed_beta,
    Oful: Oful.beta_terms,
}


def find_unsupported(scenario: Scenario) -> str | None:
    """Describe the first unsupported part, or combination of parts; None if all are supported."""
    return next(_list_unsupported(scenario), None)


def _list_unsupported(scenario: Scenario) -> Iterator[str]:
    policy, joined = scenario.policy, scenario.policy.trigger.list_joined()
    parts: list[tuple[str, str, Mapping[type, object], object]] = [
        ("environment", "ENVIRONMENTS", ENVIRONMENTS, scenario.environment),
        ("oracle", "ORACLES", ORACLES, scenario.oracle),
        ("decision", "DECISIONS", DECISIONS, policy.decision),
        *(("trigger", "TRIGGERS", TRIGGERS, trigger) for trigger in joined),
        ("reply rule", "REPLY_RULES", REPLY_RULES, policy.reply_rule),
        ("personal part", "PERSONAL_PARTS", PERSONAL_PARTS, policy.personal),
        ("trust", "TRUSTS", TRUSTS, policy.trust),
        ("change detection", "DETECTIONS", DETECTIONS, policy.changes),
    ]
    if _needs_beta_terms(policy):
        parts.append(("confidence", "CONFIDENCES", CONFIDENCES, policy.confidence))
    for kind, name, table, part in parts:
        if type(part) not in table:
            yield f"{kind} {type(part).__name__}{_explain_subclass(part, name, table)}"
    fits = type(policy.reply_rule) in (Lagging, OneLearner) and isinstance(policy.decision, DownloadAndBuffer)
    if policy.personal and not fits:
        yield "personal part beside such a reply rule or decision"
    if policy.privacy is not None and policy.privacy.unit == Unit.USER:
        yield "private uploads with the unit user"
    # Synchronisations are checked after all other triggers, and only when rounds are played in order of time.
    by_time = REPLY_RULES.get(type(policy.reply_rule)) is RoundOrder.BY_TIME
    if any(isinstance(trigger, triggers.SyncBudget) for trigger in (joined[:-1] if by_time else joined)):
        yield "trigger SyncBudget in such a place"


def _explain_subclass(part: object, name: str, table: Mapping[type, object]) -> str:
    """Explain how to register a part whose parent has a row."""
    parent = next((parent for parent in type(part).__mro__ if parent in table), None)
    if parent is None:
        return ""
    own, row = type(part).__name__, parent.__name__
    return (
        f" (a subclass of {row} that may override compiled methods; if it does not, register it by "
        f"fedcascade.simulation.exact.lowering.{name}[{own}] = {name}[{row}])"
    )


def _needs_beta_terms(policy: Policy) -> bool:
    """Return whether compiled code computes beta; otherwise beta comes with the download."""
    return (
        isinstance(policy.decision, DownloadAndBuffer)
        or isinstance(policy.reply_rule, OnArrival)
        or (policy.trust is not None)
    )


def lower(table: Mapping[type, Compiled], part: object) -> Compiled:
    """Return the row of a part; raise if there is none."""
    if type(part) not in table:
        raise NotImplementedError(f"the exact engine has no compiled form of {type(part).__name__}")
    return table[type(part)]


def compile_policy(policy: Policy, oracle: Oracle, problem: ProblemSize) -> arrays.CompiledPolicy:
    """Compile a policy to arrays and numbers."""
    lowered = merge_determinants(lower_triggers(policy.trigger))
    budgets = [trigger.level for trigger in lowered if trigger.kind == arrays.SYNCHRONISATION]
    checked = [trigger for trigger in lowered if trigger.kind != arrays.SYNCHRONISATION]
    levels = np.array([trigger.level for trigger in checked], np.float64)
    beta = BetaTerms(np.nan, np.nan, np.nan)
    if _needs_beta_terms(policy):
        beta = lower(CONFIDENCES, policy.confidence)(policy.confidence, policy.lambda_, problem)
    d = problem.dimension
    return arrays.CompiledPolicy(
        length=oracle.length,
        alpha=oracle.alpha,
        limits=lower(ORACLES, oracle)(oracle),
        triggers=np.array([trigger.kind for trigger in checked], np.int64),
        levels=levels,
        bounds=d * np.expm1(levels * (1.0 - 1e-9) / d),
        slack=bound_error(d, (d / policy.lambda_) ** 0.5),  # ||root||^2 is the trace of Sigma^-1
        lambda_=policy.lambda_,
        every_round=lower(DECISIONS, policy.decision),
        beta=beta,
        sync_budget=min(budgets, default=np.inf),
        detection=lower(DETECTIONS, policy.changes)(policy.changes),
        trust=lower(TRUSTS, policy.trust)(policy.trust),
    )


def lower_triggers(trigger: triggers.Trigger) -> list[LoweredTrigger]:
    """Return the compiled forms of all triggers that are joined in ``trigger``, in order."""
    return [lowered for part in trigger.list_joined() for lowered in lower(TRIGGERS, part)(part)]


def merge_determinants(lowered: list[LoweredTrigger]) -> list[LoweredTrigger]:
    """Replace several determinant triggers by the one with the lowest level, which fires first."""
    lowest = min((level for kind, level in lowered if kind == arrays.DETERMINANT), default=0.0)
    merged = [LoweredTrigger(kind, lowest if kind == arrays.DETERMINANT else level) for kind, level in lowered]
    return list(dict.fromkeys(merged))
