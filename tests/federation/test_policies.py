"""The table of policies: its rows and parts, tuning, and refusals that name the nearest."""

from dataclasses import replace

import pytest

from fedcascade.federation.decisions import DownloadAndBuffer, LastDownload
from fedcascade.federation.grouping import Alone, Everyone, HeterogeneityGraph, KnownClusters
from fedcascade.federation.policies import POLICIES, Order, Policy, installed, policy
from fedcascade.federation.triggers import Auxiliary, Determinant, Doubling, Never
from fedcascade.learning.confidence import Constant, Theory

PARTS = {
    "fedc3ucb-h": (HeterogeneityGraph(), Determinant() | Auxiliary(), LastDownload()),
    "force-comm": (HeterogeneityGraph(), Determinant() | Doubling(), LastDownload()),
    "no-auxiliary": (HeterogeneityGraph(), Determinant(), LastDownload()),
    "fedlinucb": (Everyone(), Determinant(), LastDownload()),
    "fedind": (Alone(), Never(), DownloadAndBuffer()),
    "known-clusters": (KnownClusters(), Determinant(), LastDownload()),
}


def test_the_rows_of_the_table() -> None:
    assert set(POLICIES) == set(PARTS)
    assert set(POLICIES) <= set(installed())


@pytest.mark.parametrize("name", PARTS)
def test_the_parts_of_a_row(name: str) -> None:
    row = POLICIES[name]
    assert row.name == name
    assert (row.grouping, row.trigger, row.decision) == PARTS[name]
    assert row.confidence == Constant(beta=10.5)
    assert row.lambda_ == 4.0
    assert row.order is Order.UPLOAD_FIRST
    assert row.yardstick == (name == "known-clusters")
    assert row.summary
    assert policy(name) is row


def test_the_constants_of_the_reproduction() -> None:
    assert POLICIES["fedc3ucb-h"].constants() == {
        "lambda_": 4.0,
        "order": Order.UPLOAD_FIRST,
        "alpha_d": 7.0,
        "alpha_c": 1.0,
        "p_scale": 3.0,
        "beta": 10.5,
    }
    assert POLICIES["fedind"].constants() == {"lambda_": 4.0, "order": Order.UPLOAD_FIRST, "beta": 10.5}


@pytest.mark.parametrize("name", PARTS)
def test_tuning_with_its_own_constants_changes_nothing(name: str) -> None:
    row = POLICIES[name]
    assert row.tuned(**row.constants()) == row
    assert row.tuned() == row


def test_every_constant_can_be_tuned_and_read_back() -> None:
    row = POLICIES["fedc3ucb-h"]
    wanted = {
        "lambda_": 2.0,
        "order": Order.AGGREGATE_FIRST,
        "alpha_d": 1.5,
        "alpha_c": 0.25,
        "p_scale": 0.0,
        "beta": 0.5,
    }
    tuned = row.tuned(**wanted)
    assert tuned.constants() == wanted
    assert tuned.trigger == Determinant(alpha_c=0.25) | Auxiliary(p_scale=0.0)
    assert tuned.grouping == HeterogeneityGraph(alpha_d=1.5)
    assert tuned.confidence == Constant(beta=0.5)
    assert (tuned.lambda_, tuned.order, tuned.name) == (2.0, Order.AGGREGATE_FIRST, row.name)
    assert row == POLICIES["fedc3ucb-h"]
    assert row.constants()["alpha_c"] == 1.0


def test_one_constant_leaves_the_others() -> None:
    row = POLICIES["force-comm"]
    assert row.tuned(alpha_c=3.0).constants() == {**row.constants(), "alpha_c": 3.0}


def test_a_constant_of_two_parts_reaches_both() -> None:
    row = replace(POLICIES["fedc3ucb-h"], confidence=Theory()).tuned(alpha_c=0.1, delta=0.2)
    assert row.confidence == Theory(alpha_c=0.1, delta=0.2)
    assert row.trigger == Determinant(alpha_c=0.1) | Auxiliary()


def test_an_unknown_constant_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"fedc3ucb-h 'alpha_x': did you mean 'alpha_[cd]'\?"):
        POLICIES["fedc3ucb-h"].tuned(alpha_x=1.0)
    with pytest.raises(ValueError, match="'lamda': did you mean 'lambda_'"):
        POLICIES["fedind"].tuned(lamda=1.0)
    with pytest.raises(ValueError, match="unknown constant of fedind 'alpha_d'"):
        POLICIES["fedind"].tuned(alpha_d=1.0)


@pytest.mark.parametrize(
    ("name", "bad"), [("lambda_", 0.0), ("alpha_c", -1.0), ("alpha_d", 0.0), ("beta", -1.0), ("p_scale", -1.0)]
)
def test_bad_values_are_refused(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match=name.rstrip("_")):
        POLICIES["fedc3ucb-h"].tuned(**{name: bad})


def test_an_order_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        POLICIES["fedc3ucb-h"].tuned(order="sideways")


@pytest.mark.parametrize(
    ("typed", "nearest"), [("fedc3ucb", "fedc3ucb-h"), ("fedlinub", "fedlinucb"), ("forcecomm", "force-comm")]
)
def test_an_unknown_policy_is_refused_with_the_nearest_name(typed: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"unknown policy '{typed}': did you mean '{nearest}'"):
        policy(typed)


def test_a_name_like_no_other_is_refused_with_all_names() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'zzz': expected one of .*fedc3ucb-h"):
        policy("zzz")


def test_a_row_as_plain_data() -> None:
    row = POLICIES["known-clusters"]
    assert row.described() == {
        "name": "known-clusters",
        "summary": row.summary,
        "yardstick": True,
        "constants": row.constants(),
    }


@pytest.mark.parametrize("lambda_", [0.0, -4.0, float("nan")])
def test_a_policy_without_a_regulariser_is_refused(lambda_: float) -> None:
    with pytest.raises(ValueError, match="lambda"):
        Policy("mine", Alone(), Never(), LastDownload(), lambda_=lambda_)
