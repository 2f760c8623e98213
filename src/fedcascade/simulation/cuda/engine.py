"""The same Trace as the reference, with the rounds of many runs played at once on a GPU.

Between two exchanges an agent's rounds depend on no other agent. A launch lets every agent that may play on, of all
runs, play until one of its triggers may fire (``kernels``). The host then decides which triggers fire, hands uploads
to the same ``federation.Server`` as every engine (``runs``), and launches again. Runs are split into batches, so that
the device plays for one batch while the host processes another.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedcascade.simulation.cuda.batches import DeviceBatch
from fedcascade.simulation.cuda.device import check_arithmetic, check_device
from fedcascade.simulation.cuda.layout import Shape
from fedcascade.simulation.cuda.lowering import make_shape
from fedcascade.simulation.cuda.runs import DeviceRun
from fedcascade.simulation.exact.lowering import DECISIONS
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace

BATCHES_PER_SHAPE = 3
RUNS_AT_ONCE = 64


def simulate_all(
    scenarios: Sequence[Scenario], progress: Callable[[int], None] | None = None
) -> Iterator[tuple[int, Trace]]:
    """Run scenarios in which ``lowering.find_unsupported`` finds nothing; yields their numbers and Traces as they end.

    ``progress`` is called now and then with the rounds done, of all scenarios together; with 0 when all is compiled.
    """
    check_device()
    check_arithmetic()
    done = 0

    def add_done(rounds: int) -> None:
        nonlocal done
        done += rounds
        if progress is not None:
            progress(done)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for first in range(0, len(scenarios), RUNS_AT_ONCE):
            numbers = range(first, min(first + RUNS_AT_ONCE, len(scenarios)))
            batches = _make_batches({number: DeviceRun(scenarios[number], pool) for number in numbers})
            add_done(0)
            for batch in batches:
                batch.start()
                batch.launch()
            while batches:
                batch = next((batch for batch in batches if batch.has_finished()), batches[0])
                batches.remove(batch)
                yield from batch.process_launch(add_done)
                if batch.launch():
                    batches.append(batch)


def _make_batches(runs: dict[int, DeviceRun]) -> list[DeviceBatch]:
    """Put runs of one shape into a few batches, and compile their kernels."""
    shapes: dict[Shape, list[int]] = {}
    for number, run in runs.items():
        shapes.setdefault(make_shape(run.scenario), []).append(number)
    return [
        DeviceBatch(shape, {number: runs[number] for number in numbers[part::BATCHES_PER_SHAPE]})
        for shape, numbers in shapes.items()
        for part in range(min(BATCHES_PER_SHAPE, len(numbers)))
    ]


def split_scenarios(scenarios: Sequence[Scenario], processes: int) -> list[list[list[int]]]:
    """Split scenarios between processes that share the device; returns phases of one list of numbers per process.

    Agents that exchange keep the host busy, and there processes help. Agents that decide anew in every round keep the
    device busy, and their runs fill it only together. Processes take turns on a device, so such runs would hold up
    those of other processes: they come last, in one process.
    """
    every_round = [
        number for number, scenario in enumerate(scenarios) if DECISIONS.get(type(scenario.policy.decision), False)
    ]
    others = sorted(set(range(len(scenarios))) - set(every_round))
    phases = [others[first::processes] for first in range(min(processes, len(others)))], [every_round]
    return [phase for phase in phases if any(phase)]
