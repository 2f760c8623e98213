"""Triggers fire exactly when the paper says, and give their cause."""

from math import expm1, log

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedcascade.federation.messages import Cause
from fedcascade.federation.triggers import (
    Always,
    Auxiliary,
    Determinant,
    Doubling,
    Never,
    Occasion,
    Trigger,
)
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics


def learned(seed: int, rows: int, dimension: int) -> Statistics:
    drawn = np.random.default_rng(seed).normal(size=(rows, dimension))
    listed = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    return Statistics.zero(dimension).observe(listed, None)


def occasion(
    *,
    round_: int = 10,
    draw: float = 0.999,
    arrivals: int = 3,
    download: Statistics | None = None,
    buffer: Statistics | None = None,
    lambda_: float = 1.0,
) -> Occasion:
    return Occasion(
        round=round_,
        draw=draw,
        arrivals=arrivals,
        download=Ridge(download or Statistics.zero(2), lambda_),
        buffer=buffer or Statistics.zero(2),
    )


def diagonal(*values: float) -> Statistics:
    return Statistics(np.diag(values), np.zeros(len(values)), 1, 0, 1)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 30), st.integers(1, 10), st.floats(0.1, 10.0))
def test_determinant_fires_just_above_its_threshold_and_not_just_below(
    seed: int, dimension: int, before: int, since: int, lambda_: float
) -> None:
    old, new = learned(seed, before, dimension), learned(seed + 1, since, dimension)
    sigma = old.gram + lambda_ * np.eye(dimension)
    growth = np.linalg.slogdet(sigma + new.gram)[1] - np.linalg.slogdet(sigma)[1]
    assume(growth > 1e-3)
    now = occasion(download=old, buffer=new, lambda_=lambda_)
    assert Determinant(alpha_c=expm1(growth) * (1 - 1e-6)).cause(now) is Cause.DETERMINANT
    assert Determinant(alpha_c=expm1(growth) * (1 + 1e-6)).cause(now) is None


@pytest.mark.parametrize(("lambda_", "gram", "alpha_c"), [(1.0, 3.0, 3.0), (4.0, 12.0, 3.0), (4.0, 60.0, 15.0)])
def test_determinant_is_strict_at_its_threshold(lambda_: float, gram: float, alpha_c: float) -> None:
    # det(Sigma + gram) is exactly (1 + alpha_c) det(Sigma).
    def at(value: float) -> Occasion:
        return occasion(download=diagonal(0.0, 0.0), buffer=diagonal(value, 0.0), lambda_=lambda_)

    trigger = Determinant(alpha_c=alpha_c)
    assert trigger.cause(at(gram)) is None
    assert trigger.cause(at(gram * (1 - 1e-9))) is None
    assert trigger.cause(at(gram * (1 + 1e-9))) is Cause.DETERMINANT


def test_an_empty_buffer_never_speaks() -> None:
    assert Determinant(alpha_c=1e-9).cause(occasion(download=learned(1, 20, 2))) is None


@pytest.mark.parametrize(
    ("round_", "probability"),
    [(1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 3 * log(5) / 5), (100, 0.13815510557964275)],
)
def test_auxiliary_probability(round_: int, probability: float) -> None:
    # 3 ln(t) / t is 1.0397, 1.0986 and 1.0397 at t = 2, 3, 4.
    assert Auxiliary().probability(round_) == pytest.approx(probability, rel=1e-14)


def test_auxiliary_fires_below_its_probability_only() -> None:
    p = Auxiliary().probability(100)
    assert Auxiliary().cause(occasion(round_=100, draw=np.nextafter(p, 0.0))) is Cause.AUXILIARY
    assert Auxiliary().cause(occasion(round_=100, draw=p)) is None
    assert Auxiliary().cause(occasion(round_=1, draw=0.0)) is None
    assert Auxiliary().cause(occasion(round_=3, draw=np.nextafter(1.0, 0.0))) is Cause.AUXILIARY
    assert Auxiliary(p_scale=0.0).cause(occasion(round_=3, draw=0.0)) is None


def test_doubling_fires_at_powers_of_two_only() -> None:
    fired = [n for n in range(1, 1100) if Doubling().cause(occasion(arrivals=n)) is Cause.FORCED]
    assert fired == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def test_always_and_never() -> None:
    assert Always().cause(occasion()) is Cause.FORCED
    assert Never().cause(occasion(arrivals=4, draw=0.0, buffer=diagonal(100.0, 100.0))) is None


@pytest.mark.parametrize(
    ("trigger", "cause"),
    [
        (Determinant() | Auxiliary(), Cause.DETERMINANT),
        (Auxiliary() | Determinant(), Cause.AUXILIARY),
        (Never() | Auxiliary(), Cause.AUXILIARY),
        (Auxiliary() | Never(), Cause.AUXILIARY),
        (Never() | Never() | Doubling(), Cause.FORCED),
        (Never() | Determinant() | Doubling(), Cause.DETERMINANT),
        (Never() | (Doubling() | Determinant()), Cause.FORCED),
        (Never() | Never(), None),
    ],
)
def test_the_first_trigger_that_fires_is_the_cause(trigger: Trigger, cause: Cause | None) -> None:
    everything = occasion(round_=3, draw=0.1, arrivals=4, buffer=diagonal(100.0, 100.0))
    assert trigger.cause(everything) is cause


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_constants_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="alpha_c"):
        Determinant(alpha_c=bad)
    if bad != 0.0:
        with pytest.raises(ValueError, match="p_scale"):
            Auxiliary(p_scale=bad)
