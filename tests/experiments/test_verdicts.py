"""The rule of verdicts: each of its edges, and how often luck alone would earn 'confirmed'."""

from math import inf, sqrt

import numpy as np
import pytest

from fedcascade.experiments.paper_claims import judge_count, judge_gap
from fedcascade.intervals import Interval, estimate_mean

TRIALS = 20_000


@pytest.mark.parametrize(
    ("mean", "half", "paper_says", "verdict"),
    [
        (0.826, 0.01, 0.82, "confirmed"),
        (0.62, 0.004, 0.82, "confirmed"),  # 82 - 82 / 4 = 61.5
        (0.60, 0.01, 0.82, "smaller than the paper's"),
        (0.60, 0.02, 0.82, "confirmed"),  # reaches 61.5
        (0.46, 0.02, 0.82, "smaller than the paper's"),
        (0.065, 0.05, 0.10, "confirmed"),
        (0.065, 0.005, 0.10, "smaller than the paper's"),
        (0.02, 0.012, 0.05, "confirmed"),  # 5 - 2 points
        (0.02, 0.008, 0.05, "smaller than the paper's"),
        (0.065, 0.08, 0.10, "inconclusive"),
        (0.5, inf, 0.10, "inconclusive"),
        (-0.01, 0.20, 0.10, "inconclusive"),
        (-0.05, 0.02, 0.10, "contradicted"),
        (0.20, 0.01, None, "confirmed"),
        (0.01, 0.05, None, "inconclusive"),
        (0.0, 0.0, None, "inconclusive"),
        (-0.01, 0.005, None, "contradicted"),
    ],
)
def test_verdicts_on_gaps(mean: float, half: float, paper_says: float | None, verdict: str) -> None:
    assert judge_gap(Interval(mean, half, 3), paper_says) == verdict


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (1040, 5, "confirmed"),
        (960, 5, "confirmed"),
        (1040, 15, "inconclusive"),
        (1000, 60, "inconclusive"),
        (1060, 20, "inconclusive"),
        (1060, 5, "contradicted"),
        (900, 20, "contradicted"),
        (1000, inf, "inconclusive"),
    ],
)
def test_verdicts_on_counts(mean: float, half: float, verdict: str) -> None:
    assert judge_count(Interval(mean, half, 3), 1000) == verdict


@pytest.mark.parametrize("runs", [3, 10])
@pytest.mark.parametrize("paper_says", [None, 0.10])
def test_a_gap_that_is_truly_zero_is_hardly_ever_confirmed(runs: int, paper_says: float | None) -> None:
    luck = np.random.default_rng(runs).normal(0.0, 0.1, (TRIALS, runs))
    verdicts = [judge_gap(estimate_mean(row), paper_says) for row in luck.tolist()]
    # The share is 2.5% at most, and a sample of it four standard errors more at most.
    allowed = 0.025 + 4 * sqrt(0.025 * 0.975 / TRIALS)
    assert verdicts.count("confirmed") / TRIALS <= allowed
    assert verdicts.count("contradicted") / TRIALS <= allowed
    assert verdicts.count("inconclusive") / TRIALS >= 1 - 2 * allowed


def test_a_gap_as_wide_as_the_papers_is_confirmed_as_soon_as_it_is_seen() -> None:
    luck = np.random.default_rng(1).normal(0.10, 0.03, (1_000, 10))
    verdicts = [judge_gap(estimate_mean(row), 0.10) for row in luck.tolist()]
    assert verdicts.count("confirmed") / len(verdicts) >= 0.99


def test_a_count_that_is_ten_percent_off_is_hardly_ever_confirmed() -> None:
    luck = np.random.default_rng(2).normal(1100, 30, (2_000, 3))
    verdicts = [judge_count(estimate_mean(row), 1000) for row in luck.tolist()]
    assert verdicts.count("confirmed") / len(verdicts) <= 0.001
