"""The table of policies: its rows and parts, tuning, and refusals that name the nearest."""

from dataclasses import replace

import pytest

from fedcascade.federation.changes import ChangeDetection
from fedcascade.federation.decisions import DownloadAndBuffer, LastDownload
from fedcascade.federation.grouping.graph.complete import ClubGraph, HeterogeneityGraph
from fedcascade.federation.grouping.partition import Alone, Everyone, KnownClusters
from fedcascade.federation.grouping.phases import SplitAndMerge
from fedcascade.federation.grouping.population.partition import Population
from fedcascade.federation.policies import (
    DEFAULT_POLICY,
    POLICIES,
    UNTUNED_BETA,
    Drift,
    Order,
    Policy,
    get_policy,
    load_policies,
)
from fedcascade.federation.replies import AllAgents, Asker, Lagging, LocalServers, OnArrival, OneLearner
from fedcascade.federation.triggers import Always, Auxiliary, Determinant, Doubling, Never, Ratio, SyncBudget
from fedcascade.federation.trust import Trust
from fedcascade.learning.confidence import Constant, Oful, ProblemSize, Theory

PARTS = {
    "fedc3ucb-h": (HeterogeneityGraph(), Determinant() | Auxiliary(), LastDownload()),
    "force-comm": (HeterogeneityGraph(), Determinant() | Doubling(), LastDownload()),
    "no-auxiliary": (HeterogeneityGraph(), Determinant(), LastDownload()),
    "fedlinucb": (Everyone(), Determinant(), LastDownload()),
    "oful": (Everyone(), Never(), DownloadAndBuffer()),
    "c3-ucb": (Everyone(), Never(), DownloadAndBuffer()),
    "dislinucb": (Everyone(), SyncBudget(), DownloadAndBuffer()),
    "club-cascade": (ClubGraph(), Always(), LastDownload()),
    "async-linucb": (Everyone(), Ratio(), DownloadAndBuffer()),
    "async-linucb-am": (Everyone(), Ratio(), DownloadAndBuffer()),
    "phase-fclub": (SplitAndMerge(), Always(), LastDownload()),
    "fedind": (Alone(), Never(), DownloadAndBuffer()),
    "population": (Population(), Determinant(alpha_c=0.5) | Doubling(), DownloadAndBuffer()),
    "known-clusters": (KnownClusters(), Determinant(), LastDownload()),
}
ANSWERS = {
    "oful": OneLearner(),
    "c3-ucb": OneLearner(),
    "dislinucb": AllAgents(),
    "club-cascade": OnArrival(),
    "async-linucb": Lagging(),
    "async-linucb-am": Lagging(),
    "phase-fclub": LocalServers(),
}


def test_the_rows_of_the_table() -> None:
    assert set(POLICIES) == set(PARTS)
    assert set(POLICIES) <= set(load_policies())


@pytest.mark.parametrize("name", PARTS)
def test_the_parts_of_a_row(name: str) -> None:
    row = POLICIES[name]
    assert row.name == name
    assert (row.grouping, row.trigger, row.decision) == PARTS[name]
    own = name.startswith("async-linucb")
    betas = {"fedind": UNTUNED_BETA.beta, "known-clusters": UNTUNED_BETA.beta, "population": 1.5}
    assert row.confidence == (Oful(noise=0.1, delta=0.1) if own else Constant(beta=betas.get(name, 10.5)))
    assert row.lambda_ == {"population": 0.01}.get(name, 0.1 if own else 4.0)
    assert row.trust == (Trust() if name == "population" else None)
    assert (row.drift, row.changes) == (Drift.IGNORE, None)
    assert row.reply_rule == ANSWERS.get(name, Asker())
    assert (row.personal is not None) == (name == "async-linucb-am")
    assert row.order is Order.UPLOAD_FIRST
    assert row.yardstick == (name == "known-clusters")
    assert row.summary
    assert get_policy(name) is row


def test_the_constants_of_the_reproduction() -> None:
    assert POLICIES["fedc3ucb-h"].constants() == {
        "lambda_": 4.0,
        "order": Order.UPLOAD_FIRST,
        "drift": Drift.IGNORE,
        "alpha_d": 7.0,
        "alpha_c": 1.0,
        "p_scale": 3.0,
        "beta": 10.5,
    }


def test_what_is_deployed_has_constants_of_its_own() -> None:
    ours, alone = POLICIES[DEFAULT_POLICY].constants(), POLICIES["fedind"].constants()
    assert DEFAULT_POLICY == "population"
    assert alone == {"lambda_": 4.0, "order": Order.UPLOAD_FIRST, "drift": Drift.IGNORE, "beta": 0.7}
    assert alone.keys() < ours.keys()
    assert (ours["alpha_c"], ours["beta"], ours["lambda_"]) == (0.5, 1.5, 0.01)


@pytest.mark.parametrize("name", PARTS)
def test_tuning_with_its_own_constants_changes_nothing(name: str) -> None:
    row = POLICIES[name]
    assert row.with_constants(**row.constants()) == row
    assert row.with_constants() == row


def test_every_constant_can_be_tuned_and_read_back() -> None:
    row = POLICIES["fedc3ucb-h"]
    wanted = {
        "lambda_": 2.0,
        "order": Order.AGGREGATE_FIRST,
        "drift": Drift.IGNORE,
        "alpha_d": 1.5,
        "alpha_c": 0.25,
        "p_scale": 0.0,
        "beta": 0.5,
    }
    tuned = row.with_constants(**wanted)
    assert tuned.constants() == wanted
    assert tuned.trigger == Determinant(alpha_c=0.25) | Auxiliary(p_scale=0.0)
    assert tuned.grouping == HeterogeneityGraph(alpha_d=1.5)
    assert tuned.confidence == Constant(beta=0.5)
    assert (tuned.lambda_, tuned.order, tuned.name) == (2.0, Order.AGGREGATE_FIRST, row.name)
    assert row == POLICIES["fedc3ucb-h"]
    assert row.constants()["alpha_c"] == 1.0


