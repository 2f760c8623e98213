"""Oracles find the optimum, break ties by words alone, and bad lists are refused."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.learning.oracles import PerCategory, TopK, check_list

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
    oracle = PerCategory(length=length, categories=categories, limit=limit)

    def allowed(chosen: tuple[int, ...]) -> bool:
        return max(Counter(categories[item] for item in chosen).values()) <= limit

    best = max(value(weights, chosen) for chosen in feasible_lists(len(weights), length) if allowed(chosen))
    words = some_words(data.draw(st.integers(0, 2**32)), len(weights))
    for found in (oracle.choose(np.array(weights), words), oracle.best(np.array(weights))):
        assert value(weights, found.tolist()) == pytest.approx(best, abs=1e-12)
        assert allowed(tuple(found.tolist()))
        check_list(found, len(weights), length)


@settings(deadline=None, max_examples=80)
@given(TIED, st.integers(1, 8), st.integers(0, 2**32))
def test_a_list_is_in_falling_order_and_ties_go_to_the_larger_word(scores: list[float], length: int, seed: int) -> None:
    words = some_words(seed, len(scores))
    ranked = sorted(range(len(scores)), key=lambda item: (scores[item], int(words[item])), reverse=True)
    assert TopK(length=length).choose(np.array(scores), words).tolist() == ranked[:length]
    same = PerCategory(length=length, categories=range(len(scores)))
    assert same.choose(np.array(scores), words).tolist() == ranked[:length]


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
    oracle = PerCategory(length=4, categories=(0, 0, 0, 1))
    assert oracle.choose(np.array([0.1, 0.9, 0.2, 0.3]), np.zeros(4, np.uint32)).tolist() == [1, 3]


def test_more_items_than_categories_are_refused() -> None:
    with pytest.raises(ValueError, match="categories"):
        PerCategory(categories=(0, 1)).choose(np.ones(3), np.zeros(3, np.uint32))


@pytest.mark.parametrize("length", [0, -1, 1.5, True])
def test_a_length_that_is_not_a_count_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="list length"):
        TopK(length=length)
    with pytest.raises(ValueError, match="list length"):
        PerCategory(length=length, categories=(0,))
    with pytest.raises(ValueError, match="limit"):
        PerCategory(categories=(0,), limit=length)


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
