"""Checks and timings of the CUDA engine on this machine's GPU: equal Traces, complete outputs, seconds by step.

Run it where there is a GPU, with numpy and numba's CUDA target alone: python benchmarks/gpu.py (or parts of it: equal,
times, small). Seeds are random, and outputs are filled with garbage before each compared run. Times exclude
compilation and the construction of environments. The exit code is 1 if a Trace differs.
"""

import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numba import cuda as numba_cuda

from fedcascade.environments.clustered import Clustered
from fedcascade.environments.matrices import Triplets, generate_ratings, to_triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.decisions import LastDownload
from fedcascade.federation.grouping.partition import Everyone
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.triggers import Never
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace
from fedcascade_cuda import engine as cuda
from fedcascade_cuda.batches import DeviceBatch
from fedcascade_cuda.device import check_device
from fedcascade_cuda.runs import DeviceRun

FIVE = ("fedc3ucb-h", "force-comm", "no-auxiliary", "fedlinucb", "fedind")
MILLION, REPEATS = 1_000_000, 3
PROCESSES = 8  # each with its own context, taking turns on the device
BARS = {"one run": 1.0, "32 seeds": 6.0, "whole evaluation": 20.0}  # seconds


Case = tuple[str, str, int]  # a setting of the paper, a system, a seed


class Shape(NamedTuple):
    """An environment in which Traces are compared, and the length of lists."""

    dimension: int
    items: int | tuple[int, int]
    length: int
    features: str = "lifted"
    users: int = 12
    rounds: int = 3_000


SHAPES = (
    Shape(5, (13, 40), 10),
    Shape(20, 200, 4, users=40, rounds=20_000),
    Shape(20, (150, 250), 4, "gaussian"),
    Shape(21, 13, 1),
    Shape(64, 100, 5, rounds=1_500),
    Shape(20, 2_000, 4, rounds=1_500),
)


def is_equal(trace: Trace, expected: Trace) -> bool:
    """Return whether the Traces of two engines are equal, lists included."""
    equal = replace(trace, engine="", seconds=0.0) == replace(expected, engine="", seconds=0.0)
    return equal and (trace.lists is expected.lists or np.array_equal(trace.lists, expected.lists))


@contextmanager
def poison_outputs() -> Iterator[None]:
    """Fill the device's outputs with what no round can leave there, while the block runs."""
    allocate = DeviceBatch.allocate

    def allocate_poisoned(batch: DeviceBatch) -> None:
        allocate(batch)
        for name, poison in (("regret", np.nan), ("outcome", 255), ("lists", -7), ("outbox", np.nan)):
            array = getattr(batch.arrays, name)
            if array.size:
                array.copy_to_device(np.full(array.shape, poison, array.dtype))

    DeviceBatch.allocate = allocate_poisoned
    try:
        yield
    finally:
        DeviceBatch.allocate = allocate


def compare_engines(shape: Shape, seed: int) -> list[tuple[str, ...]]:
    """Run both engines on one shape, all five systems together on the device; returns a row for each system."""
    world = Synthetic(users=shape.users, clusters=3, dimension=shape.dimension, items=shape.items,
                      features=shape.features, seed=seed)  # fmt: skip
    oracle = TopK(length=shape.length)
    scenarios = [Scenario(world, POLICIES[name], shape.rounds, oracle, 7, True) for name in FIVE]
    with poison_outputs():
        traces = dict(cuda.simulate_all(scenarios))
    rows = []
    for number, name in enumerate(FIVE):
        expected = exact.simulate(scenarios[number], threads=1)
        verdict = "equal" if is_equal(traces[number], expected) else "DIFFERENT"
        sizes = (str(shape.dimension), str(shape.items), str(shape.length), f"{shape.rounds:,}")
        rows.append((name, shape.features, *sizes, str(len(expected.ledger)), verdict))
    return rows


def list_evaluation(first_seed: int) -> list[Case]:
    """Return the cases of the paper's evaluation: three settings, five systems and three runs."""
    settings = ("J = 5", "J = 10", "ratings")
    return [(setting, name, first_seed + run) for run in range(3) for setting in settings for name in FIVE]


@cache
def generate_triplets() -> Triplets:
    """Generate ratings."""
    return to_triplets(generate_ratings())


