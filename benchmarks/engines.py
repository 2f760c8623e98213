"""How fast the engines are, beside a plain NumPy loop and other libraries: ``make bench``, all in one run.

The first table plays the paper's shape. After a warm-up, all contestants take turns in short slices, so that other load
on the machine affects all of them. A ratio is the median, over turns, of the contestant's speed divided by that of the
NumPy loop in the same turn. The second table shows the growth of time and memory; each line is a process with all
threads.

``--quick`` takes fewer and shorter slices. The last lines compare with bars; the exit code is always 0.
"""

import argparse
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import peers
import plain_numpy
import plain_systems
from rich.console import Console
from rich.table import Table

from fedcascade import Synthetic, get_policy, simulate

THREADS = sorted({1, min(2, os.cpu_count() or 1), os.cpu_count() or 1})
NUMPY = "plain NumPy"
MILLION = 1_000_000
GROWTH = [  # policy, rounds, users, items, d
    ("fedc3ucb-h", 100_000, 40, 200, 20),
    ("fedc3ucb-h", MILLION, 40, 200, 20),
    ("fedc3ucb-h", 100_000, 400, 200, 20),
    ("fedc3ucb-h", 100_000, 4_000, 200, 20),
    ("fedc3ucb-h", 100_000, 40, 2_000, 20),
    ("fedc3ucb-h", 100_000, 40, 200, 64),
    ("fedind", 100_000, 40, 200, 20),
    ("fedind", 100_000, 40, 200, 64),
]
console = Console() if sys.stdout.isatty() else Console(width=140)


@dataclass(frozen=True)
class Contestant:
    """A loop that yields the total number of played rounds after each slice."""

    system: str
    name: str
    warm_up: int
    loop: Iterator[int]


@dataclass(frozen=True)
class Slice:
    """The rounds and the time of one turn."""

    rounds: int
    seconds: float
    cpu: float

    @property
    def speed(self) -> float:
        """Rounds per second."""
        return self.rounds / self.seconds


class PausedSimulation:
    """A simulation in its own thread, paused between two slices."""

    def __init__(self, play: Callable[[Callable[[int], None]], object], pause: int) -> None:
        self.pause, self.done, self._has_ended = pause, 0, False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._play, args=(play,), daemon=True).start()
        self._wait()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self._go.release()
        self._wait()
        return self.done

    def _play(self, play: Callable[[Callable[[int], None]], object]) -> None:
        try:
            play(self._progress)
        finally:
            self._has_ended = True
            self._stopped.release()

    def _wait(self) -> None:
        self._stopped.acquire()
        if self._has_ended:
            raise RuntimeError("the simulation has ended; its thread printed why")

    def _progress(self, done: int) -> None:
        if self.done == 0 or done - self.done >= self.pause:
            self.done = done
            self._stopped.release()
            self._go.acquire()


def make_engine(system: str, kind: str, threads: int, warm_up: int, pause: int) -> Contestant:
    """Make a contestant of an engine; its run never ends."""
    policy, environment = get_policy(system).with_known_constants({"beta": peers.BETA}), Synthetic()
    if system == "dislinucb":  # the formula would take the length of this endless run
        policy = policy.with_constants(budget=plain_systems.BUDGET)

    def play(progress: Callable[[int], None]) -> object:
        return simulate(
            environment, policy, rounds=2**40, engine=kind, threads=threads, checkpoints=1, progress=progress
        )

    name = "reference" if kind == "reference" else f"exact, {threads} thread{'s'[: threads != 1]}"
    return Contestant(system, name, warm_up, iter(PausedSimulation(play, pause)))


def count_rounds(loop: Iterator[object], pause: int) -> Iterator[int]:
    """Yield the rounds done by a loop that pauses after every ``pause`` rounds."""
    for turn, _ in enumerate(loop, 1):
        yield turn * pause


def list_contestants(scale: float) -> list[Contestant]:
    """Make all contestants, with slices of about 0.3 s times ``scale``."""
    contestants = []
    for system, loop in (("fedc3ucb-h", plain_numpy.run_fedc3ucb_h), ("fedind", plain_numpy.run_fedind)):
        slow, fast = int(1_500 * scale), int(30_000 * scale)
        contestants.append(Contestant(system, NUMPY, int(10_000 * scale), count_rounds(loop(slow), slow)))
        contestants.append(make_engine(system, "reference", 1, int(3_000 * scale), int(1_000 * scale)))
        contestants += [make_engine(system, "exact", threads, int(100_000 * scale), fast) for threads in THREADS]
    for system, loop in (("c3-ucb", plain_systems.run_c3_ucb), ("dislinucb", plain_systems.run_dislinucb)):
        slow, fast = int(1_500 * scale), int(20_000 * scale)
        contestants.append(Contestant(system, NUMPY, int(10_000 * scale), count_rounds(loop(slow), slow)))
        contestants.append(
            make_engine(system, "exact", 1, int(100_000 * scale), fast)
        )  # in the order of time, so on one core
    few = max(20, int(60 * scale))
    for name in peers.list_installed():
        loop = peers.run_peer(name, Synthetic(), few)
        contestants.append(Contestant("fedind", f"{name} {peers.PEERS[name][0]}", few, count_rounds(loop, few)))
    return contestants


