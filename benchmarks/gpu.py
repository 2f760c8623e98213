"""What the CUDA engine does on this machine's GPU: equal Traces, every output written, seconds, and where they go.

Run it where there is a GPU, with numpy and numba's CUDA target alone: python benchmarks/gpu.py (or parts of it: equal,
times, small). Seeds are drawn afresh each time, and outputs are poisoned before each run that is compared. Times are
those of runs whose code is compiled and whose worlds are built. The exit code is 1 if a Trace differs.
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
from fedcascade.environments.matrices import Triplets, generated_ratings, triplets_of
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.decisions import LastDownload
from fedcascade.federation.grouping.partition import Everyone
from fedcascade.federation.policies import POLICIES, Policy
from fedcascade.federation.triggers import Never
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.cuda import engine as cuda
from fedcascade.simulation.cuda.device import check_device
from fedcascade.simulation.cuda.runs import Run
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace

FIVE = ("fedc3ucb-h", "force-comm", "no-auxiliary", "fedlinucb", "fedind")
MILLION, REPEATS = 1_000_000, 3
PROCESSES = 8  # each with its own context, taking turns on the device
BARS = {"one run": 1.0, "32 seeds": 6.0, "whole evaluation": 20.0}  # seconds


Part = tuple[str, str, int]  # a setting of the paper, a system, a seed


class Shape(NamedTuple):
    """A world in which Traces are compared, and the length of lists there."""

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


def same(one: Trace, other: Trace) -> bool:
    """Whether two engines left the same behind, lists included."""
    alike = replace(one, engine="", seconds=0.0) == replace(other, engine="", seconds=0.0)
    return alike and (one.lists is other.lists or np.array_equal(one.lists, other.lists))


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill the device's outputs with what no round can leave there."""
    allocate = cuda._Squad._allocate

    def and_poison(squad: Any) -> None:
        allocate(squad)
        for name, poison in (("regret", np.nan), ("outcome", 255), ("lists", -7), ("outbox", np.nan)):
            array = getattr(squad.arrays, name)
            if array.size:
                array.copy_to_device(np.full(array.shape, poison, array.dtype))

    cuda._Squad._allocate = and_poison
    try:
        yield
    finally:
        cuda._Squad._allocate = allocate


def compare(shape: Shape, seed: int) -> list[tuple[str, ...]]:
    """Both engines on one shape, all five systems together on the device."""
    world = Synthetic(users=shape.users, clusters=3, dimension=shape.dimension, items=shape.items,
                      features=shape.features, seed=seed)  # fmt: skip
    oracle = TopK(length=shape.length)
    cases = [Scenario(world, POLICIES[name], shape.rounds, oracle, 7, True) for name in FIVE]
    with poisoned():
        ours = dict(cuda.simulate_all(cases))
    rows = []
    for number, name in enumerate(FIVE):
        theirs = exact.simulate(cases[number], threads=1)
        verdict = "equal" if same(ours[number], theirs) else "DIFFERENT"
        sizes = (str(shape.dimension), str(shape.items), str(shape.length), f"{shape.rounds:,}")
        rows.append((name, shape.features, *sizes, str(len(theirs.ledger)), verdict))
    return rows


def evaluation(first_seed: int) -> list[Part]:
    """The paper's three settings, five systems and three runs: what each case is made of."""
    settings = ("J = 5", "J = 10", "ratings")
    return [(setting, name, first_seed + run) for run in range(3) for setting in settings for name in FIVE]


@cache
def triplets() -> Triplets:
    """Generated ratings."""
    return triplets_of(generated_ratings())


@cache
def build(setting: str, seed: int) -> Clustered:
    """A world of the paper's evaluation."""
    if setting == "ratings":
        return Ratings(triplets(), preset="paper", seed=seed)
    return Synthetic(clusters=int(setting.removeprefix("J = ")), seed=seed)


