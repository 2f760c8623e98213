"""Is this checkout slower than an earlier commit? ``python benchmarks/compare_commits.py REVISION``, all in one run.

The earlier commit is checked out beside this one. Engines: a process of each commit plays slices of a simulation.
Service: ``benchmarks/service.py`` of each commit starts a server and loads it. The two take turns, so that other load
on the machine affects both. A ratio is the median, over turns, of this commit's speed by the earlier one's. The exit
code is 1 if one is below 0.95.
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
ENGINE_WORKER = """
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
# Starts a server, and loads it for the seconds of each line on stdin; prints what was measured as JSON. Agents are
# shuffled: in the order of their enrolment, neighbours share pages of the index, and agents of a real service do not.
SERVICE_WORKER = """
import json, random, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv.pop(1))
import numpy, service, uvloop
from fedcascade.federation.messages import Cause, Upload
from fedcascade.service.protocol import wire
AGENTS, CONNECTIONS = 2_000, 64
enrolled = service.enrolled
def enrolled_in_any_order(*arguments):
    agents = enrolled(*arguments)
    random.Random(0).shuffle(agents)
    return agents
service.enrolled = enrolled_in_any_order
drawn = numpy.random.default_rng(0)
sums = [service.observed(drawn, service.DIMENSION) for _ in range(256)]
uploads = [Upload(agent=0, sequence=1, cause=Cause.FORCED, statistics=each) for each in sums]
with tempfile.TemporaryDirectory() as name:
    folder = Path(name) / "store"
    load = service.loaded_store(folder, AGENTS, [wire.UploadMessage.from_upload(each) for each in uploads], CONNECTIONS)
    with service.server(folder) as (port, pid, _):
        for seconds in sys.stdin:
            print(json.dumps(uvloop.run(service.loaded(load, port, pid, float(seconds), CONNECTIONS))), flush=True)
"""
LOAD_SECONDS = 3.0


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


def start_worker(checkout: Path, program: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a program with the package of a checkout."""
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=make_environment(checkout), stdin=pipe, stdout=pipe, text=True)


def ask(worker: "subprocess.Popen[str]", *words: object) -> str:
    """Return the answer of a worker to a line."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(*words, file=worker.stdin, flush=True)
    return worker.stdout.readline()


def ask_both(workers: list["subprocess.Popen[str]"], turn: int, *words: object) -> list[str]:
    """Return the answers of both workers to a line; they alternate in going first."""
    answers = {number: ask(workers[number], *words) for number in ([0, 1] if turn % 2 else [1, 0])}
    return [answers[0], answers[1]]


def compare_engines(earlier: Path, turns: int) -> dict[str, float]:
    """Return the speed of this checkout divided by that of the earlier one, for each case."""
    workers = [start_worker(checkout, ENGINE_WORKER) for checkout in (earlier, ROOT)]
    try:
        ratios = {}
        for case in ENGINE_CASES:
            ask_both(workers, 0, *case)  # compiles
            pairs = [map(float, ask_both(workers, turn, *case)) for turn in range(turns)]
            ratios[f"{case[0]}, {case[1]}, threads {case[2]}"] = median(before / now for before, now in pairs)
            print_ratio(*list(ratios.items())[-1])
        return ratios
    finally:
        for worker in workers:
            worker.communicate()


def compare_service(earlier: Path, turns: int) -> dict[str, float]:
    """Return throughput, latency and processor time of both checkouts' servers as ratios; above 1 is better."""
    workers = [start_worker(checkout, SERVICE_WORKER, str(checkout / "benchmarks")) for checkout in (earlier, ROOT)]
    try:
        answers = [ask_both(workers, turn, LOAD_SECONDS) for turn in range(turns)]
    finally:
        for worker in workers:
            worker.communicate()
    pairs = [[json.loads(answer) for answer in pair] for pair in answers]
    costs = {"server processor time per upload": "server_cpu_us_per_upload", "p50": "p50_ms"}
    ratios = {name: median(before[key] / now[key] for before, now in pairs) for name, key in costs.items()}
    speed = "uploads_per_second"
    ratios["uploads per second"] = median(now[speed] / before[speed] for before, now in pairs)
    for name, ratio in ratios.items():
        print_ratio(f"service: {name}", ratio)
    return ratios


def print_ratio(name: str, ratio: float) -> None:
    """Print one line of the result."""
    print(f"{name:45} {ratio:5.2f}{'' if ratio >= LOWEST_RATIO else '  below ' + str(LOWEST_RATIO)}", flush=True)


def main() -> None:
    """Compare, print the ratios, and exit with 1 if this checkout is slower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", help="the earlier commit")
    parser.add_argument("--turns", type=int, default=21, help="turns of each engine case")
    parser.add_argument("--service-turns", type=int, default=15, help="turns of the service; 0 leaves it out")
    parser.add_argument("--no-engines", action="store_true", help="compare the service alone")
    options = parser.parse_args()
    print("speed of this checkout by that of", options.revision, flush=True)
    with check_out(options.revision) as earlier:
        ratios = {} if options.no_engines else compare_engines(earlier, options.turns)
        if options.service_turns:
            ratios |= compare_service(earlier, options.service_turns)
    sys.exit(any(ratio < LOWEST_RATIO for ratio in ratios.values()))


if __name__ == "__main__":
    main()
