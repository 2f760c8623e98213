"""Policies that no package offers: attributes of a module or of a file beside a plan, and objects of a program."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from fedcascade.checks import require
from fedcascade.experiments.plan import Plan, PlannedPolicy, list_values
from fedcascade.federation.policies import Policy, get_policy

given: dict[str, Policy] = {}  # objects of this process, by source


def find_policy(name: str, source: str = "") -> Policy:
    """Return the policy of that name or, if it has one, of its source: module:attribute or file.py:attribute."""
    if not source or source in given:
        return given[source] if source else get_policy(name)
    place, _, attribute = source.rpartition(":")
    policy = getattr(_load_module(place), attribute, None)
    got = "nothing of that name" if policy is None else f"a {type(policy).__name__}"
    require(isinstance(policy, Policy), f"'{source}' must be a Policy, got {got}")
    assert isinstance(policy, Policy)
    return policy


@cache
def _load_module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        name = f"fedcascade_plan_{hashlib.sha256(place.encode()).hexdigest()[:12]}"
        spec: Any = importlib.util.spec_from_file_location(name, place)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"cannot import '{place}' for a policy: {reason}") from error


def hash_policy(policy: Policy) -> str:
    """Return a digest of the kinds of a policy's parts and of their code, where that is not this package's."""
    digest = hashlib.sha256(" ".join(str(formula) for formula in policy.formulas).encode())
    for kind in _list_kinds(policy):
        digest.update(kind.__qualname__.encode())
        if not kind.__module__.startswith("fedcascade."):
            path = Path(inspect.getsourcefile(kind) or "")
            digest.update(path.read_bytes() if path.is_file() else inspect.getsource(kind).encode())  # a notebook's
    return digest.hexdigest()[:20]


def _list_kinds(part: Any) -> Iterator[type]:
    if is_dataclass(part):
        yield type(part)
        for each in fields(part):
            yield from _list_kinds(getattr(part, each.name))


def add_policies(plan: Plan, policies: Iterable[Policy] | Mapping[str, Policy]) -> Plan:
    """Return the plan with further policies, given as objects, by label or under their own names."""
    by_label = dict(policies) if isinstance(policies, Mapping) else {policy.name: policy for policy in policies}
    added = []
    for label, policy in by_label.items():
        require(isinstance(policy, Policy), f"policies must be Policy objects, got a {type(policy).__name__}")
        require(label not in {each.label for each in plan.policies}, f"policy '{label}' is in the plan already")
        digest, values = hash_policy(policy), list_values(policy)
        source = f"object:{label}:{digest}:{values}"
        given[source] = policy
        added.append(PlannedPolicy(label, policy.name, values, source=source, digest=digest))
    return replace(plan, policies=(*plan.policies, *added))
