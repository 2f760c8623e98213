"""Theorem 1 in numbers: against scipy, by hand, and against what really happens."""

import math
from typing import Any

import pytest
from scipy.integrate import quad

from fedcascade import POLICIES, Synthetic, TopK, simulate
from fedcascade.environments.synthetic import FeatureKind
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.theory import (
    bound_auxiliary_exchanges,
    bound_determinant_exchanges,
    compute_guarantee,
    compute_lambda_tilde,
)

SIZES = ProblemSize(users=40, dimension=20, list_length=4, rounds=1_000_000)


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
    found = compute_guarantee(
        SIZES, clusters=10, items=200, gamma=0.5, lambda_x=0.05, sigma=0.005, lambda_=4.0, alpha_c=0.25
    )
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


def test_failures_count_once_the_partition_is_there() -> None:
    small = ProblemSize(users=2, dimension=2, list_length=1, rounds=10**12)
    found = compute_guarantee(small, clusters=1, items=1, gamma=1.0, lambda_x=0.5, sigma=0.001)
    delta = 4 / 10**12
    left = 10**12 - found.T_0 - found.T_1
    assert left > 0
    assert found.regret_failure == pytest.approx(left * (2 * delta + 2 * delta**1.5))


@pytest.mark.parametrize(
    "bad", [{"gamma": 0.0}, {"lambda_x": -1.0}, {"sigma": 0.0}, {"items": 0}, {"alpha_c": 0.0}, {"noise": -1.0}]
)
def test_bad_values_are_refused(bad: dict[str, float]) -> None:
    good: dict[str, Any] = {"clusters": 10, "items": 200, "gamma": 1.0, "lambda_x": 0.05, "sigma": 0.005}
    with pytest.raises(ValueError, match=next(iter(bad))):
        compute_guarantee(SIZES, **(good | bad))


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds must be > users"):
        compute_guarantee(
            ProblemSize(users=40, dimension=2, list_length=1, rounds=1600),
            clusters=1,
            items=9,
            gamma=1.0,
            lambda_x=0.5,
            sigma=0.1,
        )


@pytest.mark.parametrize("alpha_c", [0.05, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("clusters", [1, 5])
@pytest.mark.parametrize("features", ["lifted", "gaussian"])
def test_measured_exchanges_stay_under_the_bound(alpha_c: float, clusters: int, features: FeatureKind) -> None:
    world = Synthetic(users=20, clusters=clusters, dimension=10, items=50, features=features, seed=1)
    rounds, K = 10_000, 4
    problem = ProblemSize(users=20, dimension=10, list_length=K, rounds=rounds)
    needed = bound_determinant_exchanges(problem, lambda_=1.0, alpha_c=alpha_c)
    for name in ("fedlinucb", "no-auxiliary", "fedc3ucb-h"):
        row = POLICIES[name].with_known_constants({"alpha_c": alpha_c, "alpha_d": 2.0, "lambda_": 1.0, "beta": 1.0})
        trace = simulate(world, row, rounds=rounds, oracle=TopK(length=K))
        bound = needed + (bound_auxiliary_exchanges(rounds, 3.0) if name == "fedc3ucb-h" else 0.0)
        assert 0 < trace.communications() < bound
