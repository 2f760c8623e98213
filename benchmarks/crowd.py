"""Regret of a user after some rounds of its own, among few users and among many: ``python benchmarks/crowd.py``.

Each line is a crowd: how many users, in how many clusters (0: all differ), and beta. The world is that of the issue's
table: lifted features, d 20, 50 items, lists of 4. Regret is per user after ``--own`` rounds per user on average, and
as a share of the regret of agents that learn alone; brackets hold exchanges per user. Means of the seeds; the interval
is that of Student at 95 %.
"""

import argparse
import math
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from fedcascade import POLICIES, Synthetic, TopK, simulate

STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}  # 97.5 %, by the number of seeds
CROWDS = ("40:10:0.5", "1000:10:0.5", "1000:10:2", "1000:100:0.5", "1000:0:0.5", "10000:10:0.5", "10000:100:0.5")
POLICY_NAMES = ("fedind", "fedc3ucb-e", "known-clusters")


def measure_crowd(crowd: str, name: str, seed: int, own: int) -> tuple[float, float]:
    """Regret and exchanges per user."""
    warnings.simplefilter("ignore")
    users, clusters, beta = crowd.split(":")
    count = int(clusters) or int(users)
    directions = "orthonormal" if count < 20 else "random"
    world = Synthetic(users=int(users), clusters=count, directions=directions, items=50, seed=seed)
    policy = POLICIES[name].with_beta(float(beta))
    trace = simulate(world, policy, rounds=own * int(users), oracle=TopK(length=4), checkpoints=1, threads=1)
    return trace.regret / int(users), len(trace.ledger) / int(users)


def describe(results: Sequence[tuple[float, float]], alone: Sequence[tuple[float, float]]) -> str:
    """A mean, its share of alone with an interval over seeds, and exchanges."""
    regret, exchanges = np.array(results).T
    shares = regret / np.array(alone)[:, 0]
    width = STUDENT.get(len(shares), math.nan) * shares.std(ddof=1) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0
    return f"{regret.mean():6.2f} {shares.mean():5.2f} ± {width:.2f} ({exchanges.mean():.1f})"


def main() -> None:
    """Print a line for each crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crowds", nargs="+", default=CROWDS, metavar="USERS:CLUSTERS:BETA")
    parser.add_argument("--policies", nargs="+", default=POLICY_NAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[200, 201, 202])
    parser.add_argument("--own", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    names = ["fedind", *(name for name in options.policies if name != "fedind")]
    measure_crowd("40:10:0.5", "fedc3ucb-e", 0, 5)  # compiles, so that the processes need not
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        cells = {
            (crowd, name): [pool.submit(measure_crowd, crowd, name, seed, options.own) for seed in options.seeds]
            for crowd in sorted(options.crowds, key=lambda crowd: -int(crowd.split(":")[0]))
            for name in names
        }
        print(f"{'users:clusters:beta':<20}" + "".join(f"{name:>28}" for name in names))
        for crowd in options.crowds:
            done = {name: [job.result() for job in cells[crowd, name]] for name in names}
            row = [describe(done[name], done["fedind"]) for name in names]
            print(f"{crowd:<20}" + "".join(f"{cell:>28}" for cell in row), flush=True)


if __name__ == "__main__":
    main()
