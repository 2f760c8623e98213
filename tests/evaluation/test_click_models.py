"""Click models: parameters are recovered from simulated logs, and the true model has the least perplexity."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedcascade.cli import main
from fedcascade.data.logs import write_log
from fedcascade.evaluation.click_models import MODELS, compare_models
from fedcascade.learning.click_log import ClickLog

ITEMS, LENGTH, LISTS = 12, 5, 30_000
DRAW = np.random.default_rng(8)
ATTRACTION = DRAW.uniform(0.05, 0.6, ITEMS)
SATISFACTION = DRAW.uniform(0.2, 0.9, ITEMS)
LAMBDA = np.array([0.9, 0.7, 0.6, 0.5, 0.4])
GAMMA = np.array([1.0, 0.7, 0.5, 0.35, 0.2])


def simulate(name: str, seed: int, lists: int = LISTS) -> ClickLog:
    """Users of a model, position by position."""
    draw = np.random.default_rng(seed)
    items = np.argsort(draw.random((lists, ITEMS)), axis=1)[:, :LENGTH]
    clicks, looking = np.zeros(items.shape, bool), np.ones(lists, bool)
    for position in range(LENGTH):
        shown = items[:, position]
        looked = draw.random(lists) < GAMMA[position] if name == "pbm" else looking
        clicks[:, position] = looked & (draw.random(lists) < ATTRACTION[shown])
        stay = {"cascade": 0.0, "dcm": LAMBDA[position], "dbn": 1 - SATISFACTION[shown], "pbm": 1.0}[name]
        looking &= ~clicks[:, position] | (draw.random(lists) < stay)
    return ClickLog(users=draw.integers(0, 50, lists), items=items, clicks=clicks)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_recovered(name: str) -> None:
    model = MODELS[name](simulate(name, seed=1))
    assert np.abs(model.attraction - ATTRACTION).max() < 0.03
    if name == "pbm":
        assert model.going_on is not None
        assert np.abs(model.going_on - GAMMA).max() < 0.03
    if name == "dcm":  # who clicks the last position cannot be seen to go on
        assert model.going_on is not None
        assert np.abs(model.going_on - LAMBDA)[:-1].max() < 0.05
    if name == "dbn":
        assert model.satisfaction is not None
        assert np.abs(model.satisfaction - SATISFACTION).max() < 0.1


@pytest.mark.parametrize("name", MODELS)
def test_the_true_model_has_the_least_perplexity(name: str) -> None:
    log = simulate(name, seed=2)

    def batches() -> Iterator[ClickLog]:
        for start in range(0, len(log), 10_000):
            yield log.select(slice(start, start + 10_000))

    fits = {found.model.name: found.perplexity for found in compare_models(batches, len(log))}
    assert fits[name] <= min(fits.values()) + 0.002
    assert 1.0 < fits[name] < 2.0


def test_the_command_compares_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.parquet"
    write_log(path, simulate("pbm", seed=3, lists=5_000))
    main(["data", "clicks", str(path), "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["models"][0]["model"] == "pbm"
    main(["data", "clicks", str(path)])
    assert "perplexity" in capsys.readouterr().out
