"""Windows: the consecutive rounds that an exact engine plays at a time."""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.knapsack import require_affordable
from fedcascade.simulation.exact.arrays import CompiledSimulation, Window, sort_rounds
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.screening import Scratch, make_scratch

LONGEST_WINDOW = 4_096
ROUNDS_PER_USER = 8  # in the longest window, which amortises its cost with many users


class Batch(NamedTuple):
    """A window of rounds, the users of these rounds, and the simulation with the current thetas."""

    simulation: CompiledSimulation
    window: Window
    arrivals: NDArray[np.int64]

    @property
    def last(self) -> int:
        """Last round of the window."""
        return self.window.first + self.arrivals.size - 1


def make_batch(driver: ExchangeDriver, first: int, most: int) -> Batch:
    """Make a window of at most ``most`` rounds from ``first`` on, up to a checkpoint or a change of the population."""
    stops, environment = driver.recorder.stops, driver.environment
    stop = stops[bisect_left(stops, first)] if first <= stops[-1] else first - 1
    count = environment.count_unchanged_rounds(first, min(most, stop - first + 1))
    arrivals = environment.arrivals(first, count)
    compiled = driver.compiled_environment._replace(thetas=environment.get_thetas(first))
    agents = driver.states, driver.packed, driver.personal, driver.pushed, driver.own_data, driver.first
    simulation = CompiledSimulation(compiled, driver.compiled_policy, *agents)
    return Batch(simulation, make_window(driver, first, arrivals), arrivals)


def make_window(driver: ExchangeDriver, first: int, arrivals: NDArray[np.int64]) -> Window:
    """Make a window without results."""
    users, count = driver.environment.users, arrivals.size
    rounds, cursor, stop = sort_rounds(arrivals, first, users)
    recorded = count if driver.recorder.lists is not None or driver.recorder.shown is not None else 0
    explored = recorded if driver.recorder.propensities is not None else 0
    return Window(
        first,
        rounds,
        cursor,
        stop,
        upload_round=np.zeros(users, np.int64),
        trigger=np.zeros(users, np.int64),
        regret=np.empty(count),
        clicked=np.empty(count, np.bool_),
        examined=np.empty(count, np.int64),
        lists=np.full((recorded, driver.compiled_policy.length), -1, np.int32),
        chances=np.ones((explored, driver.compiled_policy.length)),
        reward=np.empty(0 if driver.compiled_environment.values is None else count),
    )


def make_driver_scratch(driver: ExchangeDriver) -> Scratch:
    """Make the workspace of one thread for the rounds of a run."""
    return make_scratch(driver.problem.dimension, driver.environment.most_items, driver.compiled_policy.length)


def record_batch(driver: ExchangeDriver, batch: Batch) -> None:
    """Record the results of a played window."""
    window, recorder = batch.window, driver.recorder
    if (limits := driver.compiled_policy.limits) is not None:
        require_affordable(bool(window.examined.all()), limits.budget)
    played = window.regret, window.clicked, window.examined, window.lists, window.chances, window.reward
    recorder.record_rounds(window.first, batch.arrivals, *played)
    recorder.record_checkpoint(batch.last, driver.server.groups.labels)
