"""Lowering to the device: supported scenarios, the shapes of their kernels, and the stops of their agents.

The host uses the exact engine's compiled forms, so a part also needs a row in its tables.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from numba.cuda import config

from fedcascade.environments.options import NO_ROUND
from fedcascade.learning.confidence import Constant, Theory
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.exact import arrays, lowering
from fedcascade.simulation.exact.lowering import DECISIONS, PERSONAL_PARTS, REPLY_RULES, RoundOrder, lower
from fedcascade.simulation.scenario import Scenario
from fedcascade_cuda.layout import LANES, NEAR, Layout, Shape

# Threads of a block whose teams play different rounds, and of one whose threads play one round together. Numba's
# simulator starts a Python thread for each.
THREADS, THREADS_OF_ONE_TEAM = (64, 64) if config.ENABLE_CUDASIM else (512, 256)
SHARED_BYTES = 46_000  # limit for the large arrays of a block


class StopRule(NamedTuple):
    """The rounds in which an agent stops on the device because a trigger may fire; the host decides whether it does."""

    level: float = math.inf  # growth of ln det
    bound: float = math.inf  # ln det cannot have grown by the level while squared widths sum to less
    p_scale: float = 0.0  # of random exchanges
    at_doublings: bool = False  # of the agent's arrivals
    always: bool = False


# The change of a stop rule by each kind of trigger, given its level and bound.
TRIGGERS: dict[int, Callable[[StopRule, float, float], StopRule]] = {
    arrays.DETERMINANT: lambda rule, level, bound: rule._replace(level=level, bound=bound),
    arrays.AUXILIARY: lambda rule, level, _: rule._replace(p_scale=max(rule.p_scale, level)),
    arrays.DOUBLING: lambda rule, *_: rule._replace(at_doublings=True),
    arrays.ALWAYS: lambda rule, *_: rule._replace(always=True),
}
FIXED_BETAS = {Constant, Theory}  # the device does not compute beta; these take it from the download


def find_unsupported(scenario: Scenario) -> str | None:
    """Describe the first part that the device does not support; None if all are supported."""
    return lowering.find_unsupported(scenario) or next(_list_unsupported(scenario), None)


def _list_unsupported(scenario: Scenario) -> Iterator[str]:
    environment, policy = scenario.clustered, scenario.policy
    if environment.value_thetas is not None:
        yield "values of clicks in the environment"
    if scenario.is_late:
        yield "late feedback"
    if scenario.warm is not None:
        yield "warm start"
    if type(scenario.oracle) is not TopK:
        yield f"oracle {type(scenario.oracle).__name__}"
    if environment.behaviour is not None:
        yield f"click model {environment.behaviour.model}"
    if environment.link is not None:
        yield f"link {type(environment.link).__name__}"
    if environment.history.find_next(1) < NO_ROUND or environment.history.user_roles:
        yield "environment with a changing population"
    if environment.catalogue.shape[1] > 0:
        yield f"catalogue of {type(environment).__name__}"
    if lower(REPLY_RULES, policy.reply_rule) is not RoundOrder.BY_AGENT:
        yield f"reply rule {type(policy.reply_rule).__name__}"
    for part in (policy.trust, policy.changes):
        if part is not None:
            yield f"part {type(part).__name__}"
    if lower(PERSONAL_PARTS, policy.personal):
        yield f"personal part {type(policy.personal).__name__}"
    for trigger in policy.trigger.list_joined():
        if any(lowered.kind not in TRIGGERS for lowered in lowering.lower_triggers(trigger)):
            yield f"trigger {type(trigger).__name__}"
    if lower(DECISIONS, policy.decision) and type(policy.confidence) not in FIXED_BETAS:
        yield f"confidence {type(policy.confidence).__name__} in every round"
    if count_teams(environment.most_items, scenario.oracle.length, environment.dimension) == 0:
        yield "number of items: too many for a multiprocessor"


def lower_triggers(policy: arrays.CompiledPolicy) -> StopRule:
    """Return the stop rule of a policy; raise for a kind of trigger without a row in ``TRIGGERS``."""
    rule = StopRule()
    triggers = zip(policy.triggers.tolist(), policy.levels.tolist(), policy.bounds.tolist(), strict=True)
    for kind, level, bound in triggers:
        if kind not in TRIGGERS:
            raise NotImplementedError(f"the cuda engine has no stop rule for triggers of kind {kind}")
        rule = TRIGGERS[kind](rule, level, bound)
    return rule


def make_shape(scenario: Scenario) -> Shape:
    """Return the shape for which the kernel of a scenario is compiled."""
    environment, every_round = scenario.clustered, lower(DECISIONS, scenario.policy.decision)
    d, most, length = environment.dimension, environment.most_items, scenario.oracle.length
    teams = 1 if every_round else min(THREADS // LANES, count_teams(most, length, d))
    width = THREADS_OF_ONE_TEAM if every_round else LANES
    return Shape(d, environment.fewest_items, most, length, environment.lifted, every_round, teams, width, Layout.of(d))


def count_teams(items: int, length: int, d: int) -> int:
    """Return the number of teams that fit into the shared memory of a block."""
    factors = 16 * d * d if d <= NEAR else 16
    bytes_of_team = 8 * items + 20 * LANES + length * (4 * d + 32) + 36
    return max(0, (SHARED_BYTES - factors - 4 * d * d - 32 * d) // bytes_of_team)
