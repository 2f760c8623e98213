"""The paper's figures at full length give the recorded regrets and exchanges, to the last digit."""

import json

import pytest

from .record_reproduction import ASSET, PLANS, SEEDS, reproduce


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("plan", PLANS)
def test_a_figure_is_the_recorded_one(plan: str, seed: int) -> None:
    recorded = json.loads(ASSET.read_text(encoding="utf-8"))
    assert reproduce(plan, seed) == recorded[f"{plan} {seed}"]
