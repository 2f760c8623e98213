"""Policies that weigh the server's prior: both engines leave the same trace."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedcascade.environments.options import Change, Poisoning, Turnover
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import Policy, guard_policy
from fedcascade.learning.oracles import TopK
from fedcascade.simulation import reference
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.scenario import Scenario

from ..federation.test_trust import OURS

LIVING = OURS.with_constants(drift="restart")


SMALL: dict[str, Any] = {"users": 9, "clusters": 3, "dimension": 5, "items": 12, "seed": 4}


LIVES: dict[str, dict[str, Any]] = {
    "changes": {"change": Change(at=300)},
    "poisoning": {"poisoning": Poisoning(share=0.3, attack="inverted")},
    "arrivals": {"joins": Turnover(share=0.4, until=500), "leaves": Turnover(share=0.2, until=700)},
}


WORLDS: dict[str, dict[str, Any]] = {
    "lifted": {},
    "scale 0.2": {"scale": 0.2},
    "gaussian": {"features": "gaussian"},
    "gaussian scale 0.2": {"features": "gaussian", "scale": 0.2},
    "logistic": {"features": "logistic"},
    "many clusters": {"users": 40, "clusters": 20, "directions": "random"},
    "two users": {"users": 2, "clusters": 2},
    "one user": {"users": 1, "clusters": 1},
    **LIVES,
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("policy", [OURS, LIVING, guard_policy(LIVING)], ids=["steady", "restart", "guarded"])
def test_both_engines_give_equal_traces(world: str, policy: Policy) -> None:
    scenario = Scenario(Synthetic(**(SMALL | WORLDS[world])), policy, 900, TopK(length=3), keep_lists=True)
    slow = reference.simulate(scenario)
    for threads, window in ((1, 400), (3, 77)):
        fast = exact.simulate(scenario, threads=threads, window=window)
        assert replace(fast, engine="", seconds=0.0) == replace(slow, engine="", seconds=0.0)
        np.testing.assert_array_equal(fast.lists, slow.lists)
    assert slow.ledger, "agents must have spoken, or this test shows little"


def test_the_engines_agree_on_detected_changes() -> None:
    scenario = Scenario(
        Synthetic(**(SMALL | {"change": Change(at=600)})), LIVING, 3_000, TopK(length=3), keep_lists=True
    )
    fast, slow = exact.simulate(scenario), reference.simulate(scenario)
    assert fast.ledger == slow.ledger
    np.testing.assert_array_equal(fast.lists, slow.lists)
    assert any(exchange.cause.value == "change" for exchange in fast.ledger)
