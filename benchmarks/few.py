"""Two systems among few users, in every setting of the plan ``beyond-paper``: ``python benchmarks/few.py``.

Regret of the first system as a multiple of the second's, over the same seeds, with the interval at 95 %; brackets hold
exchanges of both per user. The constants are those that the plan gives to ``fedc3ucb-e``. Needs numpy and numba alone.
"""

import argparse
import os
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from importlib.resources import files
from multiprocessing import get_context
from typing import Any

from fedcascade import POLICIES, Synthetic, TopK, simulate
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.matrices import generate_ratings, to_triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.experiments.intervals import estimate_mean, estimate_ratio

PLAN: Mapping[str, Any] = tomllib.loads((files("fedcascade.experiments.plans") / "beyond-paper.toml").read_text())


def list_settings() -> Iterator[tuple[str, dict[str, Any], float]]:
    """The name of each environment in which the plan plays ``fedc3ucb-e``, its sizes, and beta."""
    for environment in PLAN["environments"]:
        sizes = {name: value for name, value in environment.items() if name != "name"}
        for system in PLAN["policies"]:
            names = [system["name"]] if isinstance(system["name"], str) else system["name"]
            is_here = any(fnmatchcase(environment["name"], pattern) for pattern in system["on"])
            if is_here and "fedc3ucb-e" in names and "alpha_c" not in system["grid"]:
                for beta in system["grid"]["beta"]:
                    yield environment["name"], sizes, beta


def make_world(sizes: Mapping[str, Any], seed: int) -> Clustered:
    """The environment of a setting."""
    others = {name: value for name, value in sizes.items() if name != "kind"}
    if sizes["kind"] == "ratings":
        return Ratings(to_triplets(generate_ratings()), users=40, dimension=20, items=200, seed=seed, **others)
    return Synthetic(**{"users": 40, "dimension": 20, "items": 200} | others, seed=seed)


def play(name: str, sizes: Mapping[str, Any], beta: float, seed: int, rounds: int) -> tuple[float, float]:
    """Regret and exchanges per user."""
    warnings.simplefilter("ignore")
    world, oracle = make_world(sizes, seed), TopK(length=PLAN["list_length"])
    trace = simulate(world, POLICIES[name].with_beta(beta), rounds=rounds, oracle=oracle, checkpoints=1, threads=1)
    return trace.regret, len(trace.ledger) / world.users


def main() -> None:
    """Print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs=2, default=["fedc3ucb-p", "fedc3ucb-e"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[300, 301, 302])
    parser.add_argument("--rounds", type=int, default=PLAN["rounds"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    for policy in options.policies:  # compiles, so that the processes need not
        play(policy, {"kind": "synthetic"}, 1.0, 0, 400)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        jobs = [
            [[pool.submit(play, policy, sizes, beta, seed, options.rounds) for seed in options.seeds]
             for policy in options.policies]
            for _, sizes, beta in list_settings()
        ]  # fmt: skip
        for (name, _, beta), pair in zip(list_settings(), jobs, strict=True):
            ours, theirs = ([job.result() for job in column] for column in pair)
            ratio = estimate_ratio([regret for regret, _ in ours], [regret for regret, _ in theirs])
            talk = [estimate_mean([exchanges for _, exchanges in each]).mean for each in (ours, theirs)]
            text = f"{ratio.mean:5.3f} ± {ratio.half_width:.3f} ({talk[0]:.1f}, {talk[1]:.1f})"
            print(f"{name + f', beta {beta:g}':<40} {text}", flush=True)


if __name__ == "__main__":
    main()