def take_turns(contestants: list[Contestant], turns: int) -> dict[Contestant, list[Slice]]:
    """Warm up all contestants; then time slices of all of them in turns."""
    done: dict[Contestant, int] = {}
    for contestant in contestants:
        done[contestant] = next(contestant.loop)
        while done[contestant] < contestant.warm_up:
            done[contestant] = next(contestant.loop)
    slices: dict[Contestant, list[Slice]] = {contestant: [] for contestant in contestants}
    for _ in range(turns):
        for contestant in contestants:
            started, cpu = time.perf_counter(), time.process_time()
            rounds = next(contestant.loop)
            spent = time.perf_counter() - started, time.process_time() - cpu
            slices[contestant].append(Slice(rounds - done[contestant], *spent))
            done[contestant] = rounds
    return slices


def compute_ratio(slices: list[Slice], yardstick: list[Slice]) -> float:
    """Return the median ratio of speeds over turns."""
    return median(own.speed / its.speed for own, its in zip(slices, yardstick, strict=True))


def show_contest(slices_of: dict[Contestant, list[Slice]]) -> dict[tuple[str, str], float]:
    """Print the first table; return the ratios by policy and contestant."""
    table = Table(title="40 users in 10 clusters, d 20, 200 fresh items per round, K 4", title_justify="left")
    for column in ("system", "contestant", "rounds", "rounds/s", "middle half of slices", "CPU us/round", "x NumPy"):
        table.add_column(column, justify="left" if column in ("system", "contestant") else "right")
    ratios = {}
    yardsticks = {each.system: slices for each, slices in slices_of.items() if each.name == NUMPY}
    for contestant, slices in slices_of.items():
        system, name = contestant.system, contestant.name
        ratios[system, name] = compute_ratio(slices, yardsticks[system])
        low, middle, high = quantiles([part.speed for part in slices], n=4, method="inclusive")
        table.add_row(
            system,
            name,
            f"{sum(part.rounds for part in slices):,}",
            f"{middle:,.0f}",
            f"{low:,.0f} to {high:,.0f}",
            f"{median(part.cpu / part.rounds for part in slices) * 1e6:,.1f}",
            f"{ratios[system, name]:,.2f}",
        )
    console.print(table)
    return ratios


def measure_growth(system: str, rounds: int, users: int, items: int, dimension: int) -> None:
    """Measure one line of the second table; print seconds, CPU seconds, exchanges and peak memory in MB."""
    environment = Synthetic(users=users, items=items, dimension=dimension)
    simulate(environment, get_policy(system), rounds=100)  # so that loading compiled code does not count
    cpu = time.process_time()
    trace = simulate(environment, get_policy(system), rounds=rounds)
    print(trace.seconds, time.process_time() - cpu, trace.communications(), measure_peak_memory())


def measure_peak_memory() -> float:
    """Return the peak memory of this process, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent, too: Linux keeps its maximum across exec
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def show_growth(times: int) -> float:
    """Print the second table; return the median seconds of the paper's million rounds."""
    table = Table(title=f"how time and memory grow, exact engine, {THREADS[-1]} threads", title_justify="left")
    for column in (
        "system",
        "rounds",
        "users",
        "items",
        "d",
        "seconds",
        "us/round",
        "CPU us/round",
        "exchanges",
        "peak MB",
    ):
        table.add_column(column, justify="left" if column == "system" else "right")
    million = float("nan")
    for system, *sizes in GROWTH:
        command = [sys.executable, __file__, "--grow", system, *map(str, sizes)]
        runs = [
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            for _ in range(times if sizes[0] == MILLION else 1)
        ]
        seconds = median(float(run[0]) for run in runs)
        million = seconds if sizes[0] == MILLION else million
        _, cpu, exchanges, peak = map(float, runs[0])
        table.add_row(
            system, *(f"{size:,}" for size in sizes), f"{seconds:.2f}", f"{seconds / sizes[0] * 1e6:.2f}",
            f"{cpu / sizes[0] * 1e6:.2f}", f"{exchanges:,.0f}", f"{peak:,.0f}",
        )  # fmt: skip
    console.print(table)
    return million


def show_bars(ratios: dict[tuple[str, str], float], million: float) -> None:
    """Print the bars and the results."""
    bars = [
        ("fedc3ucb-h, exact, 1 thread, x NumPy", ratios["fedc3ucb-h", "exact, 1 thread"], 25.0),
        ("fedc3ucb-h, exact, 2 threads, x NumPy", ratios.get(("fedc3ucb-h", "exact, 2 threads"), float("nan")), 45.0),
        *(
            (f"{system}, exact, 1 thread, x NumPy", ratios[system, "exact, 1 thread"], 10.0)
            for system in ("fedind", "c3-ucb", "dislinucb")
        ),
    ]
    for what, reached, bar in bars:
        print(f"{'ok' if reached >= bar else 'not met':8} {what}: {reached:.1f} (bar: at least {bar:g})")
    print(f"{'ok' if million < 8 else 'not met':8} a million rounds in seconds: {million:.1f} (bar: less than 8)")


def main() -> None:
    """Print both tables and the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter slices")
    parser.add_argument("--grow", nargs=5, metavar=("SYSTEM", "ROUNDS", "USERS", "ITEMS", "D"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.grow:
        measure_growth(options.grow[0], *map(int, options.grow[1:]))
        return
    missing = sorted(set(peers.PEERS) - set(peers.list_installed()))
    if missing:
        print(f"not installed, so left out: {', '.join(missing)} (pip install 'fedcascade[bench]')")
    ratios = show_contest(take_turns(list_contestants(0.3 if options.quick else 1.0), 5 if options.quick else 15))
    million = show_growth(1 if options.quick else 3)
    print(f"load of the machine over the last minutes: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    show_bars(ratios, million)


if __name__ == "__main__":
    main()
