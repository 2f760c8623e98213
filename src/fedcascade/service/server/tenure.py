"""Which policy and constants a store is served with: servers on one store must agree.

The store keeps them, and each transaction of a server reads them: no clock and no lease says which server lives.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from fedcascade.checks import require
from fedcascade.federation.policies import Policy
from fedcascade.service.protocol.errors import Unavailable
from fedcascade.service.store.contract import SettingStore, Store

TERMS = "terms"


class TakenOver(Unavailable):
    """Another server has taken the store over, with another policy or other constants: this one must end."""

    def __init__(self, difference: str) -> None:
        super().__init__(f"another server has taken over the store, with {difference}: this one ends")


def describe_terms(policy: Policy, dimension: int) -> dict[str, Any]:
    """What servers on one store must have in common, ready for JSON."""
    constants = {name: str(value) for name, value in sorted(policy.constants().items())}
    confidence = type(policy.confidence).__name__.lower()
    return {"dimension": dimension, "policy": policy.name, "constants": constants | {"confidence": confidence}}


def claim_store(store: Store, terms: Mapping[str, Any], at: int, *, take_over: bool = False) -> None:
    """Serve a store with these terms from now on; refuse if it is served with others, unless told to take it over.

    ``at`` is the time in milliseconds since 1970. Call this within a transaction.
    """
    text = store.get_setting(TERMS)
    held = json.loads(text or "{}")
    kept, asked = held.get("dimension", terms["dimension"]), terms["dimension"]
    require(kept == asked, f"the store holds uploads of dimension {kept}, got --dimension {asked}")
    difference = find_difference(held, terms)
    if difference and not take_over:
        remedy = "give the same, or --take-over to change it; servers that run with the old ones then end"
        raise ValueError(f"the store is served with {find_difference(terms, held)}, not with {difference}: {remedy}")
    if difference:
        store.record_audit(at, "command line", "took over", detail=f"{find_difference(terms, held)} -> {difference}")
    if held != terms:
        store.set_setting(TERMS, json.dumps(terms))


def guard_terms(terms: Mapping[str, Any]) -> Callable[[SettingStore], None]:
    """A check for each transaction of a server: it raises ``TakenOver`` once the store is served with other terms."""
    own = json.dumps(terms)

    def require_own_terms(store: SettingStore) -> None:
        text = store.get_setting(TERMS)
        if text != own:
            raise TakenOver(find_difference(terms, json.loads(text or "{}")) or "other terms")

    return require_own_terms


def find_difference(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> str:
    """Say what the later terms have that the earlier ones do not; empty if nothing. What either lacks is not compared.

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
