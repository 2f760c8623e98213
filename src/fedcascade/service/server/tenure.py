"""Terms of a store: servers on one store must agree on policy and constants.

The store holds them, and each transaction of a server checks them, so that no clock and no lease is needed.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from fedcascade.checks import require
from fedcascade.constants import list_texts
from fedcascade.federation.policies import Policy, get_policy, guard_policy
from fedcascade.service.protocol.errors import Unavailable
from fedcascade.service.store.contract import Store

TERMS = "terms"


class TakenOver(Unavailable):
    """The store was taken over by a server with other terms, so this server must end."""

    def __init__(self, difference: str) -> None:
        super().__init__(f"another server has taken over the store, with {difference}: this one ends")


def describe_terms(policy: Policy, dimension: int, features: str = "") -> dict[str, Any]:
    """Describe the terms that servers on one store must share, ready for JSON."""
    constants = list_texts(policy.describe_constants())
    confidence = type(policy.confidence).__name__.lower()
    terms = {"dimension": dimension, "policy": policy.name, "constants": constants | {"confidence": confidence}}
    return terms | ({"features": features} if features else {})


def check_terms(store: Store, terms: Mapping[str, Any], *, take_over: bool = False) -> tuple[str, str]:
    """Describe what terms would change in a store, before and after; refuse a change without ``take_over``."""
    held = json.loads(store.get_setting(TERMS) or "{}")
    kept, asked = held.get("dimension", terms["dimension"]), terms["dimension"]
    require(kept == asked, f"the store holds uploads of dimension {kept}, got --dimension {asked}")
    kept, asked = held.get("features", ""), terms.get("features", "")
    advice = "serve other features from another store, and end this one when its agents have moved"
    require(kept in ("", asked), f"the store holds uploads of features '{kept}', got '{asked}': {advice}")
    before, after = find_difference(terms, held), find_difference(held, terms)
    if after and not take_over:
        remedy = "give the same, or --take-over to change it; servers that run with the old ones then end"
        raise ValueError(f"the store is served with {before}, not with {after}: {remedy}")
    return before, after


def require_known_terms(store: Store) -> None:
    """Refuse a store with a policy or a constant that this version does not have."""
    held = json.loads(store.get_setting(TERMS) or "{}")
    if held:
        policy, constants = guard_policy(get_policy(held["policy"])), held.get("constants", {})
        if "drift" in constants:
            policy = policy.with_constants(drift=constants["drift"])
        unknown = sorted({*constants} - {*policy.constants(), "confidence", "beta"})
        line = f"the store is served with {', '.join(unknown)}, which this version does not have"
        require(not unknown, f"{line}: serve it with the version before, or with --take-over to change its terms")


def claim_store(store: Store, terms: Mapping[str, Any], at: int, *, take_over: bool = False) -> None:
    """Set the terms of a store, at a time in milliseconds; refuse to change them without ``take_over``."""
    before, after = check_terms(store, terms, take_over=take_over)
    if after:
        store.record_audit(at, "command line", "took over", detail=f"{before} -> {after}")
    text = json.dumps(terms)
    if store.get_setting(TERMS) != text:
        store.set_setting(TERMS, text)


def guard_terms(terms: Mapping[str, Any]) -> Callable[[Store], None]:
    """Return a check for each transaction; it raises ``TakenOver`` if the store has other terms."""
    own = json.dumps(terms)

    def require_own_terms(store: Store) -> None:
        text = store.get_setting(TERMS)
        if text != own:
            raise TakenOver(find_difference(terms, json.loads(text or "{}")) or "other terms")

    return require_own_terms


def find_difference(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> str:
    """Describe the changes from earlier to later terms; empty if there are none. Missing keys are not compared.

    >>> find_difference({"policy": "a", "constants": {"beta": "1"}}, {"policy": "b", "constants": {"beta": "2"}})
    'policy b, beta 2'
    """
    words = []
    if "policy" in earlier and "policy" in later and earlier["policy"] != later["policy"]:
        words.append(f"policy {later['policy']}")
    if "constants" in earlier and "constants" in later:
        old, new = earlier["constants"], later["constants"]
        words += [f"{name} {new.get(name, 'unset')}" for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return ", ".join(words)