def test_one_constant_leaves_the_others() -> None:
    row = POLICIES["force-comm"]
    assert row.with_constants(alpha_c=3.0).constants() == {**row.constants(), "alpha_c": 3.0}


def test_a_constant_of_two_parts_reaches_both() -> None:
    row = replace(POLICIES["fedc3ucb-h"], confidence=Theory()).with_constants(alpha_c=0.1, delta=0.2)
    assert row.confidence == Theory(alpha_c=0.1, delta=0.2)
    assert row.trigger == Determinant(alpha_c=0.1) | Auxiliary()


def test_an_unknown_constant_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"fedc3ucb-h 'alpha_x': did you mean 'alpha_[cd]'\?"):
        POLICIES["fedc3ucb-h"].with_constants(alpha_x=1.0)
    with pytest.raises(ValueError, match="'lamda': did you mean 'lambda_'"):
        POLICIES["fedind"].with_constants(lamda=1.0)
    with pytest.raises(ValueError, match="unknown constant of fedind 'alpha_d'"):
        POLICIES["fedind"].with_constants(alpha_d=1.0)


@pytest.mark.parametrize(
    ("name", "bad"), [("lambda_", 0.0), ("alpha_c", -1.0), ("alpha_d", 0.0), ("beta", -1.0), ("p_scale", -1.0)]
)
def test_bad_values_are_refused(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match=name.rstrip("_")):
        POLICIES["fedc3ucb-h"].with_constants(**{name: bad})


def test_an_order_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        POLICIES["fedc3ucb-h"].with_constants(order="sideways")


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [("fedc3ucbh", "fedc3ucb-h"), ("fedlinub", "fedlinucb"), ("forcecomm", "force-comm")],
)
def test_an_unknown_policy_is_refused_with_the_nearest_name(typed: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"unknown policy '{typed}': did you mean '{nearest}'"):
        get_policy(typed)


@pytest.mark.parametrize("name", ["population", "fedind", "fedc3ucb-h", "known-clusters"])
def test_change_detection_is_an_option_of_any_policy(name: str) -> None:
    row = POLICIES[name]
    changing = row.with_constants(drift="restart")
    assert changing.changes == ChangeDetection()
    assert changing.keeps_own_data
    assert changing.with_constants(threshold=5.0).changes == ChangeDetection(threshold=5.0)
    assert changing.with_constants(drift="ignore") == row
    with pytest.raises(ValueError, match="unknown constant"):
        row.with_constants(threshold=5.0)
    with pytest.raises(ValueError, match="drift"):
        row.with_constants(drift="sometimes")


def test_a_name_like_no_other_is_refused_with_all_names() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'zzz': expected one of .*fedc3ucb-h"):
        get_policy("zzz")


def test_a_row_as_plain_data() -> None:
    row = POLICIES["known-clusters"]
    assert row.describe() == {
        "name": "known-clusters",
        "summary": row.summary,
        "yardstick": True,
        "agents": "asynchronous",
        "users": "heterogeneous",
        "constants": row.constants(),
    }


@pytest.mark.parametrize("lambda_", [0.0, -4.0, float("nan")])
def test_a_policy_without_a_regulariser_is_refused(lambda_: float) -> None:
    with pytest.raises(ValueError, match="lambda"):
        Policy("mine", Alone(), Never(), LastDownload(), lambda_=lambda_)


PROBLEM = ProblemSize(users=40, dimension=20, list_length=4, rounds=300_000)


def test_formulas_are_worked_out_for_a_problem() -> None:
    fitted = POLICIES["club-cascade"].fit_to(PROBLEM).constants()
    assert fitted["lambda_"] == 4.0
    assert fitted["alpha_d"] == pytest.approx(8 * 20**0.5)
    assert fitted["beta"] == pytest.approx(16.0, abs=0.05)  # sqrt(20 ln(3751) + 2 ln(4,800,000)) + 2
    assert POLICIES["dislinucb"].fit_to(PROBLEM).constants()["budget"] == pytest.approx(375 / 12.6115, rel=1e-4)


def test_lambda_is_worked_out_before_what_needs_it() -> None:
    longer = replace(PROBLEM, list_length=9)
    known = POLICIES["club-cascade"].with_constants(lambda_=9.0).fit_to(longer)
    assert POLICIES["club-cascade"].fit_to(longer) == known


def test_a_constant_that_is_given_replaces_its_formula() -> None:
    row = POLICIES["club-cascade"].with_constants(beta=5.0)
    assert row.fit_to(PROBLEM).constants()["beta"] == 5.0
    assert row.fit_to(PROBLEM).fit_to(PROBLEM) == row.fit_to(PROBLEM)
    assert POLICIES["club-cascade"].describe()["constants"]["alpha_d"] == "8 sqrt(d)"


def test_an_agent_that_asks_on_arrival_uploads_in_every_round() -> None:
    with pytest.raises(ValueError, match="Always"):
        replace(POLICIES["club-cascade"], trigger=Determinant())
    with pytest.raises(ValueError, match="Never"):
        replace(POLICIES["oful"], trigger=Always())


@pytest.mark.parametrize(("name", "constant"), [("async-linucb", "gamma_u"), ("async-linucb", "gamma_d")])
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_a_ratio_is_greater_than_zero(name: str, constant: str, bad: float) -> None:
    with pytest.raises(ValueError, match=constant):
        POLICIES[name].with_constants(**{constant: bad})
