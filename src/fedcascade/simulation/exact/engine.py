"""The exact engine: the Trace of the reference, from compiled code.

If an exchange reaches only the uploading agent, agents play ahead (``event_driven``). Otherwise rounds are played in
order of time (``sequential``).
"""

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from fedcascade.checks import require_integer
from fedcascade.simulation.exact.arrays import ItemCache
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.event_driven import EventDrivenEngine
from fedcascade.simulation.exact.lowering import REPLY_RULES, RoundOrder, find_unsupported, lower
from fedcascade.simulation.exact.sequential import SequentialEngine
from fedcascade.simulation.exact.windows import make_driver_scratch
from fedcascade.simulation.scenario import Progress, Scenario, Simulation, prepare_simulation
from fedcascade.simulation.trace import Trace

TURN = 512  # rounds of a run in each turn; the items of two turns are cached, about 8 MB
MOST_USERS = 1_000  # in runs that take turns, which are all in memory at the same time


def simulate(
    scenario: Scenario, *, progress: Progress | None = None, threads: int | None = None, window: int | None = None
) -> Trace:
    """Run a scenario whose parts all have compiled forms (see ``lowering.find_unsupported``).

    ``progress`` is called with 0 after compilation. The result depends neither on ``threads`` (all cores if None) nor
    on ``window``, the number of rounds played at a time (adaptive if None).
    """
    threads = (os.cpu_count() or 1) if threads is None else threads
    report = progress or (lambda _: None)
    require_integer("threads", threads)
    simulation = prepare_simulation(scenario)
    by_agent = lower(REPLY_RULES, scenario.policy.reply_rule) is RoundOrder.BY_AGENT
    driver = _make_driver(scenario, simulation, is_packed=by_agent)
    if by_agent:
        with ThreadPoolExecutor(max(1, threads - 1)) as pool:
            for done in EventDrivenEngine(scenario, driver, pool, threads, window).play():
                report(done)
    else:
        SequentialEngine(driver, window).play(report)
    return simulation.recorder.build_trace(scenario.policy.name, "exact", simulation.server.groups.labels)


def _make_driver(scenario: Scenario, simulation: Simulation, *, is_packed: bool) -> ExchangeDriver:
    """Make the agents and the server of a run, with a warm start if the scenario has one."""
    driver = ExchangeDriver(scenario, simulation, is_packed=is_packed)
    if scenario.warm is not None:
        driver.warm_up(scenario.warm)
    return driver


def identify_items(scenario: Scenario) -> Hashable | None:
    """Return a key of the items of a run; runs with equal keys can take turns. None if a run cannot."""
    if find_unsupported(scenario) is not None or scenario.clustered.users > MOST_USERS:
        return None
    clustered, order = scenario.clustered, lower(REPLY_RULES, scenario.policy.reply_rule)
    if order is not RoundOrder.BY_AGENT or clustered.catalogue.shape[1] > 0:
        return None
    return int(clustered.seed), clustered.dimension, clustered.lifted, clustered.item_range


def simulate_in_turns(scenarios: Sequence[Scenario], progress: Progress | None = None) -> list[Trace]:
    """Run scenarios with the same items on one thread, in turns, so that items are drawn once.

    ``progress`` counts the rounds of all scenarios. Their ``seconds`` are equal shares of the total.
    """
    simulations = [prepare_simulation(scenario) for scenario in scenarios]
    drivers = [_make_driver(*both, is_packed=True) for both in zip(scenarios, simulations, strict=True)]
    size = make_driver_scratch(drivers[0]).columns.size
    cache = ItemCache(np.zeros(2 * TURN, np.int64), np.zeros((2 * TURN, size), np.int16))
    for driver in drivers:
        driver.compiled_environment = driver.compiled_environment._replace(cache=cache)
    with ThreadPoolExecutor(1) as pool:
        plays = [
            EventDrivenEngine(scenario, driver, pool, 1, TURN).play()
            for scenario, driver in zip(scenarios, drivers, strict=True)
        ]
        done = [0] * len(plays)
        for turns in zip_longest(*plays):
            done = [before if now is None else now for before, now in zip(done, turns, strict=True)]
            if progress:
                progress(sum(done))
    traces = [
        simulation.recorder.build_trace(scenario.policy.name, "exact", simulation.server.groups.labels)
        for scenario, simulation in zip(scenarios, simulations, strict=True)
    ]
    seconds = max(trace.seconds for trace in traces) / len(traces)
    return [replace(trace, seconds=seconds) for trace in traces]
