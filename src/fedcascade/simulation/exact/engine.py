"""The exact engine: the Trace of the reference, from compiled code.

If an exchange reaches only the uploading agent, agents play ahead (``event_driven``). Otherwise, and if feedback comes
late, rounds are played in order of time (``sequential``).
"""

import os
from concurrent.futures import ThreadPoolExecutor

from fedcascade.checks import require_integer
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.event_driven import EventDrivenEngine
from fedcascade.simulation.exact.lowering import REPLY_RULES, RoundOrder, lower
from fedcascade.simulation.exact.sequential import SequentialEngine
from fedcascade.simulation.scenario import Progress, Scenario, prepare_simulation
from fedcascade.simulation.trace import Trace


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
    by_agent = lower(REPLY_RULES, scenario.policy.reply_rule) is RoundOrder.BY_AGENT and not scenario.is_late
    driver = ExchangeDriver(scenario, simulation, is_packed=by_agent)
    if scenario.warm is not None:
        driver.warm_up(scenario.warm)
    if by_agent:
        with ThreadPoolExecutor(max(1, threads - 1)) as pool:
            for done in EventDrivenEngine(scenario, driver, pool, threads, window).play():
                report(done)
    else:
        SequentialEngine(scenario, driver, window).play(report)
    return simulation.recorder.build_trace(scenario.policy.name, "exact", simulation.server.groups.labels)
