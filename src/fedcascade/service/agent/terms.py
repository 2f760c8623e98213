"""The policy that an agent runs under a server's terms, with a floor on what an upload reveals."""

from dataclasses import replace

import msgspec

from fedcascade.federation.policies import Policy, get_policy
from fedcascade.federation.triggers import AtLeast
from fedcascade.learning.confidence import Constant, Oful, Theory
from fedcascade.service.protocol import wire

CONFIDENCES: dict[str, type[Constant | Theory | Oful]] = {"constant": Constant, "theory": Theory, "oful": Oful}


def follow_terms(terms: wire.Terms, *, policy: Policy | None, min_observations: int | None) -> tuple[Policy, int]:
    """The policy that an agent runs under the server's terms, and the fewest observations of an upload.

    ``policy`` and ``min_observations`` are what the caller of ``connect`` wants, None for the server's.
    """
    wanted = 2 * terms.dimension if min_observations is None else min_observations
    floor = max(wanted, terms.min_observations)
    chosen = policy or build_policy(terms)
    if floor:
        chosen = replace(chosen, trigger=AtLeast(trigger=chosen.trigger, observations=floor))
    return chosen, floor


def build_policy(terms: wire.Terms) -> Policy:
    """Build the policy that a server runs, with its constants and its kind of beta."""
    policy = get_policy(terms.policy)
    kind = CONFIDENCES.get(terms.constants.get("confidence", ""), type(policy.confidence))
    policy = policy if isinstance(policy.confidence, kind) else replace(policy, confidence=kind())
    return policy.with_known_constants(terms.constants)


class PolicyCache:
    """The policies that agents run, which many share: one for each terms that they have seen."""

    def __init__(self, policy: Policy | None, min_observations: int | None) -> None:
        self._wanted, self._floor = policy, min_observations
        self._known: dict[bytes, tuple[Policy, int]] = {}

    def follow_terms(self, terms: wire.Terms) -> tuple[Policy, int]:
        """``follow_terms`` with what the application wants."""
        content = msgspec.json.encode(msgspec.structs.replace(terms, epoch=""), order="deterministic")
        if content not in self._known:
            self._known[content] = follow_terms(terms, policy=self._wanted, min_observations=self._floor)
        return self._known[content]
