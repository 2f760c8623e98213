"""Users who click several items, or skip positions, do so by the chances of their model, and agents learn from it."""

from typing import Any

import numpy as np
import pytest

from fedcascade import Synthetic
from fedcascade.environments.behaviours import Behaviour


def make_world(**clicks: Any) -> Synthetic:
    return Synthetic(users=4, clusters=2, dimension=4, items=6, seed=1, **clicks)


WORLD = make_world()
WEIGHTS = np.array([0.6, 0.3, 0.8])


def count_clicks(behaviour: Behaviour, rounds: int = 4_000) -> tuple[np.ndarray, float]:
    """How often each position is clicked, and how often any is."""
    clicks, lists = np.zeros(3), 0
    for t in range(1, rounds + 1):
        attracted = WORLD.attracted(t, np.arange(3), WEIGHTS)
        clicked = list(behaviour.click(WORLD.seed, t, attracted, WEIGHTS))
        clicks[clicked] += 1
        lists += bool(clicked)
    return clicks / rounds, lists / rounds


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("dcm", [0.6, 0.3 * (0.4 + 0.6 * 0.5), 0.8 * (0.4 + 0.6 * 0.5) * (0.7 + 0.3 * 0.5)]),
        ("dbn", [0.6, 0.3 * (0.4 + 0.6 * 0.4), 0.8 * (0.4 + 0.6 * 0.4) * (0.7 + 0.3 * 0.7)]),
        ("pbm", [0.6, 0.3 * 0.5, 0.8 * 0.25]),
    ],
)
def test_positions_are_clicked_with_the_chances_of_the_model(model: str, expected: list[float]) -> None:
    behaviour = Behaviour(model=model)
    clicked, any_click = count_clicks(behaviour)
    assert np.allclose(clicked, expected, atol=0.03)
    assert any_click == pytest.approx(behaviour.compute_reward(WEIGHTS), abs=0.03)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ValueError, match="click model"):
        Behaviour(model="dcn")
    with pytest.raises(ValueError, match="level"):
        Behaviour(model="dcm", level=1.5)
