"""Terms of a store: servers on one store must agree on policy and constants.

The store holds them, and each transaction of a server checks them, so that no clock and no lease is needed.
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
    """The store was taken over by a server with other terms, so this server must end."""

    def __init__(self, difference: str) -> None:
        super().__init__(f"another server has taken over the store, with {difference}: this one ends")


def describe_terms(policy: Policy, dimension: int) -> dict[str, Any]:
    """Describe the terms that servers on one store must share, ready for JSON."""
    constants = {name: str(value) for name, value in sorted(policy.constants().items())}
    confidence = type(policy.confidence).__name__.lower()
    return {"dimension": dimension, "policy": policy.name, "constants": constants | {"confidence": confidence}}


def claim_store(store: Store, terms: Mapping[str, Any], at: int, *, take_over: bool = False) -> None:
    """Set the terms of a store, at a time in milliseconds; refuse to change them without ``take_over``."""
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
    """Return a check for each transaction; it raises ``TakenOver`` if the store has other terms."""
    own = json.dumps(terms)

    def require_own_terms(store: SettingStore) -> None:
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
