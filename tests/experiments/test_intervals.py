"""Means and intervals against scipy."""

import numpy as np
import pytest
from scipy import stats

from fedcascade.experiments.intervals import spread


@pytest.mark.parametrize("count", [2, 3, 10, 31])
def test_the_interval_is_students(count: int) -> None:
    values = np.random.default_rng(count).normal(5, 2, count)
    found = spread(values.tolist())
    low, high = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=stats.sem(values))
    assert found.mean == pytest.approx(values.mean())
    assert found.deviation == pytest.approx(values.std(ddof=1))
    assert found.half == pytest.approx((high - low) / 2, rel=1e-3)
    assert found.runs == count


def test_one_run_says_nothing_about_noise() -> None:
    assert spread([4.0]) == (4.0, 0.0, float("inf"), 1)
