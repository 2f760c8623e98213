"""Runs that take turns on one core draw their items once, and each has the Trace that it has alone."""

import numpy as np
import pytest

from fedcascade import POLICIES, Ratings, Synthetic, Trace, simulate
from fedcascade.environments.matrices import generate_ratings, to_triplets
from fedcascade.simulation.engines import simulate_in_turns
from fedcascade.simulation.exact import engine
from fedcascade.simulation.exact.arrays import ItemCache
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.event_driven import EventDrivenEngine
from fedcascade.simulation.exact.windows import make_driver_scratch
from fedcascade.simulation.scenario import Scenario, prepare_simulation

ROUNDS = 1_500  # three turns


def make_world(**options: object) -> Synthetic:
    return Synthetic(**({"users": 8, "clusters": 3, "dimension": 5, "items": 21, "seed": 4} | options))  # type: ignore[arg-type]


def make_scenario(world: Synthetic | Ratings, name: str, rounds: int = ROUNDS) -> Scenario:
    return Scenario(world, POLICIES[name], rounds, keep_lists=True)


def play_alone(scenario: Scenario) -> Trace:
    return simulate(scenario.environment, scenario.policy, rounds=scenario.rounds, keep_lists=True, threads=1)


def require_equal(scenarios: list[Scenario]) -> None:
    for scenario, trace in zip(scenarios, simulate_in_turns(scenarios), strict=True):
        alone = play_alone(scenario)
        assert trace == alone
        assert trace.lists is not None
        assert np.array_equal(trace.lists, alone.lists)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{}, {"features": "gaussian"}, {"items": (9, 30)}, {"drift": 400, "dimension": 8}], ids=str
)
def test_runs_in_turns_are_what_they_are_alone(options: dict[str, object]) -> None:
    systems = ("fedind", "fedc3ucb-h", "force-comm", "fedlinucb")
    require_equal([make_scenario(make_world(clusters=c, **options), name) for c in (2, 3) for name in systems])


def test_runs_that_cannot_take_turns_are_played_one_after_another() -> None:
    world = make_world()
    ratings = Ratings(to_triplets(generate_ratings()), users=8, clusters=2, dimension=5, items=20)
    others = [make_scenario(world, "async-linucb", 300), make_scenario(ratings, "fedc3ucb-h", 300)]
    longer = [make_scenario(world, "fedc3ucb-h", rounds) for rounds in (700, 1_300)]
    require_equal([*others, *longer, make_scenario(make_world(seed=5), "fedind", 300)])


def test_only_the_same_items_are_shared() -> None:
    base = engine.identify_items(make_scenario(make_world(), "fedind"))
    assert base is not None
    assert engine.identify_items(make_scenario(make_world(clusters=2), "fedc3ucb-h")) == base
    for options in ({"seed": 5}, {"dimension": 6}, {"items": 22}, {"items": (20, 21)}, {"features": "gaussian"}):
        assert engine.identify_items(make_scenario(make_world(**options), "fedind")) != base
    assert engine.identify_items(make_scenario(make_world(), "async-linucb")) is None


def test_a_round_that_is_kept_is_not_drawn_again() -> None:
    """Rows that hold other items than the round's own are taken for them."""
    scenario = make_scenario(make_world(), "fedind", 64)
    simulation = prepare_simulation(scenario)
    driver = ExchangeDriver(scenario, simulation, is_packed=True)
    size = make_driver_scratch(driver).columns.size
    cache = ItemCache(np.roll(np.arange(1, 65), 1), np.zeros((64, size), np.int16))
    driver.compiled_environment = driver.compiled_environment._replace(cache=cache)
    for _ in EventDrivenEngine(scenario, driver, None, 1, 64).play():  # type: ignore[arg-type]
        pass
    assert simulation.recorder.regret == 0.0  # nothing is attractive, so no list is better than another
    assert play_alone(scenario).regret > 0.0


def test_progress_counts_the_rounds_of_all_runs() -> None:
    seen: list[int] = []
    simulate_in_turns(
        [make_scenario(make_world(), name) for name in ("fedind", "fedlinucb", "async-linucb")], seen.append
    )
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, 3 * ROUNDS)
