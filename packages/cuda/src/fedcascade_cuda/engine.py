"""The CUDA engine: the Trace of the reference, with many runs at once on a GPU.

Between two exchanges an agent's rounds depend on no other agent. A launch plays the agents of all runs, each until one
of its triggers may fire (``kernels``). The host then decides which triggers fire, passes uploads to the same
``federation.Server`` as every engine (``runs``), and launches again. Runs are split into batches, so that the device
plays one batch while the host processes another.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedcascade.simulation.exact.lowering import DECISIONS
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace
from fedcascade_cuda.batches import DeviceBatch
from fedcascade_cuda.device import check_arithmetic, check_device
from fedcascade_cuda.device import describe_device as describe_device
from fedcascade_cuda.layout import Shape
from fedcascade_cuda.lowering import find_unsupported as find_unsupported
from fedcascade_cuda.lowering import make_shape
from fedcascade_cuda.runs import DeviceRun

BATCHES_PER_SHAPE = 3
RUNS_AT_ONCE = 64


def simulate_all(
    scenarios: Sequence[Scenario], progress: Callable[[int], None] | None = None
) -> Iterator[tuple[int, Trace]]:
    """Run supported scenarios (``lowering.find_unsupported``); yield their numbers and Traces as they end.

    ``progress`` is called with the rounds done of all scenarios, and with 0 after compilation.
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
    """Split the runs of each shape into batches, and compile their kernels."""
    shapes: dict[Shape, list[int]] = {}
    for number, run in runs.items():
        shapes.setdefault(make_shape(run.scenario), []).append(number)
    return [
        DeviceBatch(shape, {number: runs[number] for number in numbers[part::BATCHES_PER_SHAPE]})
        for shape, numbers in shapes.items()
        for part in range(min(BATCHES_PER_SHAPE, len(numbers)))
    ]


def split_scenarios(scenarios: Sequence[Scenario], processes: int) -> list[list[list[int]]]:
    """Split scenarios between processes that share the device; return phases of one list of numbers per process.

    Exchanges keep the host busy, so more processes help. Agents that solve in each round keep the device busy and would
    hold up other processes, so their runs come last, in one process.
    """
    every_round = [
        number for number, scenario in enumerate(scenarios) if DECISIONS.get(type(scenario.policy.decision), False)
    ]
    others = sorted(set(range(len(scenarios))) - set(every_round))
    phases = [others[first::processes] for first in range(min(processes, len(others)))], [every_round]
    return [phase for phase in phases if any(phase)]
