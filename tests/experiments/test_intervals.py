"""Means and intervals against scipy."""

import numpy as np
import pytest
from scipy import stats

from fedcascade.experiments.intervals import estimate_mean


@pytest.mark.parametrize("count", [2, 3, 10, 31])
def test_the_interval_is_students(count: int) -> None:
    values = np.random.default_rng(count).normal(5, 2, count)
    interval = estimate_mean(values.tolist())
    low, high = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=stats.sem(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.half_width == pytest.approx((high - low) / 2, rel=1e-3)
    assert interval.runs == count
    assert interval.low == pytest.approx(low, rel=1e-3)
    assert interval.high == pytest.approx(high, rel=1e-3)


def test_one_run_says_nothing_about_noise() -> None:
    assert estimate_mean([4.0]) == (4.0, float("inf"), 1)


def test_no_run_has_no_mean() -> None:
    interval = estimate_mean([])
    assert np.isnan(interval.mean)
    assert interval[1:] == (float("inf"), 0)
