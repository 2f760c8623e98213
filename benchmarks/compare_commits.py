"""Is this checkout slower than an earlier commit? ``python benchmarks/compare_commits.py REVISION``, all in one run.

The earlier commit is checked out beside this one. Engines: a process of each commit plays slices of a simulation, and
the two take turns, so that other load on the machine affects both. Service: ``benchmarks/service.py`` of each
commit loads its own server, in turns; agents upload in an order other than that of their enrolment, as users do. A
ratio is the median, over turns, of this commit's speed by the earlier one's. The exit code is 1 if one is below 0.95.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
LOWEST_RATIO = 0.95
# policy, engine, threads, rounds in a slice
ENGINE_CASES = [
    ("fedc3ucb-h", "reference", 1, 4_000),
    ("fedc3ucb-h", "exact", 1, 80_000),
    ("fedc3ucb-h", "exact", 2, 120_000),
    ("fedind", "exact", 1, 40_000),
    ("c3-ucb", "exact", 1, 40_000),
    ("dislinucb", "exact", 1, 40_000),
    ("club-cascade", "exact", 1, 20_000),
    ("population", "exact", 2, 60_000),
]
# Plays the slice that a line on stdin names, prints its seconds; with names that every commit has. ``club-cascade`` has
# the paper's F, as in commits without a choice of F: with that of its authors it forms groups, which is other work.
WORKER = """
import sys
from fedcascade import POLICIES, Synthetic, simulate
for line in sys.stdin:
    policy, engine, threads, rounds = line.split()
    environment, chosen = Synthetic(), POLICIES[policy]
    if "width" in chosen.constants():
        chosen = chosen.with_constants(width=chosen.parse_constant("width", "paper"))
    trace = simulate(environment, chosen, rounds=int(rounds), engine=engine, threads=int(threads), checkpoints=1)
    print(trace.seconds, flush=True)
"""
# Shuffles the agents of the benchmark: in the order of their enrolment, neighbours share pages of the index, and agents
# of a real service do not.
LOAD = """
import random, sys
sys.path.insert(0, sys.argv.pop(1))
import service
enrolled = service.enrolled
def enrolled_in_any_order(*arguments):
    agents = enrolled(*arguments)
    random.Random(0).shuffle(agents)
    return agents
service.enrolled = enrolled_in_any_order
service.main()
"""
SERVICE_OPTIONS = ["--minutes", "0.1", "--turns", "1", "--delay-ms", "0", "--agents", "2000", "--log", "1000"]


@contextmanager
def check_out(revision: str) -> Iterator[Path]:
    """Make a temporary checkout of a revision."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "earlier"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", path, revision], cwd=ROOT, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", path], cwd=ROOT, check=True)


def make_environment(checkout: Path) -> dict[str, str]:
    """Environment variables under which Python imports the package of a checkout, with a cache of its own."""
    cache = str(checkout / ".cache" / "numba" / "compare")
    return {**os.environ, "PYTHONPATH": str(checkout / "src"), "NUMBA_CACHE_DIR": cache}


def start_worker(checkout: Path) -> "subprocess.Popen[str]":
    """Start a process that plays simulations with the package of a checkout."""
    command = [sys.executable, "-c", WORKER]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=make_environment(checkout), stdin=pipe, stdout=pipe, text=True)


def play_slice(worker: "subprocess.Popen[str]", case: tuple[str, str, int, int]) -> float:
    """Return the seconds of a worker for a slice."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(*case, file=worker.stdin, flush=True)
    return float(worker.stdout.readline())


def play_pair(workers: list["subprocess.Popen[str]"], case: tuple[str, str, int, int], turn: int) -> list[float]:
    """Return the seconds of both workers for a slice; they alternate in going first."""
    seconds = {number: play_slice(workers[number], case) for number in ([0, 1] if turn % 2 else [1, 0])}
    return [seconds[0], seconds[1]]


def compare_engines(earlier: Path, turns: int) -> dict[str, float]:
    """Return the speed of this checkout divided by that of the earlier one, for each case."""
    workers = [start_worker(earlier), start_worker(ROOT)]
    try:
        ratios = {}
        for case in ENGINE_CASES:
            for worker in workers:
                play_slice(worker, case)  # compiles
            pairs = [play_pair(workers, case, turn) for turn in range(turns)]
            ratios[f"{case[0]}, {case[1]}, threads {case[2]}"] = median(before / now for before, now in pairs)
            print_ratio(*list(ratios.items())[-1])
        return ratios
    finally:
        for worker in workers:
            worker.communicate()


def load_service(checkout: Path, *, in_order: bool) -> dict[str, Any]:
    """Return the measurements of ``benchmarks/service.py`` of a checkout."""
    folder = checkout / "benchmarks"
    program = [str(folder / "service.py")] if in_order else ["-c", LOAD, str(folder)]
    command = [sys.executable, *program, *SERVICE_OPTIONS]
    environment = {**make_environment(checkout)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def compare_service(earlier: Path, turns: int, *, in_order: bool) -> dict[str, float]:
    """Throughput, processor time, tail and start of this checkout's server by the earlier one's; above 1 is better."""
    for checkout in (earlier, ROOT):
        load_service(checkout, in_order=in_order)  # compiles
    pairs = [
        tuple(load_service(checkout, in_order=in_order)["load"] for checkout in (earlier, ROOT)) for _ in range(turns)
    ]
    costs = {"server processor time per upload": "server_cpu_us_per_upload", "p50": "p50_ms"}
    speeds = {name: [before[key] / now[key] for before, now in pairs] for name, key in costs.items()}
    speeds["uploads per second"] = [now["uploads_per_second"] / before["uploads_per_second"] for before, now in pairs]
    ratios = {f"service: {name}": median(values) for name, values in speeds.items()}
    for name, ratio in ratios.items():
        print_ratio(name, ratio)
    return ratios


def print_ratio(name: str, ratio: float) -> None:
    """Print one line of the result."""
    print(f"{name:45} {ratio:5.2f}{'' if ratio >= LOWEST_RATIO else '  below ' + str(LOWEST_RATIO)}", flush=True)


def main() -> None:
    """Compare, print the ratios, and exit with 1 if this checkout is slower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", help="the earlier commit")
    parser.add_argument("--turns", type=int, default=21, help="turns of each engine case")
    parser.add_argument("--service-turns", type=int, default=5, help="turns of the service; 0 leaves it out")
    parser.add_argument("--no-engines", action="store_true", help="compare the service alone")
    parser.add_argument("--in-order", action="store_true", help="let agents upload in the order of their enrolment")
    options = parser.parse_args()
    print("speed of this checkout by that of", options.revision, flush=True)
    with check_out(options.revision) as earlier:
        ratios = {} if options.no_engines else compare_engines(earlier, options.turns)
        if options.service_turns:
            ratios |= compare_service(earlier, options.service_turns, in_order=options.in_order)
    sys.exit(any(ratio < LOWEST_RATIO for ratio in ratios.values()))


if __name__ == "__main__":
    main()
