"""Measure the errors and perplexities of fitted click models, on logs with known parameters.

Usage: python tools/click_model_recovery.py [--lists 30000] [--seeds 5] [--first 501]
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from fedcascade.evaluation.click_models import MODELS, ClickModel, compare_models
from fedcascade.learning.click_log import ClickLog

ITEMS, LENGTH = 12, 5
_DRAW = np.random.default_rng(8)
ATTRACTION = _DRAW.uniform(0.05, 0.6, ITEMS)
SATISFACTION = _DRAW.uniform(0.2, 0.9, ITEMS)
GOING_ON = {"dcm": np.array([0.9, 0.7, 0.6, 0.5, 0.4]), "pbm": np.array([1.0, 0.7, 0.5, 0.35, 0.2])}


def simulate_clicks(name: str, seed: int, lists: int = 30_000) -> ClickLog:
    """Random lists, and clicks drawn from a model position by position."""
    draw = np.random.default_rng(seed)
    items = np.argsort(draw.random((lists, ITEMS)), axis=1)[:, :LENGTH]
    clicks, looking = np.zeros(items.shape, bool), np.ones(lists, bool)
    for position in range(LENGTH):
        shown = items[:, position]
        looked = draw.random(lists) < GOING_ON["pbm"][position] if name == "pbm" else looking
        clicks[:, position] = looked & (draw.random(lists) < ATTRACTION[shown])
        stay = {"cascade": 0.0, "dcm": GOING_ON["dcm"][position], "dbn": 1 - SATISFACTION[shown], "pbm": 1.0}[name]
        looking &= ~clicks[:, position] | (draw.random(lists) < stay)
    return ClickLog(users=draw.integers(0, 50, lists), items=items, clicks=clicks)


def measure_errors(model: ClickModel) -> dict[str, float]:
    """Return the largest error of each kind of parameter of a model."""
    errors = {"attraction": _find_largest(model.attraction - ATTRACTION)}
    if model.going_on is not None:  # a click on the last position does not show whether the user continues
        known = LENGTH - 1 if model.name == "dcm" else LENGTH
        errors["going on" if model.name == "dcm" else "looked at"] = _find_largest(
            (model.going_on - GOING_ON[model.name])[:known]
        )
    if model.satisfaction is not None:
        errors["satisfaction"] = _find_largest(model.satisfaction - SATISFACTION)
    return errors


def _find_largest(errors: NDArray[np.float64]) -> float:
    return float(np.abs(errors).max())


def measure_perplexities(log: ClickLog) -> dict[str, float]:
    """Return the perplexity of each model on the last fifth of a log, fitted to the rest."""
    return {fit.model.name: fit.perplexity for fit in compare_models(lambda: iter([log]), len(log), train=0.8)}


def main() -> None:
    """Print a line per model: its largest errors over all seeds, and the mean perplexity of all models on its logs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=501)
    options = parser.parse_args()
    for name in MODELS:
        logs = [simulate_clicks(name, options.first + k, options.lists) for k in range(options.seeds)]
        errors = [measure_errors(MODELS[name](log)) for log in logs]
        largest = ", ".join(f"{kind} {max(error[kind] for error in errors):.3f}" for kind in errors[0])
        fits = [measure_perplexities(log) for log in logs]
        means = ", ".join(f"{model} {np.mean([fit[model] for fit in fits]):.4f}" for model in MODELS)
        print(f"{name:8} largest errors: {largest}; perplexity: {means}", flush=True)


if __name__ == "__main__":
    main()