@cache
def build_world(setting: str, seed: int) -> Clustered:
    """Build an environment of the paper's evaluation."""
    if setting == "ratings":
        return Ratings(generate_triplets(), preset="paper", seed=seed)
    return Synthetic(clusters=int(setting.removeprefix("J = ")), seed=seed)


def play(cases: Sequence[Case], rounds: int, checkpoints: int) -> list[tuple[int, int, float]]:
    """Play some cases together; returns the exchanges, observations and regret of each."""
    scenarios = [
        Scenario(build_world(setting, seed), POLICIES[name], rounds, TopK(), checkpoints)
        for setting, name, seed in cases
    ]
    traces = dict(cuda.simulate_all(scenarios))
    return [(len(trace.ledger), trace.observations, trace.regret) for _, trace in sorted(traces.items())]


def measure_kernel_limit(seed: int) -> float:
    """Return the device's seconds for a million rounds of 32 runs that never exchange anything."""
    frozen = Policy("frozen", Everyone(), Never(), LastDownload(), "no exchanges")
    scenarios = [Scenario(Synthetic(seed=seed + run), frozen, 100_000, TopK(), 1) for run in range(32)]
    spent = []
    for _ in range(REPEATS + 1):
        with measure_parts() as seconds:
            list(cuda.simulate_all(scenarios))
        spent.append(seconds["on the device"] * MILLION / (32 * 100_000))
    return median(spent[1:])


@contextmanager
def measure_parts() -> Iterator[dict[str, float]]:
    """Yield seconds by what they are spent on while the block runs. Device time is that of CUDA events."""
    seconds = dict.fromkeys(("on the device", "waiting", "exchanges", "launches", "decisions", "ends of segments"), 0.0)
    events: list[tuple[Any, Any]] = []
    originals = {(owner, name): getattr(owner, name) for owner, name in TIMED}

    def add_clock(owner: Any, name: str, part: str) -> None:
        function = originals[owner, name]

        def call_timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            seconds[part] += time.perf_counter() - started
            return result

        setattr(owner, name, call_timed)

    for (owner, name), part in TIMED.items():
        add_clock(owner, name, part)
    launch_kernel = DeviceBatch.launch_kernel

    def launch_between_events(batch: DeviceBatch, blocks: int) -> None:
        first, last = numba_cuda.event(), numba_cuda.event()
        first.record(batch.stream)
        launch_kernel(batch, blocks)
        last.record(batch.stream)
        events.append((first, last))

    DeviceBatch.launch_kernel = launch_between_events
    batches, cuda.BATCHES_PER_SHAPE = cuda.BATCHES_PER_SHAPE, 1  # so that events of different streams do not overlap
    try:
        yield seconds
    finally:
        cuda.BATCHES_PER_SHAPE = batches
        DeviceBatch.launch_kernel = launch_kernel
        for (owner, name), function in originals.items():
            setattr(owner, name, function)
    seconds["on the device"] = sum(first.elapsed_time(last) for first, last in events[1:]) / 1e3


TIMED = {
    (DeviceBatch, "wait"): "waiting",
    (ExchangeDriver, "run_exchange"): "exchanges",
    (DeviceBatch, "launch"): "launches",
    (DeviceRun, "check_triggers"): "decisions",
    (DeviceBatch, "end_segment"): "ends of segments",
}


def measure_one_run(seed: int) -> tuple[float, dict[str, float]]:
    """Measure a million rounds of FedC3UCB-H alone; returns the seconds in all, and what they were spent on."""
    scenario = Scenario(Synthetic(seed=seed), POLICIES["fedc3ucb-h"], MILLION, TopK())
    totals, repeats = [], []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        list(cuda.simulate_all([scenario]))
        totals.append(time.perf_counter() - started)
    for _ in range(REPEATS):
        with measure_parts() as seconds:
            list(cuda.simulate_all([scenario]))
        repeats.append(seconds)
    return median(totals[1:]), {part: median(seconds[part] for seconds in repeats) for part in repeats[0]}


def play_in_processes(
    pools: Sequence[ProcessPoolExecutor], cases: Sequence[Case], rounds: int, checkpoints: int
) -> float:
    """Return the seconds for all cases, in processes that share the device."""
    phases = cuda.split_scenarios(
        [Scenario(build_world("J = 5", 0), POLICIES[name], rounds, TopK()) for _, name, _ in cases], len(pools)
    )
    started = time.perf_counter()
    for phase in phases:
        futures = [
            pool.submit(play, [cases[number] for number in numbers], rounds, checkpoints)
            for pool, numbers in zip(pools, phase, strict=False)
        ]
        for future in futures:
            future.result()
    return time.perf_counter() - started


