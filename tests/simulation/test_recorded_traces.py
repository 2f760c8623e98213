"""Every policy gives the recorded Trace, to the last bit, on both engines and on every machine."""

import json

import pytest

from .record_traces import ASSET, list_cases, play

RECORDED = json.loads(ASSET.read_text(encoding="utf-8"))


@pytest.mark.parametrize("engine", ["reference", "exact"])
@pytest.mark.parametrize(("policy", "shape", "seed"), list(list_cases()))
def test_a_trace_is_the_recorded_one(policy: str, shape: str, seed: int, engine: str) -> None:
    recorded = RECORDED[f"{policy} {shape} {seed}"]
    world, trace = play(policy, shape, seed, engine)
    assert world == recorded["world"]
    assert trace == recorded["trace"]
