"""Assumptions are found in worlds whose numbers are known, and lemmas and bounds are held against runs."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from fedcascade import POLICIES, Synthetic, TopK, simulate
from fedcascade.experiments.diagnosis.estimates import compute_gap, estimate_assumptions, estimate_sigma
from fedcascade.experiments.diagnosis.lemmas import LEMMAS, find_largest_ratios, measure_coverage
from fedcascade.experiments.diagnosis.measurement import compare_over_time, find_round_of_partition, play_world
from fedcascade.experiments.diagnosis.silence import measure_silence
from fedcascade.experiments.reports.figures import save_figure
from fedcascade.experiments.reports.theory_figure import plot_bounds
from fedcascade.federation.messages import Cause
from fedcascade.learning.theory.guarantee import Settings


def make_world(seed: int = 0) -> Synthetic:
    return Synthetic(users=6, clusters=2, dimension=5, items=20, seed=seed)


def test_the_assumptions_of_a_world_whose_numbers_are_known() -> None:
    world = Synthetic(users=4, clusters=3, dimension=11, items=100, gap=0.3, arrivals=[4, 3, 2, 1])
    found = estimate_assumptions(world)
    assert (found.users, found.clusters, found.items) == (4, 3, 100)
    assert found.gamma == pytest.approx(0.3, abs=1e-6)
    assert found.p_min == pytest.approx(0.1)
    assert found.p_max == pytest.approx(0.4)
    assert found.lambda_x == pytest.approx(
        1 / 20, rel=0.05
    )  # (z / ||z||, 1) / sqrt(2) has the variances 1 / (2 (d - 1))


def test_the_gap_is_the_least_of_all_pairs() -> None:
    thetas = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.5]])
    assert compute_gap(thetas, np.array([0, 0, 1, 2])) == 0.5
    assert compute_gap(thetas[:2], np.array([0, 0])) == 2.0


def test_sigma_bounds_the_lower_tail_and_is_the_least_that_does() -> None:
    """x = N(0, 1) / 10 in one dimension: (theta . x)^2 is a hundredth of chi-squared with one degree of freedom."""
    sample = np.random.default_rng(3).normal(size=(40_000, 1)) / 10
    below = np.linspace(0.001, 0.999, 999)
    expected = math.sqrt(np.max(below**2 / (-2 * chi2.logcdf(1 - below, df=1)))) / 100
    assert estimate_sigma(sample, np.ones((1, 1))) == pytest.approx(expected, rel=0.03)


def test_a_world_that_does_not_say_its_thetas_is_refused() -> None:
    with pytest.raises(ValueError, match="object does not say its thetas"):
        estimate_assumptions(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha_c", [0.1, 1.0])
def test_the_lemmas_hold_in_runs(alpha_c: float) -> None:
    """Lemma 2.1 always; Lemma 1, Lemma 2.2 and OFUL's ellipsoid with probability 1 - delta, and they are cautious."""
    coverage = measure_coverage(
        make_world, range(6), rounds=250, list_length=3, settings=Settings(alpha_c=alpha_c, lambda_=1.0), delta=0.1
    )
    assert set(coverage) == set(LEMMAS)
    for name, found in coverage.items():
        assert (found.runs, found.held) == (6, 6), name
        assert 0.0 < found.largest_ratio <= 1.0, name


def test_a_radius_that_is_too_small_is_noticed() -> None:
    """With a tenth of the noise level that clicks have, OFUL's ellipsoid and Lemma 2.2 fail."""
    ratios = find_largest_ratios(
        make_world(), rounds=300, list_length=3, settings=Settings(noise=0.05, lambda_=0.01), delta=0.1
    )
    assert ratios["oful"] > 1.0
    assert ratios["lemma_2_2"] > 1.0


@pytest.mark.long
def test_coverage_over_many_runs() -> None:
    """At least 1 - delta of 200 runs, up to three standard deviations."""
    coverage = measure_coverage(make_world, range(200), rounds=500, list_length=3, settings=Settings(), delta=0.1)
    for found in coverage.values():
        assert found.held >= 200 * 0.9 - 3 * math.sqrt(200 * 0.09)


def test_lemma_1_1_fails_for_users_who_are_not_always_there() -> None:
    """The erratum: after sqrt(1/delta) arrivals most are silent, as the p_t of those rounds say."""
    world, rounds = Synthetic(users=20, clusters=2, dimension=5, items=20), 20_000
    trace = simulate(world, POLICIES["fedc3ucb-h"], rounds=rounds, oracle=TopK(length=2))
    for found in measure_silence(world, trace, starts=[1_000, 5_000], delta=400 / rounds, p_scale=3.0):
        assert (found.arrivals, found.agents) == (8, 20)
        assert found.claimed == pytest.approx(0.02**1.5)
        assert found.by_chance == pytest.approx(found.expected, abs=0.25)
        assert 0.5 < found.at_all <= found.by_chance


@pytest.mark.parametrize("start", [14, 100])
def test_lemma_1_1_holds_for_a_user_who_is_always_there(start: int) -> None:
    """With one user, rounds and arrivals are the same: the product of 1 - p_t is below delta^1.5."""
    delta = 1e-6
    rounds = np.arange(start, start + math.ceil(math.sqrt(1 / delta)))
    assert math.exp(np.log1p(-3 * np.log(rounds) / rounds).sum()) < delta**1.5


@pytest.mark.parametrize(("k_1", "k_2"), [(3.0, 1.0), (1.0, 10.0)])
def test_lemma_1_2_the_ratio_tends_to_one(k_1: float, k_2: float) -> None:
    def compute_ratio(t: float) -> float:
        slow = k_2 * math.log(t) + t
        return math.exp(t * math.log1p(-k_1 * math.log(slow) / slow) + k_1 * math.log(t))

    errors = [abs(compute_ratio(t) - 1) for t in (1e4, 1e6, 1e8)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


def test_bounds_over_time_and_their_figure(tmp_path: Path) -> None:
    world, settings = make_world(), Settings(alpha_c=0.5)
    trace = play_world(world, settings, rounds=2_000, list_length=3)
    points = compare_over_time(world, estimate_assumptions(world, items=2_000), settings, trace, 3)
    assert points[0].round > 36  # |U|^2
    assert points[-1].exchanges_determinant == trace.communications(Cause.DETERMINANT)
    for point in points:
        assert point.exchanges_determinant <= point.derived.exchanges_determinant
        assert point.exchanges_beside <= point.paper.exchanges_beside
        assert point.regret <= point.round
    drawn = save_figure(plot_bounds(points, "auxiliary"), tmp_path, "theory")
    for words in ("exchanges for the determinant", "derived: J/alpha_c", "measured", "exchanges by chance"):
        assert words in drawn


def test_the_round_of_the_partition() -> None:
    known = simulate(make_world(), POLICIES["known-clusters"], rounds=100)
    assert find_round_of_partition(known) == 10
    assert find_round_of_partition(simulate(make_world(), POLICIES["fedind"], rounds=100)) is None
