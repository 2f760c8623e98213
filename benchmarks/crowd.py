"""Regret of a user after some rounds of its own, among few users and among many: ``python benchmarks/crowd.py``.

Each line is a crowd: how many users, in how many clusters (0: all differ), beta, and perhaps what is unlike the others:
``random`` directions of thetas, ``zipf`` sizes of clusters, or ``spread``, a tenth of a theta's length within clusters.
The world has lifted features, d 20, 50 items, lists of 4. Regret is per user after ``--own`` rounds of each on average,
and as a share of the regret of agents that learn alone; brackets hold exchanges per user. Means of the seeds; the
interval is that of Student at 95 %.
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
CROWDS = (
    "40:10:0.5", "40:0:0.5", "1000:10:0.5", "1000:10:2", "1000:100:0.5", "1000:0:0.5", "1000:10:0.5:random",
    "1000:10:0.5:zipf", "1000:10:0.5:spread", "10000:10:0.5", "10000:100:0.5",
)  # fmt: skip
POLICY_NAMES = ("fedind", "fedc3ucb-p", "fedc3ucb-e", "known-clusters")
SPREAD = 0.1


def make_world(crowd: str, seed: int) -> tuple[Synthetic, float]:
    """The world of a crowd, and beta."""
    users, clusters, beta, *kinds = crowd.split(":")
    count = int(clusters) or int(users)
    directions = "random" if count >= 20 or "random" in kinds else "orthonormal"
    sizes: int | list[int] = count
    if "zipf" in kinds:
        shares = 1.0 / np.arange(1, count + 1)
        sizes = np.maximum(1, np.floor(int(users) * shares / shares.sum())).astype(int).tolist()
        sizes[0] += int(users) - sum(sizes)
    world = Synthetic(users=int(users), clusters=sizes, directions=directions, items=50, seed=seed)
    if "spread" in kinds:
        own = world.thetas[:, :-1] + SPREAD * np.sqrt(0.5 / world.dimension) * np.random.default_rng(seed).normal(
            size=(world.users, world.dimension - 1)
        )
        world.thetas[:, :-1] = own * np.sqrt(0.5 / np.square(own).sum(axis=1, keepdims=True))
    return world, float(beta)


def measure_crowd(crowd: str, name: str, seed: int, own: int) -> tuple[float, float]:
    """Regret and exchanges per user."""
    warnings.simplefilter("ignore")
    world, beta = make_world(crowd, seed)
    policy = POLICIES[name].with_beta(beta)
    trace = simulate(world, policy, rounds=own * world.users, oracle=TopK(length=4), checkpoints=1, threads=1)
    return trace.regret / world.users, len(trace.ledger) / world.users


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
    measure_crowd("100:10:0.5", "fedc3ucb-p", 0, 30)  # compiles, so that the processes need not
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
