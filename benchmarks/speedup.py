"""How much faster two processes are than one: ``python benchmarks/speedup.py``.

Computes the same ten runs with one job and with two, twice each, and prints rounds per second and their ratio.
"""

import os
import tempfile
import time
from pathlib import Path

from fedcascade.experiments.builtin_plans import load_builtin_plan
from fedcascade.experiments.paper_claims import TEN
from fedcascade.experiments.plan import resize_plan
from fedcascade.experiments.runner import execute
from fedcascade.experiments.schedulers import make_local_scheduler
from fedcascade.systems import count_cores

ROUNDS, SEEDS = 500_000, range(2)  # half the length of a run in the paper; shorter ones measure the start


def measure_seconds(jobs: int) -> float:
    """Return how long the runs take, the start of processes included."""
    plan = resize_plan(load_builtin_plan(TEN), rounds=ROUNDS, seeds=SEEDS)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        execute([plan], Path(folder), make_local_scheduler(workers=jobs), lambda _: None)
        return time.perf_counter() - started


def main() -> None:
    """Warm up, measure, print."""
    runs = len(load_builtin_plan(TEN).systems) * len(SEEDS)
    print(f"{runs} runs of {ROUNDS:,} rounds on {count_cores()} cores, load {os.getloadavg()[0]:.1f}")
    measure_seconds(2)
    best = {jobs: min(measure_seconds(jobs) for _ in range(2)) for jobs in (1, 2)}
    for jobs, took in best.items():
        print(f"{jobs} jobs: {took:6.1f} s, {runs * ROUNDS / took:9,.0f} rounds/s")
    print(f"speed-up with 2 jobs: {best[1] / best[2]:.2f}")


if __name__ == "__main__":
    main()
