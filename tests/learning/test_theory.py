"""Theorem 1 in numbers: against scipy, by hand, and against what really happens."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

from fedcascade.learning import theory as bounds
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.theory import Assumptions, Guarantee, Settings, compute_lambda_tilde

SIZES = ProblemSize(users=40, dimension=20, list_length=4, rounds=1_000_000)
SHARES = {"p_min": 1 / 40, "p_max": 1 / 40}
WORLD = Assumptions(users=40, clusters=10, items=200, gamma=0.5, lambda_x=0.05, sigma=0.005, **SHARES)


@pytest.mark.parametrize("lambda_x", [1.0, 0.026, 1e-4])
@pytest.mark.parametrize("ratio", [0.05, 0.137, 0.5, 2.0])
@pytest.mark.parametrize("items", [1, 10, 200])
def test_lambda_tilde_is_the_integral(lambda_x: float, ratio: float, items: int) -> None:
    sigma = ratio * lambda_x
    expected, _ = quad(
        lambda x: (1 - math.exp(-((lambda_x - x) ** 2) / (2 * sigma**2))) ** items, 0, lambda_x, epsabs=0, epsrel=1e-10
    )
    assert compute_lambda_tilde(lambda_x, sigma, items) == pytest.approx(expected, rel=1e-8, abs=1e-300)
    assert 0.0 <= compute_lambda_tilde(lambda_x, sigma, items) < lambda_x


def test_lambda_tilde_of_wild_features_is_nothing_at_all() -> None:
    assert compute_lambda_tilde(0.026, 0.5, 200) == 0.0


def test_the_terms_by_hand() -> None:
    """Each formula of the appendix once more, with |U| = 40, d = 20, K = 4, T = 10^6, J = 10 put in."""
    found = Guarantee(SIZES, WORLD, Settings(alpha_c=0.25), "paper")
    tilde = found.lambda_tilde
    assert found.delta == 1600 / 10**6
    logs = 16 * 40 * math.log(4 * 10**12 / 40)
    worst = max(
        1024 / tilde**2 * math.log(512 * 20 * 10**6 / (tilde**2 * 1600)),
        512 * 20 / (0.25 * tilde) * math.log(4 * 10**6 / 40),
    )
    assert pytest.approx(logs + 4 * 40 * worst) == found.T_0
    assert pytest.approx(logs + 4 * math.sqrt(10**6)) == found.T_1
    spread = math.sqrt(1 + 40 * 0.25) + 40 * math.sqrt(0.5)
    inner = 20 * math.log(1 + 4 * 10**6 / (0.25 * 4 * 20)) + 2 * math.log(10**6 / 1600) + 4 * math.log(4 * 10**7)
    assert found.beta == pytest.approx(2 + 0.5 * spread * math.sqrt(inner))
    big = math.log(1 + 10**6)
    learning = 2 * 20 * 4 * 40 * big + 4 * found.beta * math.sqrt(10 + 10) * math.sqrt(20 * 4 * 10**6 * big)
    assert found.regret_learning == pytest.approx(learning)
    assert found.exchanges == pytest.approx(
        2 * math.log(2) * 20 * (40 + 4) * math.log(1 + 4 * 10**6 / 80) + 3 * (math.log(10**6) + math.log(10**6) ** 2)
    )
    assert found.regret >= found.regret_partition == found.T_0 + found.T_1


def test_our_terms_by_hand() -> None:
    """Where we differ: J/alpha_c, log2 for doublings, and T_1 by the rounds of all."""
    paper = Guarantee(SIZES, WORLD, Settings(alpha_c=0.25), "paper")
    derived = Guarantee(SIZES, WORLD, Settings(alpha_c=0.25))
    assert (derived.beta, derived.T_0, derived.exchanges_other) == (paper.beta, paper.T_0, paper.exchanges_other)
    whole, tenth = 1 + 20 * math.log2(1 + 4 * 10**6 / 80), 1 + 20 * math.log2(1 + 4 * 10**5 / 80)
    assert derived.exchanges_determinant == pytest.approx(40 * whole + 40 * tenth)
    doublings = 2 * 20 * 4 * 40 * (math.log2(1 + 10**6) - math.log(1 + 10**6))
    assert derived.regret_learning == pytest.approx(paper.regret_learning + doublings)
    end = math.exp(math.sqrt(math.log(paper.T_0 + 1) ** 2 + 3 * math.log(10**6 / 1600) * 40 / 3))
    assert pytest.approx(end - paper.T_0) == derived.T_1


def test_force_comm_by_hand() -> None:
    forced = Settings(protocol="force-comm")
    paper, derived = (Guarantee(SIZES, WORLD, forced, source) for source in ("paper", "derived"))
    delta = 1600 / 10**6
    assert pytest.approx(16 * 40 * math.log(4 * 10**6 / delta) + 4 * 40 * paper.T_0) == paper.T_1
    arrived = 2 * paper.T_0 / 40 + 3 * math.log(160 / delta)
    assert pytest.approx(16 * 40 * math.log(160 * 10**6 / delta) + 160 * arrived) == derived.T_1
    assert derived.T_1 < 9 * paper.T_0  # of the order of T_0, as the paper's regret needs it
    assert paper.exchanges_other == pytest.approx(40 * math.log2(10**6))
    assert derived.exchanges_other == pytest.approx(40 * (1 + math.log2(25_000)))


def test_rare_users_take_their_time() -> None:
    """p_min takes the place of 1/|U| in T_0 and in T_1 of both protocols."""
    rare = Assumptions(**asdict(WORLD) | {"p_min": 0.005})
    for protocol in ("auxiliary", "force-comm"):
        settings = Settings(protocol=protocol)
        often, seldom = (Guarantee(SIZES, world, settings, "paper") for world in (WORLD, rare))
        assert pytest.approx(5 * often.T_0) == seldom.T_0
        if protocol == "auxiliary":
            assert pytest.approx(5 * often.T_1) == seldom.T_1
    kept, found = (Guarantee(SIZES, world, Settings()) for world in (WORLD, rare))
    assert found.T_1 > kept.T_1


@pytest.mark.parametrize("mean", [0.5, 5.0, 300.0])
@pytest.mark.parametrize("level", [0.5, 4.0, 12.0])
def test_the_tail_of_arrivals_that_our_t_1_of_force_comm_needs(mean: float, level: float) -> None:
    for users in (2, 40, 1000):
        rounds = math.ceil(mean * users)
        assert binom.sf(2 * mean + 3 * level, rounds, mean / rounds) <= math.exp(-level)


@pytest.mark.parametrize("p_min", [0.5, 1 / 40])
@pytest.mark.parametrize("separated", [10.0, 5_000.0])
def test_after_our_t_1_hardly_anybody_is_silent(p_min: float, separated: float) -> None:
    """The product of 1 - p_min p_t over the rounds from T_0 to T_0 + T_1, beside delta^1.5."""
    delta = 0.01
    world = Assumptions(**asdict(WORLD) | {"users": 2, "clusters": 1, "p_min": p_min, "p_max": 1.0})
    spoken = bounds.bound_rounds_until_auxiliary(world, delta, separated=separated, p_scale=3.0)
    t = np.arange(math.floor(separated) + 1, math.ceil(separated + spoken) + 1)
    silent = np.exp(np.log1p(-p_min * np.minimum(1.0, 3.0 * np.log(t) / t)).sum())
    assert delta**1.5 / 20 < silent <= delta**1.5 * (1 + 1e-9)


def test_failures_count_once_the_partition_is_there() -> None:
    small = ProblemSize(users=2, dimension=2, list_length=1, rounds=10**12)
    world = Assumptions(users=2, clusters=1, items=1, gamma=1.0, lambda_x=0.5, sigma=0.001, p_min=0.5, p_max=0.5)
    found = Guarantee(small, world, Settings(), "paper")
    delta = 4 / 10**12
    left = 10**12 - found.T_0 - found.T_1
    assert left > 0
    assert found.regret_failure == pytest.approx(left * (2 * delta + 2 * delta**1.5))


def test_lower_bounds_are_below_the_upper_ones() -> None:
    found = Guarantee(SIZES, WORLD, Settings())
    below = bounds.bound_regret_below(SIZES, clusters=10)
    assert below == pytest.approx(math.sqrt(20 * 10 * 10**6))
    assert below < found.regret
    assert found.exchanges > 40.0


@pytest.mark.parametrize(
    "bad", [{"gamma": 0.0}, {"lambda_x": -1.0}, {"sigma": 0.0}, {"items": 0}, {"clusters": 41}, {"p_min": 0.1}]
)
def test_bad_worlds_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Assumptions(**asdict(WORLD) | bad)


@pytest.mark.parametrize("bad", [{"alpha_c": 0.0}, {"noise": -1.0}])
def test_bad_constants_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Guarantee(SIZES, WORLD, Settings(**bad))


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds must be > users"):
        Guarantee(ProblemSize(users=40, dimension=2, list_length=1, rounds=1600), WORLD, Settings())
