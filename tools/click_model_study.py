"""Measure the regret of agents that assume the cascade while users click by another model.

Usage: python tools/click_model_study.py [--seeds 5] [--first 401] [--rounds 4000]
"""

import argparse

import numpy as np

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import get_policy
from fedcascade.simulation.engines import simulate

POLICIES = ("population", "fedind")


def measure(policy: str, model: str, seed: int, rounds: int) -> tuple[float, float]:
    """Regret of a run, and regret per round in its last quarter."""
    world = Synthetic(users=10, clusters=2, dimension=5, items=20, features="gaussian", clicks=model, seed=seed)
    curve = simulate(world, get_policy(policy), rounds=rounds, checkpoints=4).curve
    return curve[-1].regret, 4 * (curve[-1].regret - curve[-2].regret) / rounds


def main() -> None:
    """Print a line per model and policy, with standard errors over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=401)
    parser.add_argument("--rounds", type=int, default=4_000)
    options = parser.parse_args()
    for model in ("cascade", "dcm", "dbn", "pbm"):
        for policy in POLICIES:
            seeds = range(options.first, options.first + options.seeds)
            runs = np.array([measure(policy, model, seed, options.rounds) for seed in seeds])
            error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
            total, late = runs.mean(axis=0)
            words = f"regret {total:6.1f} ± {error[0]:.1f}, late {late:.4f} ± {error[1]:.4f} a round"
            print(f"{model:8} {policy:11} {words}", flush=True)


if __name__ == "__main__":
    main()
