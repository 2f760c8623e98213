"""The options of agents, and their policy under a server's terms."""

from dataclasses import dataclass, replace

import msgspec

from fedcascade.checks import POSITIVE, Range, require, whole_numbers
from fedcascade.constants import Checked, constant
from fedcascade.federation.policies import Policy, get_policy
from fedcascade.federation.privacy import PrivateUploads
from fedcascade.federation.triggers import AtLeast
from fedcascade.learning.confidence import Constant, Oful, ProblemSize, Theory
from fedcascade.learning.oracles import Oracle
from fedcascade.service.agent.transport import Transport
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock

CONFIDENCES: dict[str, type[Constant | Theory | Oful]] = {"constant": Constant, "theory": Theory, "oful": Oful}
COUNT = whole_numbers(1)
LARGEST_CONSTANT = 1e9
MOST_DELTA = 1e-5  # of an agent that asks for privacy
LARGEST_CONSTANTS = {"lambda_": 1e4, "alpha_c": 1e4}  # with more an agent would not upload in years
PAUSES = Range("two numbers of seconds > 0", lambda pair: len(pair) == 2 and all(map(POSITIVE.contains, pair)))


@dataclass(frozen=True, kw_only=True)
class AgentOptions(Checked):
    """The options of an agent, or of all agents of a pool. The metadata of a field has its meaning and range."""

    policy: Policy | None = constant(None, meaning="triggers uploads and scores items. [the server's]")
    oracle: Oracle | None = constant(None, meaning="chooses lists from scores. [the best k items]")
    min_observations: int | None = constant(
        None, meaning="minimum of observations in an upload, and at least the server's. [2 d]", range=whole_numbers(0)
    )
    problem: ProblemSize | None = constant(None, meaning="sizes for a beta by formula. [estimated]")
    keep_lists: int = constant(1024, meaning="drop a list without feedback after this many newer ones", range=COUNT)
    keep_seconds: float = constant(
        365 * 86_400.0, meaning="drop a list without feedback after this many seconds", range=POSITIVE
    )
    record_lists: int = constant(
        0, meaning="keep this many lists of a user with all items on offer, for export_log", range=whole_numbers(0)
    )
    senders: int = constant(16, meaning="threads of a pool, with one request in flight each", range=COUNT)
    in_memory: int = constant(10_000, meaning="idle agents of a pool that stay in memory", range=COUNT)
    features: str | None = constant(
        None, meaning="the version of the items' features; a server with another one is refused. [any]"
    )
    most_epsilon: float | None = constant(
        None,
        meaning="refuse a server whose private uploads have a larger epsilon, or that has none. [any]",
        range=POSITIVE,
    )
    start_over: bool = constant(
        False, meaning="go on with the key of an agent if its store is damaged, without what it had not uploaded"
    )
    transport: Transport | None = constant(None, meaning="sends requests. [HTTP to the server's URL]")
    pauses: tuple[float, float] = constant(
        (0.25, 300.0),
        meaning="seconds before the first retry, doubled with each failure, and the longest",
        range=PAUSES,
    )
    clock: Clock = constant(SYSTEM_CLOCK, meaning="the clock of signatures and lists")


def check_terms(terms: wire.Terms) -> None:
    """Reject terms under which an agent could not show lists, or would never upload and so hear of no others."""
    d, longest = terms.dimension, terms.longest_list
    require(1 <= d <= wire.LARGEST_DIMENSION, f"the server's dimension must be in 1..{wire.LARGEST_DIMENSION}, got {d}")
    require(longest >= 1, f"the server's longest list must be >= 1, got {longest}")
    least, most = terms.min_observations, wire.LARGEST_MINIMUM
    require(0 <= least <= most, f"the server's minimum of observations must be in 0..{most}, got {least}")
    for name, value in terms.constants.items():
        if isinstance(value, int | float):
            bound = LARGEST_CONSTANTS.get(name, LARGEST_CONSTANT)
            require(abs(value) <= bound, f"the server's constant {name} must be at most {bound:g}, got {value}")


def build_policy(terms: wire.Terms) -> Policy:
    """Build the server's policy, with its constants and its kind of beta."""
    policy = get_policy(terms.policy)
    kind = CONFIDENCES.get(str(terms.constants.get("confidence", "")), type(policy.confidence))
    policy = policy if isinstance(policy.confidence, kind) else replace(policy, confidence=kind())
    return policy.with_known_constants(terms.constants)


class PolicyCache:
    """The policies of agents, one for each terms, which many agents share."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._known: dict[bytes, Policy] = {}

    def follow_terms(self, terms: wire.Terms) -> Policy:
        """Return the policy for a server's terms; its trigger has the minimum of observations in an upload."""
        content = msgspec.json.encode(msgspec.structs.replace(terms, epoch=""), order="deterministic")
        if content not in self._known:
            check_terms(terms)
            wanted, policy = self._options.min_observations, self._options.policy or build_policy(terms)
            self._check_privacy(build_policy(terms).privacy, policy)
            if policy.privacy is not None:  # the time of a private upload must not depend on data
                self._known[content] = policy
                return policy
            floor = max(2 * terms.dimension if wanted is None else wanted, terms.min_observations)
            trigger = AtLeast(trigger=policy.trigger, observations=floor) if floor else policy.trigger
            self._known[content] = replace(policy, trigger=trigger)
        return self._known[content]

    def _check_privacy(self, promised: PrivateUploads | None, policy: Policy) -> None:
        """Refuse terms with less privacy than the options ask for, and a policy that does not keep the terms."""
        is_kept = promised == policy.privacy
        require(is_kept, "the policy of this agent must have the private uploads of the server's terms: leave it out")
        most = self._options.most_epsilon
        if most is None:
            return
        got = "none" if promised is None else f"epsilon {promised.epsilon:g} and delta {promised.delta:g}"
        fits = promised is not None and promised.epsilon <= most and promised.delta <= MOST_DELTA
        require(fits, f"this agent wants private uploads of epsilon <= {most:g}, delta <= {MOST_DELTA:g}, got {got}")
