"""The paper's claims: its own numbers, our arithmetic against numpy, and what runs allow to say of them."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedcascade.experiments import paper_claims
from fedcascade.experiments.paper_claims import FIVE, PAPER_POLICY, PLANS, RATINGS, STRICT, TEN, Claim
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.results import Results

from .conftest import resize_plan

NAMED = tuple(paper_claims.NAMES)
LATER, SOONER = (text for text, *_ in paper_claims.SOONER)
PLACED_AT = {"fedc3ucb-h": 30, "no-auxiliary": 40, "force-comm": 20}


def make_results(plans: list[Plan], never_placed: tuple[tuple[str, int], ...] = ()) -> Results:
    """Make results in which every number is known; users of some policies and seeds are never placed."""
    luck = np.random.default_rng(0)
    runs = [
        {"experiment": plan.name, "environment": plan.environments[0].name, "label": policy.label, "seed": seed,
         "regret": 100.0 * (1 + NAMED.index(policy.label)) + luck.normal(), "exchanges": int(luck.integers(500, 900)),
         "clustering_error": 0.0}
        for plan in plans for policy in plan.policies for seed in plan.seeds
    ]  # fmt: skip
    placed_at = [
        10**9 if (row["label"], row["seed"]) in never_placed else PLACED_AT.get(str(row["label"]), 100) for row in runs
    ]
    curves = [
        {**row, "round": round_, "clustering_error": 1.0 if round_ < at else 0.0}
        for row, at in zip(runs, placed_at, strict=True)
        for round_ in (10, 20, 30, 40)
    ]
    return Results(Path(), {}, plans, pl.DataFrame(runs), pl.DataFrame(curves))


def judge(results: Results) -> dict[tuple[str, str], Claim]:
    return {(claim.plan, claim.text): claim for claim in paper_claims.judge_claims(results)}


def test_the_plans_are_the_papers_setting_with_the_constants_that_reproduce_it() -> None:
    for plan in paper_claims.load_paper_plans():
        assert (plan.rounds, plan.list_length) == (1_000_000, 4)
        assert len(plan.seeds) == 10
        spec = plan.environments[0].spec
        options = spec.options
        assert (options["users"], options["dimension"], options["items"]) == (40, 20, 200)
        if spec.kind == "synthetic":
            assert (options["features"], options["directions"]) == ("lifted", "orthonormal")
        else:
            assert (options["preset"], spec.file) == ("paper", None)
        for policy in plan.policies:
            assert policy.constants["lambda"] == 4.0
            assert policy.constants["beta"] == 10.5
            assert policy.constants.get("alpha_c", 1.0) == 1.0
            assert policy.constants.get("alpha_d", 7.0) == 7.0
    specs = [plan.environments[0].spec for plan in paper_claims.load_paper_plans()]
    assert [spec.options["clusters"] for spec in specs] == [5, 10, 10]


def test_quick_plans_are_as_long_as_the_papers_with_fewer_runs(tmp_path: Path) -> None:
    quick = paper_claims.load_paper_plans(quick=True)
    assert [(plan.name, plan.rounds, plan.seeds) for plan in quick] == [
        (FIVE, 1_000_000, (0, 1, 2)),
        (TEN, 1_000_000, (0, 1, 2)),
    ]
    assert [len(plan.seeds) for plan in paper_claims.load_paper_plans(runs=12)] == [12, 12, 12]
    with pytest.raises(ValueError, match="runs"):
        paper_claims.load_paper_plans(runs=0)


def test_a_file_replaces_generated_ratings_and_their_name(tmp_path: Path) -> None:
    plan = paper_claims.load_paper_plans(quick=True, ratings=tmp_path / "ratings.csv")[PLANS.index(RATINGS)]
    spec = plan.environments[0].spec
    assert spec.file == str(tmp_path / "ratings.csv")
    assert (plan.title, plan.environments[0].name) == ("Ratings, J = 10", "ratings, J = 10")
    generated = paper_claims.load_paper_plans()[PLANS.index(RATINGS)]
    assert (generated.title, generated.environments[0].name) == (
        "Generated ratings, J = 10",
        "generated ratings, J = 10",
    )


def test_percentages_are_those_of_paired_runs() -> None:
    results = make_results(paper_claims.load_paper_plans())
    claims = judge(results)
    claim = claims[TEN, "FedC3UCB-H: less regret than FedLinUCB"]
    rows = results.runs.filter(pl.col("experiment") == TEN)
    ours, theirs = (
        rows.filter(pl.col("label") == name).sort("seed")["regret"].to_numpy() for name in (PAPER_POLICY, "fedlinucb")
    )
    gaps = 1 - ours / theirs
    assert claim.ours.mean == pytest.approx(gaps.mean())
    assert claim.ours.half_width == pytest.approx(2.262 * gaps.std(ddof=1) / np.sqrt(10))
    assert (claim.paper, claim.place, claim.verdict) == (0.82, "J = 10", "confirmed")  # 1 - 100 / 400 >= 61.5%
    assert claims[TEN, "FedC3UCB-H: less regret than NoAuxiliary"].ours.runs == 10


def test_clustering_claims_compare_when_users_are_placed() -> None:
    claims = judge(make_results(paper_claims.load_paper_plans()))
    for text in (LATER, SOONER):
        assert (claims[TEN, text].ours.mean, claims[TEN, text].verdict) == (10, "confirmed")


@pytest.mark.parametrize("policy", [PAPER_POLICY, "no-auxiliary"])
def test_a_run_in_which_a_user_was_never_placed_is_no_value(policy: str) -> None:
    claims = judge(make_results(paper_claims.load_paper_plans(), never_placed=((policy, 3), (policy, 7))))
    later = claims[TEN, LATER]
    assert (later.ours.mean, later.ours.runs) == (10, 8)  # the end of a run is not taken for the round
    assert (later.verdict, later.note) == ("inconclusive", "2 of 10 runs censored")


def test_where_nobody_was_ever_placed_there_is_no_mean() -> None:
    never = tuple(("no-auxiliary", seed) for seed in range(10))
    later = judge(make_results(paper_claims.load_paper_plans(), never_placed=never))[TEN, LATER]
    assert (later.ours.runs, later.verdict, later.note) == (0, "inconclusive", "10 of 10 runs censored")


def test_two_runs_are_not_judged_but_their_direction_is_shown() -> None:
    claims = judge(make_results(paper_claims.load_paper_plans(quick=True, runs=2)))
    assert {claim.verdict for claim in claims.values()} == {"not judged"}
    assert claims[TEN, "FedC3UCB-H: less regret than FedLinUCB"].note == "same direction in 2 of 2 runs"
    assert claims[TEN, "FedLinUCB: exchanges"].note.startswith("within 5% in ")
    assert len(claims) == 9 + 2 + 8


def test_shorter_runs_are_not_judged() -> None:
    plans = [resize_plan(plan, rounds=999_999) for plan in paper_claims.load_paper_plans()]
    claims = judge(make_results(plans))
    assert {claim.verdict for claim in claims.values() if claim.plan != RATINGS} == {"not judged"}
    assert claims[FIVE, "FedC3UCB-H: less regret than FedInd"].note == "same direction in 10 of 10 runs"


def test_full_runs_are_judged() -> None:
    claims = judge(make_results(paper_claims.load_paper_plans(runs=3)))
    assert "not judged" not in {claim.verdict for claim in claims.values()}
    assert sum(claim.unit == "exchanges" for claim in claims.values()) == 12


@pytest.mark.parametrize(
    ("file", "place", "is_comparable"),
    [
        (None, "generated ratings", False),
        ("movies.csv", "movies.csv", False),
        ("yelp_review.json", "yelp_review.json", True),
    ],
)
def test_only_yelps_ratings_are_compared_with_the_papers(file: str | None, place: str, is_comparable: bool) -> None:
    plans = paper_claims.load_paper_plans(ratings=None if file is None else Path(file))
    claims = [claim for claim in judge(make_results(plans)).values() if claim.plan == RATINGS]
    assert len(claims) == 5 + 2 + 4
    assert {claim.place for claim in claims} == {place}
    assert {claim.verdict == "not comparable" for claim in claims} == {not is_comparable}


def test_the_strict_list_names_claims_of_the_synthetic_worlds() -> None:
    claims = judge(make_results(paper_claims.load_paper_plans()))
    assert len(STRICT) == len(set(STRICT)) == 12
    unconfirmed = paper_claims.find_unconfirmed(claims.values())
    assert len(unconfirmed) == sum(claims[key].verdict != "confirmed" for key in STRICT)
    assert all("exchanges" in words for words in unconfirmed)  # counts are luck in these results
    sure = [claim._replace(verdict="confirmed") for claim in claims.values()]
    assert paper_claims.find_unconfirmed(sure) == []
    weaker = [claim._replace(verdict="inconclusive") if claim.text in {LATER, SOONER} else claim for claim in sure]
    assert paper_claims.find_unconfirmed(weaker) == []


def test_results_of_other_plans_are_not_the_papers(small_results: Results) -> None:
    assert not paper_claims.is_paper(small_results)
    assert paper_claims.is_paper(make_results(paper_claims.load_paper_plans(quick=True)))
    assert paper_claims.is_paper(make_results(paper_claims.load_paper_plans()))
