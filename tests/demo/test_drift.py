"""Users of the demo who change their minds when they are told to, and the systems beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.demo.live import ChangingEnvironment, Companion, Demo
from fedcascade.demo.options import DemoSettings
from fedcascade.environments.options import Change
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade.service.protocol.errors import Refused
from fedcascade.simulation import reference
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import compute_clustering_error

SIZES: dict[str, Any] = {"users": 8, "clusters": 2, "dimension": 5, "items": 8, "seed": 3}


def test_half_of_each_cluster_wants_what_the_next_one_wants_and_back() -> None:
    world = ChangingEnvironment(**SIZES)
    before, after = Synthetic(**SIZES), Synthetic(**SIZES, change=Change(at=1, to="existing"))
    features = world.items(5)
    np.testing.assert_array_equal(features, after.items(5))
    assert world.changing == 4
    for is_changed, expected in ((False, before), (True, after), (False, before)):
        world.is_changed = is_changed
        for user in range(8):
            np.testing.assert_array_equal(world.weights(5, user, features), expected.weights(5, user, features))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_companion_loses_what_its_system_loses_in_a_simulation(policy: str) -> None:
    world, known = ChangingEnvironment(**SIZES), POLICIES[policy].with_known_constants({"alpha_c": 1.0})
    companion = Companion(known, world, 2, 300)
    for t in range(1, 301):
        companion.play(t)
    trace = reference.simulate(Scenario(world, known, 300, TopK(length=2)))
    assert companion.regret == trace.regret
    assert compute_clustering_error(companion.labels, world.clusters) == trace.clustering_error


def test_minds_are_changed_in_a_demo_with_drift_alone(tmp_path: Path) -> None:
    demo = Demo(DemoSettings(users=4, clusters=2), token=tmp_path / "token", key="a key")
    with pytest.raises(Refused, match="start it with --drift"):
        demo.change_minds()
    assert "changes" not in demo.describe_progress()
    drifting = Demo(DemoSettings(users=4, clusters=2, drift=True), token=tmp_path / "token", key="a key")
    drifting.change_minds()
    assert drifting.describe_progress()["changes"] == []  # between two rounds, and there is none yet


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "nope"}, "unknown policy 'nope'"),
        ({"policy": "oful"}, "cannot call agents|never exchanges|needs no server|sends downloads"),
        ({"other": "nope"}, "unknown policy 'nope'"),
        ({"clusters": 7}, "clusters must be at most 6"),
        ({"users": 1001}, "users must be at most 1000"),
        ({"users": "many"}, "users must be a whole number >= 1"),
        ({"beta": -1}, "beta must be a finite number >= 0"),
        ({"colour": 1}, "colour"),
    ],
)
def test_settings_that_no_demo_can_have_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    demo = Demo(DemoSettings(users=4, clusters=2), token=tmp_path / "token", key="a key")
    with pytest.raises(Refused, match=words) as refused:
        demo.restart(changes)
    assert refused.value.status == 400
    assert demo.next is None


def test_a_demo_can_be_asked_to_start_over(tmp_path: Path) -> None:
    demo = Demo(DemoSettings(users=4, clusters=2), token=tmp_path / "token", key="a key")
    demo.restart({"policy": "fedc3ucb-h", "other": "fedind", "beta": 0.5, "seed": 3})
    assert demo.next == DemoSettings(users=4, clusters=2, policy="fedc3ucb-h", other="fedind", beta=0.5, seed=3)
    kept = Demo(DemoSettings(users=4, clusters=2), token=tmp_path / "token", key="a key", can_restart=False)
    with pytest.raises(Refused, match="a demo with --store cannot start over"):
        kept.restart({})
