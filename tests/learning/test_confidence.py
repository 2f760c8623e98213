"""beta is the constant, the paper's Lemma 1 or the self-normalised bound, as asked."""

from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.learning.confidence import Constant, Oful, ProblemSize, Theory
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

SMALL = ProblemSize(users=2, dimension=1, list_length=2, rounds=6)


def seen(dimension: int, rows: int, seed: int) -> Statistics:
    drawn = np.random.default_rng(seed).normal(size=(rows, dimension))
    listed = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    return Statistics.zero(dimension).observe(listed, None)


@settings(deadline=None)
@given(
    U=st.integers(1, 200),
    d=st.integers(1, 30),
    K=st.integers(1, 10),
    T=st.integers(1, 10**7),
    lambda_=st.floats(0.01, 50.0),
    alpha_c=st.floats(1e-4, 10.0),
    R=st.floats(0.01, 2.0),
    delta=st.floats(1e-6, 0.999),
)
def test_theory_is_the_restated_lemma_1(
    U: int, d: int, K: int, T: int, lambda_: float, alpha_c: float, R: float, delta: float
) -> None:
    # paper.tex, end of the appendix's proof of the local confidence bound, with S = 1.
    inside = d * log(1 + K * T / (min(1, alpha_c) * lambda_ * d)) + 2 * log(1 / delta) + 4 * log(T * U)
    beta = sqrt(lambda_) + R * (sqrt(1 + U * alpha_c) + U * sqrt(2 * alpha_c)) * sqrt(inside)
    problem = ProblemSize(users=U, dimension=d, list_length=K, rounds=T)
    ridge = Ridge(Statistics.zero(d), lambda_)
    assert Theory(alpha_c=alpha_c, noise=R, delta=delta).radius(ridge, problem) == pytest.approx(beta, rel=1e-12)


def test_theory_by_hand() -> None:
    # sqrt(4) + 0.5 (sqrt(5) + 2 sqrt(4)) sqrt(ln 4 + 2 ln 2 + 4 ln 12): 12.71222 under the last root.
    radius = Theory(alpha_c=2.0, noise=0.5, delta=0.5).radius(Ridge(Statistics.zero(1), 4.0), SMALL)
    assert radius == pytest.approx(13.11713, abs=1e-4)
    # Below 1 alpha_c counts in the logarithm: sqrt(4) + (sqrt(2) + 2) sqrt(ln 7 + 2 ln 2 + 4 ln 12).
    radius = Theory(alpha_c=0.5, noise=1.0, delta=0.5).radius(Ridge(Statistics.zero(1), 4.0), SMALL)
    assert radius == pytest.approx(14.43816, abs=1e-4)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(0, 40), st.floats(0.1, 10.0), st.floats(0.01, 0.9))
def test_oful_is_the_self_normalised_bound(d: int, rows: int, lambda_: float, delta: float) -> None:
    statistics = seen(d, rows, seed=rows)
    determinant = np.linalg.slogdet(statistics.gram + lambda_ * np.eye(d))[1]
    bound = 0.7 * sqrt(2 * (determinant / 2 - d * log(lambda_) / 2 - log(delta))) + sqrt(lambda_)
    problem = ProblemSize(users=3, dimension=d, list_length=1, rounds=10)
    ridge = Ridge(statistics, lambda_)
    assert Oful(noise=0.7, delta=delta).radius(ridge, problem) == pytest.approx(bound, rel=1e-9)


def test_oful_grows_with_the_data() -> None:
    problem = ProblemSize(users=1, dimension=4, list_length=1, rounds=10)
    radii = [Oful().radius(Ridge(seen(4, rows, 1), 1.0), problem) for rows in (0, 1, 10, 100)]
    assert radii == sorted(radii)
    assert radii[0] < radii[-1]


def test_a_constant_is_constant() -> None:
    for rows in (0, 5):
        assert Constant(beta=0.25).radius(Ridge(seen(1, rows, 0), 1.0), SMALL) == 0.25


@pytest.mark.parametrize("beta", [-1.0, float("nan"), float("inf")])
def test_a_negative_beta_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        Constant(beta=beta)


@pytest.mark.parametrize("kind", [Theory, Oful])
@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_delta_that_is_no_probability_is_refused(kind: type[Theory] | type[Oful], delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        kind(delta=delta)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_noise_and_alpha_c_must_be_positive(bad: float) -> None:
    for kind in (Theory, Oful):
        with pytest.raises(ValueError, match="noise"):
            kind(noise=bad)
    with pytest.raises(ValueError, match="alpha_c"):
        Theory(alpha_c=bad)


@pytest.mark.parametrize("name", ["users", "dimension", "list_length", "rounds"])
@pytest.mark.parametrize("bad", [0, -3, 1.5])
def test_sizes_of_a_problem_must_be_counts(name: str, bad: int) -> None:
    sizes = {"users": 2, "dimension": 2, "list_length": 2, "rounds": 2, name: bad}
    with pytest.raises(ValueError, match=name.replace("_", " ")):
        ProblemSize(**sizes)
