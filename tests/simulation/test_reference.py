"""Algorithm 1 as a loop: repeatable, and its totals are those of an independent replay of the lists it showed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.messages import Cause
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.knapsack import Budget
from fedcascade.learning.oracles import NO_ATTRIBUTES, ItemAttributes, Oracle, PerCategory, TopK
from fedcascade.simulation.reference import simulate
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace


def make_world(seed: int = 0, items: int | tuple[int, int] = 12, **attributes: Any) -> Synthetic:
    return Synthetic(users=6, clusters=2, dimension=4, items=items, seed=seed, **attributes)


@dataclass(frozen=True)
class Worst:
    """The two worst items, sold as a fair approximation of the two best."""

    alpha: float
    length: int = 2

    def choose(
        self, scores: NDArray[np.float64], ties: NDArray[np.uint32], attributes: ItemAttributes = NO_ATTRIBUTES
    ) -> NDArray[np.intp]:
        return np.lexsort((ties, scores))[:2]

    def best(self, weights: NDArray[np.float64], attributes: ItemAttributes = NO_ATTRIBUTES) -> NDArray[np.intp]:
        return np.argsort(-weights)[:2]


@dataclass(frozen=True)
class Totals:
    """What a replay counts."""

    best: float
    chosen: float
    reward: int
    observations: int


def get_lists(trace: Trace) -> list[list[int]]:
    assert trace.lists is not None
    return [[item for item in row if item >= 0] for row in trace.lists.tolist()]


def replay(environment: Synthetic, trace: Trace, oracle: Oracle) -> Totals:
    best = chosen = 0.0
    reward = observations = 0
    for t, listed in enumerate(get_lists(trace), 1):
        user, x = environment.arrival(t), environment.items(t).astype(np.float64)
        weights = np.clip(x @ environment.thetas[user], 0.0, 1.0)
        best += 1 - np.prod(1 - weights[oracle.best(weights, environment.attributes(t, len(weights)))])
        chosen += 1 - np.prod(1 - weights[listed])
        hits = environment.attracted(t, np.array(listed), weights[listed]).tolist()
        reward += any(hits)
        observations += hits.index(True) + 1 if any(hits) else len(listed)
    return Totals(float(best), float(chosen), reward, observations)


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_run_twice_is_equal_and_the_seed_changes_it(name: str) -> None:
    first = simulate(Scenario(make_world(), POLICIES[name], rounds=200, keep_lists=True))
    again = simulate(Scenario(make_world(), POLICIES[name], rounds=200, keep_lists=True))
    reseeded = simulate(Scenario(make_world(seed=1), POLICIES[name], rounds=200, keep_lists=True))
    assert first == again
    assert get_lists(first) == get_lists(again)
    assert first != reseeded
    assert first.regret != reseeded.regret
    assert get_lists(first) != get_lists(reseeded)


def test_a_world_is_not_used_up_by_a_run() -> None:
    environment = make_world()
    alone = simulate(Scenario(environment, POLICIES["no-auxiliary"], rounds=150))
    simulate(Scenario(environment, POLICIES["fedc3ucb-h"], rounds=70))
    assert simulate(Scenario(environment, POLICIES["no-auxiliary"], rounds=150)) == alone


@pytest.mark.parametrize("name", POLICIES)
def test_totals_are_those_of_a_replay(name: str) -> None:
    environment, oracle = make_world(), TopK(length=3)
    trace = simulate(Scenario(environment, POLICIES[name], rounds=300, oracle=oracle, keep_lists=True))
    totals = replay(environment, trace, oracle)
    assert trace.regret == pytest.approx(totals.best - totals.chosen, rel=1e-9)
    assert trace.reward == totals.reward
    assert trace.observations == totals.observations
    assert trace.regret > 0
    assert trace.communications() == len(trace.ledger) == sum(trace.communications(c) for c in Cause)
    assert (trace.policy, trace.engine, trace.rounds) == (name, "reference", 300)


def test_regret_is_counted_against_alpha_times_the_best() -> None:
    environment = make_world()
    fair = simulate(Scenario(environment, POLICIES["fedind"], rounds=200, oracle=Worst(1.0), keep_lists=True))
    half = simulate(Scenario(environment, POLICIES["fedind"], rounds=200, oracle=Worst(0.5), keep_lists=True))
    assert get_lists(fair) == get_lists(half)
    totals = replay(environment, half, Worst(0.5))
    assert fair.regret == pytest.approx(totals.best - totals.chosen, rel=1e-9)
    assert half.regret == pytest.approx(0.5 * totals.best - totals.chosen, rel=1e-9)
    assert half.regret < fair.regret


def test_learning_beats_the_worst_lists() -> None:
    policy = POLICIES["fedind"].with_constants(beta=0.5)
    good = simulate(Scenario(make_world(), policy, rounds=400, oracle=TopK(length=2)))
    bad = simulate(Scenario(make_world(), policy, rounds=400, oracle=Worst(1.0)))
    assert good.regret < bad.regret / 3
    first, second = good.curve[4].regret, good.regret - good.curve[4].regret
    assert second < first


def test_per_category_runs_with_lists_shorter_than_k() -> None:
    oracle = PerCategory(length=4)
    environment = make_world(categories=2)
    trace = simulate(Scenario(environment, POLICIES["fedc3ucb-h"], rounds=200, oracle=oracle, keep_lists=True))
    for t, listed in enumerate(get_lists(trace), start=1):
        categories = environment.attributes(t, 12).get_categories()
        assert sorted(categories[listed].tolist()) == sorted(set(categories.tolist()))
    totals = replay(environment, trace, oracle)
    assert trace.regret == pytest.approx(totals.best - totals.chosen, rel=1e-9)
    assert trace.observations == totals.observations <= 400


def test_regret_within_a_budget_is_against_half_of_the_best() -> None:
    environment, oracle = make_world(costs=True), Budget(length=3, budget=0.8)
    trace = simulate(Scenario(environment, POLICIES["fedc3ucb-h"], rounds=200, oracle=oracle, keep_lists=True))
    for t, listed in enumerate(get_lists(trace), start=1):
        assert sum(environment.attributes(t, 12).get_costs()[listed]) <= 0.8
    totals = replay(environment, trace, oracle)
    assert trace.regret == pytest.approx(0.5 * totals.best - totals.chosen, rel=1e-9)
    assert totals.chosen <= totals.best


def test_a_world_without_costs_cannot_keep_a_budget() -> None:
    with pytest.raises(ValueError, match="needs costs"):
        simulate(Scenario(make_world(), POLICIES["fedind"], rounds=20, oracle=Budget()))


def test_categories_and_costs_are_uniform_and_belong_to_the_round() -> None:
    world = Synthetic(users=2, clusters=1, dimension=4, items=200, categories=4, costs=True)
    drawn = [world.attributes(t, 200) for t in range(1, 101)]
    counts = np.bincount(np.concatenate([each.get_categories() for each in drawn]), minlength=4)
    costs = np.concatenate([each.get_costs() for each in drawn])
    assert counts.size == 4
    assert np.all(abs(counts - 5_000) < 300)
    assert 0.0 < costs.min() < costs.max() <= 1.0
    assert np.mean(costs) == pytest.approx(0.5, abs=0.01)
    fewer = world.attributes(3, 50)  # what an item is like does not depend on how many are on offer
    assert np.array_equal(fewer.get_categories(), drawn[2].get_categories()[:50])
    assert np.array_equal(fewer.get_costs(), drawn[2].get_costs()[:50])


@pytest.mark.parametrize("name", ["fedc3ucb-h", "fedind"])
def test_shelves_may_hold_fewer_items_than_a_list(name: str) -> None:
    environment, oracle = make_world(items=(2, 6)), TopK(length=4)
    trace = simulate(Scenario(environment, POLICIES[name], rounds=300, oracle=oracle, keep_lists=True))
    sizes = [len(listed) for listed in get_lists(trace)]
    assert sizes == [min(4, environment.count_items(t)) for t in range(1, 301)]
    assert set(sizes) == {2, 3, 4}
    for t, listed in enumerate(get_lists(trace), 1):
        assert len(set(listed)) == len(listed)
        assert max(listed) < environment.count_items(t)
    totals = replay(environment, trace, oracle)
    assert trace.regret == pytest.approx(totals.best - totals.chosen, rel=1e-9)
    assert (trace.reward, trace.observations) == (totals.reward, totals.observations)


def test_a_curve_is_the_prefix_of_a_longer_one() -> None:
    short = simulate(Scenario(make_world(), POLICIES["fedc3ucb-h"], rounds=100, checkpoints=2))
    long = simulate(Scenario(make_world(), POLICIES["fedc3ucb-h"], rounds=200, checkpoints=4))
    assert long.curve[:2] == short.curve
    assert [exchange for exchange in long.ledger if exchange.round <= 100] == list(short.ledger)


def test_causes_are_those_of_the_policys_triggers() -> None:
    def list_causes(name: str) -> set[Cause]:
        return {exchange.cause for exchange in simulate(Scenario(make_world(), POLICIES[name], rounds=300)).ledger}

    assert list_causes("fedc3ucb-h") == {Cause.DETERMINANT, Cause.AUXILIARY}
    assert list_causes("force-comm") == {Cause.DETERMINANT, Cause.FORCED}
    assert list_causes("no-auxiliary") == {Cause.DETERMINANT}
    assert list_causes("fedind") == set()


def test_partitions_are_those_of_the_groupings() -> None:
    environment = make_world()
    assert simulate(Scenario(environment, POLICIES["fedlinucb"], rounds=50)).partition == (0,) * 6
    assert simulate(Scenario(environment, POLICIES["fedind"], rounds=50)).partition == tuple(range(6))
    known = simulate(Scenario(environment, POLICIES["known-clusters"], rounds=50))
    assert (known.clusters, known.clustering_error) == (2, 0.0)


def test_progress_ends_with_the_last_round() -> None:
    reported: list[int] = []
    simulate(Scenario(make_world(), POLICIES["fedind"], rounds=1100), progress=reported.append)
    assert reported == [500, 1000, 1100]


@pytest.mark.parametrize(("rounds", "length", "complaint"), [(0, 2, "rounds"), (-1, 2, "rounds"), (5, 13, "items")])
def test_runs_that_cannot_be_are_refused(rounds: int, length: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        simulate(Scenario(make_world(), POLICIES["fedind"], rounds=rounds, oracle=TopK(length=length), checkpoints=1))