def play(parts: Sequence[Part], rounds: int, checkpoints: int) -> list[tuple[int, int, float]]:
    """Some cases together; of each, how many exchanges and observations it had, and its regret."""
    cases = [
        Scenario(build(setting, seed), POLICIES[name], rounds, TopK(), checkpoints) for setting, name, seed in parts
    ]
    traces = dict(cuda.simulate_all(cases))
    return [(len(trace.ledger), trace.observations, trace.regret) for _, trace in sorted(traces.items())]


def kernel_limit(seed: int) -> float:
    """Seconds of the device for a million rounds of 32 runs that never exchange anything."""
    frozen = Policy("frozen", Everyone(), Never(), LastDownload(), "no exchanges")
    cases = [Scenario(Synthetic(seed=seed + run), frozen, 100_000, TopK(), 1) for run in range(32)]
    spent = []
    for _ in range(REPEATS + 1):
        with clock() as seconds:
            list(cuda.simulate_all(cases))
        spent.append(seconds["on the device"] * MILLION / (32 * 100_000))
    return median(spent[1:])


@contextmanager
def clock() -> Iterator[dict[str, float]]:
    """Seconds by what they were spent on, while the block runs. Device time is that of CUDA events."""
    seconds = dict.fromkeys(("on the device", "waiting", "exchanges", "launches", "decisions", "ends of segments"), 0.0)
    events: list[tuple[Any, Any]] = []
    before = {(home, name): getattr(home, name) for home, name in TIMED}

    def timed(home: Any, name: str, what: str) -> None:
        function = before[home, name]

        def wrapper(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            seconds[what] += time.perf_counter() - started
            return result

        setattr(home, name, wrapper)

    for (home, name), what in TIMED.items():
        timed(home, name, what)
    kernel_launch = cuda._Squad._launch

    def with_events(squad: Any, blocks: int) -> None:
        first, last = numba_cuda.event(), numba_cuda.event()
        first.record(squad.stream)
        kernel_launch(squad, blocks)
        last.record(squad.stream)
        events.append((first, last))

    cuda._Squad._launch = with_events
    squads, cuda.SQUADS = cuda.SQUADS, 1  # so that events of different streams do not overlap
    try:
        yield seconds
    finally:
        cuda.SQUADS = squads
        cuda._Squad._launch = kernel_launch
        for (home, name), function in before.items():
            setattr(home, name, function)
    seconds["on the device"] = sum(first.elapsed_time(last) for first, last in events[1:]) / 1e3


TIMED = {
    (cuda._Squad, "wait"): "waiting",
    (ExchangeDriver, "run_exchange"): "exchanges",
    (cuda._Squad, "launch"): "launches",
    (Run, "listen"): "decisions",
    (cuda._Squad, "_end"): "ends of segments",
}


def one_run(seed: int) -> tuple[float, dict[str, float]]:
    """A million rounds of FedC3UCB-H alone: seconds in all, and what they were spent on."""
    case = Scenario(Synthetic(seed=seed), POLICIES["fedc3ucb-h"], MILLION, TopK())
    plain, parts = [], []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        list(cuda.simulate_all([case]))
        plain.append(time.perf_counter() - started)
    for _ in range(REPEATS):
        with clock() as seconds:
            list(cuda.simulate_all([case]))
        parts.append(seconds)
    return median(plain[1:]), {name: median(part[name] for part in parts) for name in parts[0]}


def in_processes(pools: Sequence[ProcessPoolExecutor], parts: Sequence[Part], rounds: int, checkpoints: int) -> float:
    """Seconds for all cases, in processes that share the device."""
    dealt = cuda.shares(
        [Scenario(build("J = 5", 0), POLICIES[name], rounds, TopK()) for _, name, _ in parts], len(pools)
    )
    started = time.perf_counter()
    for batch in dealt:
        futures = [
            pool.submit(play, [parts[number] for number in share], rounds, checkpoints)
            for pool, share in zip(pools, batch, strict=False)
        ]
        for future in futures:
            future.result()
    return time.perf_counter() - started


def timed_in_processes(pools: Sequence[ProcessPoolExecutor], parts: Sequence[Part], checkpoints: int) -> float:
    """The same a few times, once everything is compiled in every process."""
    in_processes(pools, parts, 1_000, 1)
    seconds = []
    for _ in range(REPEATS):
        seconds.append(in_processes(pools, parts, MILLION, checkpoints))
        print(f"  {len(parts)} runs of a million rounds: {seconds[-1]:.2f} s", flush=True)
    return median(seconds)


def table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Rows below each other, in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    sys.stdout.flush()


def row(what: str, seconds: float, rounds: int, limit: float) -> tuple[str, ...]:
    """One line of timings: seconds, the bar, rounds per second, and the share of the kernel limit."""
    share = limit * rounds / MILLION / seconds
    met = "met" if seconds < BARS[what] else "NOT MET"
    return (what, f"{rounds / 1e6:g} M", f"{seconds:.2f} s", f"< {BARS[what]:g} s: {met}",
            f"{rounds / seconds / 1e6:.1f} M/s", f"{share:.0%}")  # fmt: skip


def equal(pools: Sequence[ProcessPoolExecutor], seed: int) -> bool:
    """Compare all shapes, and show it."""
    compared = [pool.submit(compare, shape, seed) for pool, shape in zip(pools, SHAPES, strict=False)]
    rows = [line for future in compared for line in future.result()]
    header = ("system", "features", "d", "items", "K", "rounds", "exchanges", "Trace and lists")
    table("Traces of the device and of the exact engine, outputs poisoned before", [header, *rows])
    return not any("DIFFERENT" in line for line in rows)


def times(pools: Sequence[ProcessPoolExecutor], seed: int) -> None:
    """Measure, and show it."""
    limit = kernel_limit(seed)
    print(f"\nkernel limit: {1e3 * limit:.1f} ms of the device for a million rounds without exchanges", flush=True)
    alone, parts = one_run(seed)
    lines = [(name, f"{1e3 * value:.0f} ms") for name, value in parts.items()]
    table("Where one run's time goes: the device by its events, the rest by the host's clock", lines)
    header = ("what", "rounds", "time", "bar", "rounds/s", "share of the kernel limit")
    title = f"Seconds, warm, medians of {REPEATS}; {PROCESSES} processes but for one run"
    table(title, [header, row("one run", alone, MILLION, limit)])
    together = timed_in_processes(pools, [("J = 10", "fedc3ucb-h", seed + run) for run in range(32)], 10)
    table(title, [header, row("32 seeds", together, 32 * MILLION, limit)])
    whole = timed_in_processes(pools, evaluation(seed), 100)
    table(title, [header, row("whole evaluation", whole, 45 * MILLION, limit)])


def small(seed: int) -> bool:
    """One small comparison within this process, for compute-sanitizer."""
    rows = compare(Shape(5, (13, 40), 4, users=4, rounds=200), seed)
    table("A small world", rows)
    return not any("DIFFERENT" in line for line in rows)


def main(chosen: Sequence[str]) -> int:
    """Everything in one go, or what is named: equal, times, small."""
    check_device()
    device, seed = numba_cuda.get_current_device(), secrets.randbits(31)
    name = device.name if isinstance(device.name, str) else device.name.decode()
    print(f"{name}, {device.MULTIPROCESSOR_COUNT} multiprocessors; {os.cpu_count()} cores; "
          f"numba's CUDA target: {numba_cuda.implementation}; seed {seed}", flush=True)  # fmt: skip
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # of processes
    pools = [ProcessPoolExecutor(1, get_context("spawn")) for _ in range(PROCESSES)]  # they start when they are used
    good = ("equal" not in chosen or equal(pools, seed)) and ("small" not in chosen or small(seed))
    if "times" in chosen:
        times(pools, seed)
    for pool in pools:
        pool.shutdown()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["equal", "times"]))
