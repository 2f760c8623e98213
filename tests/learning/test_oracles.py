"""Oracles find the optimum, break ties by words alone, and bad lists are refused."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy.optimize import LinearConstraint, milp

from fedcascade.learning.knapsack import Budget
from fedcascade.learning.named_oracles import build_oracle
from fedcascade.learning.oracles import PerCategory, TopK, check_list, read_attributes

WEIGHTS = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)
TIED = st.lists(st.sampled_from([0.2, 0.5, 1.0]), min_size=1, max_size=12)


def value(weights: list[float], chosen: list[int] | tuple[int, ...]) -> float:
    miss = 1.0
    for item in chosen:
        miss *= 1.0 - weights[item]
    return 1.0 - miss


def feasible_lists(items: int, length: int) -> list[tuple[int, ...]]:
    return [chosen for size in range(1, min(length, items) + 1) for chosen in permutations(range(items), size)]


def some_words(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(2**32, count, replace=False).astype(np.uint32)


@settings(deadline=None, max_examples=80)
@given(WEIGHTS, st.integers(1, 4), st.integers(0, 2**32))
def test_top_k_is_the_best_of_all_lists(weights: list[float], length: int, seed: int) -> None:
    oracle = TopK(length=length)
    best = max(value(weights, chosen) for chosen in feasible_lists(len(weights), length))
    for found in (
        oracle.choose(np.array(weights), some_words(seed, len(weights))),
        oracle.best(np.array(weights)),
    ):
        assert value(weights, found.tolist()) == pytest.approx(best, abs=1e-12)
        assert found.size == min(length, len(weights))
        check_list(found, len(weights), length)


@settings(deadline=None, max_examples=80)
@given(WEIGHTS, st.integers(1, 4), st.integers(1, 2), st.data())
def test_per_category_is_the_best_of_all_lists_within_its_limits(
    weights: list[float], length: int, limit: int, data: st.DataObject
) -> None:
    categories = data.draw(st.lists(st.integers(-1, 2), min_size=len(weights), max_size=len(weights)))
    oracle, given = PerCategory(length=length, limit=limit), read_attributes(len(weights), categories, None)

    def allowed(chosen: tuple[int, ...]) -> bool:
        return max(Counter(categories[item] for item in chosen).values()) <= limit

    best = max(value(weights, chosen) for chosen in feasible_lists(len(weights), length) if allowed(chosen))
    words = some_words(data.draw(st.integers(0, 2**32)), len(weights))
    for found in (oracle.choose(np.array(weights), words, given), oracle.best(np.array(weights), given)):
        assert value(weights, found.tolist()) == pytest.approx(best, abs=1e-12)
        assert allowed(tuple(found.tolist()))
        check_list(found, len(weights), length)


@settings(deadline=None, max_examples=80)
@given(TIED, st.integers(1, 8), st.integers(0, 2**32))
def test_a_list_is_in_falling_order_and_ties_go_to_the_larger_word(scores: list[float], length: int, seed: int) -> None:
    words = some_words(seed, len(scores))
    ranked = sorted(range(len(scores)), key=lambda item: (scores[item], int(words[item])), reverse=True)
    assert TopK(length=length).choose(np.array(scores), words).tolist() == ranked[:length]
    all_different = read_attributes(len(scores), range(len(scores)), None)
    assert PerCategory(length=length).choose(np.array(scores), words, all_different).tolist() == ranked[:length]


@settings(deadline=None, max_examples=80)
@given(TIED, st.integers(1, 8), st.integers(0, 2**32))
def test_the_index_of_an_item_never_matters(scores: list[float], length: int, seed: int) -> None:
    words, values = some_words(seed, len(scores)), np.array(scores)
    order = np.random.default_rng(seed).permutation(len(scores))
    plain = TopK(length=length).choose(values, words)
    shuffled = TopK(length=length).choose(values[order], words[order])
    assert order[shuffled].tolist() == plain.tolist()


def test_every_tied_item_gets_its_turn() -> None:
    turns = Counter(int(TopK(length=1).choose(np.ones(5), some_words(seed, 5))[0]) for seed in range(1000))
    assert min(turns[item] for item in range(5)) > 150


def test_words_are_compared_as_unsigned() -> None:
    words = np.array([2**31, 2**31 - 1, 2**32 - 1, 0], np.uint32)
    assert TopK(length=4).choose(np.ones(4), words).tolist() == [2, 0, 1, 3]


def test_fewer_items_than_places_give_a_shorter_list() -> None:
    assert TopK(length=4).choose(np.array([0.1, 0.9]), np.zeros(2, np.uint32)).tolist() == [1, 0]
    scores, given = np.array([0.1, 0.9, 0.2, 0.3]), read_attributes(4, (0, 0, 0, 1), None)
    assert PerCategory(length=4).choose(scores, np.zeros(4, np.uint32), given).tolist() == [1, 3]


def test_an_oracle_that_is_told_too_little_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="needs categories"):
        PerCategory().choose(np.ones(3), np.zeros(3, np.uint32))
    with pytest.raises(ValueError, match="needs costs"):
        Budget().choose(np.ones(3), np.zeros(3, np.uint32))


@pytest.mark.parametrize(
    ("categories", "costs", "words"),
    [
        ([0, 1], None, "categories must be a whole number for each of 3 items"),
        ([0.0, 1.0, 2.0], None, "categories must be"),
        ([[0], [1], [2]], None, "categories must be"),
        (None, [1.0], "costs must be a finite number >= 0 for each of 3 items"),
        (None, [1.0, -1.0, 0.0], "costs must be"),
        (None, [1.0, np.nan, 0.0], "costs must be"),
        (None, [1.0, np.inf, 0.0], "costs must be"),
    ],
)
def test_bad_attributes_are_refused(categories: ArrayLike | None, costs: ArrayLike | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_attributes(3, categories, costs)


ITEMS = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.5)), min_size=1, max_size=7)


@settings(deadline=None, max_examples=200)
@given(ITEMS, st.integers(1, 4), st.floats(0.05, 2.0), st.integers(0, 2**32))
def test_a_budget_is_kept_and_half_of_the_best_is_earned(
    offered: list[tuple[float, float]], length: int, budget: float, seed: int
) -> None:
    weights, costs = [weight for weight, _ in offered], [cost for _, cost in offered]
    oracle, given = Budget(length=length, budget=budget), read_attributes(len(offered), None, costs)
    fitting = [
        chosen
        for chosen in feasible_lists(len(offered), length)
        if sum(costs[item] for item in chosen) <= budget * (1 + 1e-12)
    ]
    if not fitting:
        with pytest.raises(ValueError, match="no item on offer costs at most the budget"):
            oracle.choose(np.array(weights), some_words(seed, len(weights)), given)
        return
    best = max(value(weights, chosen) for chosen in fitting)
    found = oracle.best(np.array(weights), given)
    assert value(weights, found.tolist()) == pytest.approx(best, abs=1e-12)
    chosen = oracle.choose(np.array(weights), some_words(seed, len(weights)), given)
    assert value(weights, chosen.tolist()) >= oracle.alpha * best - 1e-12
    for listed in (found, chosen):
        check_list(listed, len(weights), length)
        assert sum(costs[item] for item in listed) <= budget * (1 + 1e-11)
    assert [weights[item] for item in chosen] == sorted((weights[item] for item in chosen), reverse=True)


def test_greedy_exchanges_can_earn_little_more_than_half() -> None:
    """The factor 1/2 is nearly reached, so it cannot be raised: three items, two of which the best list holds."""
    weights, costs = np.array([0.0102, 0.01, 0.01]), read_attributes(3, None, [0.501, 0.5, 0.5])
    oracle = Budget(length=2, budget=1.0)
    chosen, best = oracle.choose(weights, np.zeros(3, np.uint32), costs), oracle.best(weights, costs)
    assert (chosen.tolist(), sorted(best.tolist())) == ([0], [1, 2])
    earned, most = value(weights.tolist(), chosen.tolist()), value(weights.tolist(), best.tolist())
    assert 0.5 * most <= earned < 0.52 * most


def test_where_the_best_items_are_affordable_a_budget_changes_nothing() -> None:
    random = np.random.default_rng(5)
    weights, words = random.random(200), some_words(7, 200)
    given = read_attributes(200, None, random.random(200))
    listed = Budget(length=4, budget=4.0).choose(weights, words, given)
    assert listed.tolist() == TopK(length=4).choose(weights, words).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_best_list_within_a_budget_agrees_with_an_integer_programme(seed: int) -> None:
    random = np.random.default_rng(seed)
    weights, costs = random.random(200) ** 2, random.random(200)
    for length, budget in ((4, 0.3), (4, 1.0), (10, 0.5)):
        values = -np.log1p(-weights)
        limits = LinearConstraint(np.vstack([costs, np.ones(200)]), ub=[budget, length])
        programme = milp(
            -values, integrality=np.ones(200), bounds=(0, 1), constraints=limits, options={"mip_rel_gap": 0}
        )
        oracle, given = Budget(length=length, budget=budget), read_attributes(200, None, costs)
        assert values[oracle.best(weights, given)].sum() == pytest.approx(-programme.fun, rel=1e-6)
        assert values[oracle.choose(weights, some_words(seed, 200), given)].sum() >= -programme.fun / 2


@pytest.mark.parametrize("budget", [0.0, -1.0, np.nan, np.inf])
def test_a_budget_that_is_no_amount_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="budget must be"):
        Budget(budget=budget)


def test_oracles_by_name() -> None:
    assert build_oracle("top-k", 3) == TopK(length=3)
    assert build_oracle("per-category", 3, {"limit": 2}) == PerCategory(length=3, limit=2)
    assert build_oracle("budget", 3, {"budget": 2.5}) == Budget(length=3, budget=2.5)
    with pytest.raises(ValueError, match="unknown oracle 'budgt': did you mean 'budget'"):
        build_oracle("budgt", 3)
    with pytest.raises(ValueError, match="unknown argument of oracle budget 'limit'"):
        build_oracle("budget", 3, {"limit": 2})


@pytest.mark.parametrize("length", [0, -1, 1.5, True])
def test_a_length_that_is_not_a_count_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="list length"):
        TopK(length=length)
    with pytest.raises(ValueError, match="list length"):
        PerCategory(length=length)
    with pytest.raises(ValueError, match="limit"):
        PerCategory(limit=length)


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [([1, 1], "distinct"), ([0, 5], "0..4"), ([-1], "0..4"), ([0, 1, 2, 3], "1 to 3"), ([], "1 to 3")],
)
def test_bad_lists_are_refused(chosen: list[int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_list(np.array(chosen, np.intp), 5, 3)


@pytest.mark.parametrize("chosen", [[0], [4, 0], [2, 1, 3]])
def test_good_lists_are_accepted(chosen: list[int]) -> None:
    check_list(np.array(chosen, np.intp), 5, 3)
