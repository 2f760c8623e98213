"""Regret of a user among few and among a million: ``python benchmarks/million.py --users 1000000 --policy fedind``.

Plays the same number of rounds for each user, on average, in a world of ten clusters (lifted features, d 20, 50 items,
lists of 4), and prints a line of JSON for each run: regret and exchanges per user, the curve of each quarter of users
by their own rounds, seconds, and the peak of memory so far. Needs numpy and numba alone.

``--draw LINES`` reads such lines and draws regret against users beside them, as SVG, PDF and PNG.
"""

import argparse
import json
import os
import resource
import time
from pathlib import Path

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.engines import simulate

CURVE = (1, 2, 5, 10, 20, 50, 100, 150)  # own rounds that are printed


def measure(users: int, policy: str, own: int, seed: int, beta: float, threads: int) -> dict[str, object]:
    """One run."""
    world = Synthetic(users=users, clusters=10, items=50, seed=seed)
    system, began = POLICIES[policy].with_beta(beta), time.perf_counter()
    trace = simulate(world, system, rounds=own * users, oracle=TopK(length=4), checkpoints=1, own_rounds=max(CURVE),
                     threads=threads)  # fmt: skip
    curves = [
        [round(curve.regret[step - 1], 4) for step in CURVE if step <= len(curve.regret)] for curve in trace.own_curves
    ]
    return {
        "users": users,
        "policy": policy,
        "seed": seed,
        "own_rounds": own,
        "regret_per_user": round(trace.regret / users, 4),
        "exchanges_per_user": round(len(trace.ledger) / users, 3),
        "clusters": trace.clusters,
        "quarters": curves,
        "seconds": round(trace.seconds, 1),
        "seconds_in_all": round(time.perf_counter() - began, 1),
        "threads": threads,
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def draw(path: Path) -> None:
    """Draw the figure of lines that earlier runs have printed."""
    import polars as pl

    from fedcascade.experiments.reports import figures

    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    systems = list(dict.fromkeys(run["policy"] for run in runs))
    data = pl.DataFrame([{"users": run["users"], "system": run["policy"], "regret_per_user": run["regret_per_user"]}
                         for run in runs])  # fmt: skip
    title = f"regret of a user after {runs[0]['own_rounds']} rounds of its own"
    figures.save_figure(figures.plot_sizes(data, title, systems), path.parent, path.stem)


def main() -> None:
    """Print a line for each number of users, policy and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[40, 1_000, 10_000])
    parser.add_argument("--policy", nargs="+", default=["fedind", "fedlinucb", "fedc3ucb-e"], choices=POLICIES)
    parser.add_argument("--own", type=int, default=100, help="rounds for each user")
    parser.add_argument("--seeds", type=int, nargs="+", default=[200])
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--draw", type=Path, metavar="LINES", help="draw what was printed to this file, and play nothing"
    )
    given = parser.parse_args()
    if given.draw:
        draw(given.draw)
        return
    for users in given.users:
        for policy in given.policy:
            for seed in given.seeds:
                run = measure(users, policy, given.own, seed, given.beta, given.threads)
                print(json.dumps(run), flush=True)


if __name__ == "__main__":
    main()
