"""Exposure of catalogue items, and the baseline that ranks them by clicks."""

from collections import Counter

import numpy as np
import pytest

from fedcascade import POLICIES, Ratings, Synthetic, TopK, simulate
from fedcascade.environments.matrices import generate_ratings
from fedcascade.federation.agent import Agent
from fedcascade.federation.policies import get_policy
from fedcascade.learning.click_log import Exposure
from fedcascade.learning.confidence import ProblemSize

ROUNDS = 400


def make_environment(seed: int = 3, items: int | tuple[int, int] = 12) -> Ratings:
    return Ratings.from_matrix(generate_ratings(60, 80), users=10, clusters=3, dimension=5, items=items, seed=seed)


@pytest.mark.parametrize("items", [12, (3, 12)])
def test_the_numbers_of_items_are_those_of_the_catalogue(items: int | tuple[int, int]) -> None:
    environment = make_environment(items=items)
    for t in (1, 2, 77):
        np.testing.assert_array_equal(environment.catalogue[:, environment.item_numbers(t)].T, environment.items(t))


@pytest.mark.parametrize("engine", ["exact", "reference"])
@pytest.mark.parametrize("items", [12, (3, 12)])
def test_exposure_counts_the_items_of_all_lists(engine: str, items: int | tuple[int, int]) -> None:
    environment, oracle = make_environment(items=items), TopK(length=3)
    trace = simulate(environment, POLICIES["population"], rounds=ROUNDS, oracle=oracle, engine=engine, keep_lists=True)  # type: ignore[arg-type]
    assert trace.lists is not None
    assert trace.exposure is not None
    counted = Counter(
        int(environment.item_numbers(t)[place])
        for t, row in enumerate(trace.lists, start=1)
        for place in row
        if place >= 0
    )
    assert trace.exposure.shown.tolist() == [counted[number] for number in range(environment.catalogue.shape[1])]
    plain = simulate(environment, POLICIES["population"], rounds=ROUNDS, oracle=oracle)
    assert plain.exposure is not None
    np.testing.assert_array_equal(plain.exposure.shown, trace.exposure.shown)


def test_new_items_in_each_round_have_no_exposure() -> None:
    assert (
        simulate(Synthetic(users=4, clusters=2, dimension=5, items=10), POLICIES["fedind"], rounds=50).exposure is None
    )


def test_gini_is_half_the_relative_mean_difference() -> None:
    shown = np.random.default_rng(0).integers(0, 50, 30)
    expected = np.abs(shown[:, None] - shown[None]).mean() / (2 * shown.mean())
    assert Exposure(shown).gini == pytest.approx(expected)


def test_popularity_agrees_with_a_transcription() -> None:
    """The same numbers with dictionaries, item by item."""
    environment, K, lambda_, beta = make_environment(), 3, 1.0, 0.3
    trace = simulate(environment, get_policy("popularity"), rounds=ROUNDS, oracle=TopK(length=K), keep_lists=True)
    seen: Counter[int] = Counter()
    clicked: Counter[int] = Counter()
    for t in range(1, ROUNDS + 1):
        numbers, ties = environment.item_numbers(t).tolist(), environment.ties(t, 12)
        scores = [min(clicked[n] / (lambda_ + seen[n]) + beta / (lambda_ + seen[n]) ** 0.5, 1.0) for n in numbers]
        order = sorted(range(12), key=lambda i: (-scores[i], -int(ties[i])))[:K]
        assert trace.lists is not None
        assert trace.lists[t - 1].tolist() == order
        weights = environment.weights(t, environment.arrival(t), environment.items(t))[order]
        for item, is_attracted in zip(order, environment.attracted(t, np.array(order), weights), strict=True):
            seen[numbers[item]] += 1
            if is_attracted:
                clicked[numbers[item]] += 1
                break
    assert trace.reward == sum(clicked.values())
    assert trace.communications() == 0


def test_popularity_is_refused_where_nothing_can_be_popular() -> None:
    policy = get_policy("popularity")
    with pytest.raises(ValueError, match="new in each round"):
        simulate(Synthetic(users=4, clusters=2, dimension=5, items=10), policy, rounds=50)
    problem = ProblemSize(users=1, dimension=5, list_length=2, rounds=10)
    with pytest.raises(ValueError, match="only a simulation"):
        Agent(id=0, policy=policy, problem=problem, oracle=TopK(length=2))
