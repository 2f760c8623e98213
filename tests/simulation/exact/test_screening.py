"""Single precision is never further off than the engine takes it to be."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.environments import draws
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import linear
from fedcascade.simulation.exact import screening


def make_ridge(d: int, seen: int, lambda_: float, seed: int) -> Ridge:
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((seen, d))
    data /= np.maximum(np.linalg.norm(data, axis=1, keepdims=True), 1.0)
    gram = data.T @ data
    moment = data[rng.random(seen) < 0.5].sum(axis=0)
    return Ridge(Statistics((gram + gram.T) / 2, moment, seen, 0, seen), lambda_)


def measure_errors(ridge: Ridge, beta: float, items: int, seed: int) -> tuple[float, float, float]:
    """The largest errors of a score and of a width, and the margin."""
    d = ridge.theta.size
    scratch = screening.make_scratch(d, items, 1)
    columns = scratch.columns[:d]
    draws.draw_unit_items_into(seed, 1, columns, True, scratch.draft)
    margin = screening.load_decision(ridge.theta, ridge.root, beta, scratch)
    screening.screen_items(items, 1, beta, scratch)
    widths = np.sqrt(linear.compute_squared_widths(ridge.root, columns))[:items]
    scores = linear.compute_means(ridge.theta, columns)[:items] + beta * widths
    width_errors = np.abs(np.sqrt(scratch.squared_width[:items].astype(np.float64)) - widths)
    return float(np.abs(scratch.score[:items] - scores).max()), float(width_errors.max()), margin


@settings(deadline=None, max_examples=60)
@given(
    d=st.integers(2, 70),
    items=st.integers(1, 60),
    seen=st.sampled_from([0, 1, 30, 3_000]),
    lambda_=st.sampled_from([1e-4, 1.0, 4.0, 1e4]),
    beta=st.sampled_from([0.0, 1e-5, 0.3, 10.5, 1e5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_scores_and_widths_are_within_the_margin(
    d: int, items: int, seen: int, lambda_: float, beta: float, seed: int
) -> None:
    """Within half of it: the other half is for the rounding of the reference itself."""
    score_error, width_error, margin = measure_errors(make_ridge(d, seen, lambda_, seed), beta, items, seed)
    assert score_error <= margin / 2
    assert width_error <= screening.bound_error(d, (d / lambda_) ** 0.5) / 2


def test_a_margin_that_is_a_thousand_times_smaller_would_not_do() -> None:
    score_error, _, margin = measure_errors(make_ridge(20, 30, 1.0, 0), 10.5, 200, 0)
    assert score_error > margin / 1000