def measure_in_processes(pools: Sequence[ProcessPoolExecutor], cases: Sequence[Case], checkpoints: int) -> float:
    """Return the median seconds for a million rounds of all cases, once everything is compiled in every process."""
    play_in_processes(pools, cases, 1_000, 1)
    seconds = []
    for _ in range(REPEATS):
        seconds.append(play_in_processes(pools, cases, MILLION, checkpoints))
        print(f"  {len(cases)} runs of a million rounds: {seconds[-1]:.2f} s", flush=True)
    return median(seconds)


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows below each other, in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    sys.stdout.flush()


def format_timing(what: str, seconds: float, rounds: int, limit: float) -> tuple[str, ...]:
    """Return a row of timings: seconds, the bar, rounds per second, and the share of the kernel limit."""
    share = limit * rounds / MILLION / seconds
    met = "met" if seconds < BARS[what] else "NOT MET"
    return (what, f"{rounds / 1e6:g} M", f"{seconds:.2f} s", f"< {BARS[what]:g} s: {met}",
            f"{rounds / seconds / 1e6:.1f} M/s", f"{share:.0%}")  # fmt: skip


def check_equal(pools: Sequence[ProcessPoolExecutor], seed: int) -> bool:
    """Compare the engines on all shapes and print the table; returns whether all Traces are equal."""
    futures = [pool.submit(compare_engines, shape, seed) for pool, shape in zip(pools, SHAPES, strict=False)]
    rows = [row for future in futures for row in future.result()]
    header = ("system", "features", "d", "items", "K", "rounds", "exchanges", "Trace and lists")
    print_table("Traces of the device and of the exact engine, outputs poisoned before", [header, *rows])
    return not any("DIFFERENT" in row for row in rows)


def check_small(seed: int) -> bool:
    """Compare the engines in a small environment within this process, for compute-sanitizer."""
    rows = compare_engines(Shape(5, (13, 40), 4, users=4, rounds=200), seed)
    print_table("A small environment", rows)
    return not any("DIFFERENT" in row for row in rows)


def measure_times(pools: Sequence[ProcessPoolExecutor], seed: int) -> None:
    """Measure the kernel limit, one run, 32 seeds and the whole evaluation, and print the tables."""
    limit = measure_kernel_limit(seed)
    print(f"\nkernel limit: {1e3 * limit:.1f} ms of the device for a million rounds without exchanges", flush=True)
    alone, parts = measure_one_run(seed)
    rows = [(name, f"{1e3 * value:.0f} ms") for name, value in parts.items()]
    print_table("Where one run's time goes: the device by its events, the rest by the host's clock", rows)
    header = ("what", "rounds", "time", "bar", "rounds/s", "share of the kernel limit")
    title = f"Seconds, warm, medians of {REPEATS}; {PROCESSES} processes but for one run"
    print_table(title, [header, format_timing("one run", alone, MILLION, limit)])
    together = measure_in_processes(pools, [("J = 10", "fedc3ucb-h", seed + run) for run in range(32)], 10)
    print_table(title, [header, format_timing("32 seeds", together, 32 * MILLION, limit)])
    whole = measure_in_processes(pools, list_evaluation(seed), 100)
    print_table(title, [header, format_timing("whole evaluation", whole, 45 * MILLION, limit)])


def main(sections: Sequence[str]) -> int:
    """Run the named sections: equal, times, small."""
    check_device()
    device, seed = numba_cuda.get_current_device(), secrets.randbits(31)
    name = device.name if isinstance(device.name, str) else device.name.decode()
    print(f"{name}, {device.MULTIPROCESSOR_COUNT} multiprocessors; {os.cpu_count()} cores; "
          f"numba's CUDA target: {numba_cuda.implementation}; seed {seed}", flush=True)  # fmt: skip
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # of processes
    pools = [ProcessPoolExecutor(1, get_context("spawn")) for _ in range(PROCESSES)]  # they start when they are used
    equal = ("equal" not in sections or check_equal(pools, seed)) and ("small" not in sections or check_small(seed))
    if "times" in sections:
        measure_times(pools, seed)
    for pool in pools:
        pool.shutdown()
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["equal", "times"]))
