"""What a warm start is worth: regret of the first live rounds with 50 logged rounds per user, and without.

Usage: python tools/warm_start_study.py [--seeds 5] [--first 101]
"""

import argparse
from typing import Any

import numpy as np

from fedcascade.environments.synthetic import Synthetic
from fedcascade.evaluation.simulated import iterate_simulated_log
from fedcascade.federation.policies import get_policy
from fedcascade.learning.exploration import EpsilonMixed
from fedcascade.learning.log_sums import LogSums
from fedcascade.learning.oracles import TopK
from fedcascade.simulation import reference
from fedcascade.simulation.scenario import Scenario

LOGGED, LIVE = 50, 1_000  # rounds per user in the log, and rounds that are played after it


class LaterWorld(Synthetic):
    """The same users, but other rounds than those of the log: what is offered and clicked is drawn anew."""

    def __init__(self, seed: int, offset: int, **sizes: Any) -> None:
        super().__init__(seed=seed, **sizes)
        self.offset = offset

    def arrival(self, round_: int) -> int:
        return super().arrival(round_ + self.offset)

    def items(self, round_: int) -> np.ndarray:
        return super().items(round_ + self.offset)

    def attracted(self, round_: int, items: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return super().attracted(round_ + self.offset, items, weights)


def compare(seed: int, *, policy: str = "fedc3ucb-e", users: int = 40, clusters: int = 5) -> tuple[float, float]:
    """Regret of the first live rounds, cold and warm; lists of the log are uniform among all."""
    sizes: dict[str, Any] = {"users": users, "clusters": clusters, "dimension": 10, "items": 20}
    world = Synthetic(seed=seed, **sizes)
    logger = Scenario(world, get_policy("fedind"), LOGGED * users, EpsilonMixed(epsilon=1.0), 1, keep_lists=True)
    trace = reference.simulate(logger)
    sums = LogSums(world.dimension)
    for batch in iterate_simulated_log(world, trace):
        sums.add(batch, None)
    later = LaterWorld(seed, LOGGED * users, **sizes)
    live = Scenario(later, get_policy(policy), LIVE, TopK(), 1)
    return reference.simulate(live).regret, reference.simulate(live, warm=sums).regret


def main() -> None:
    """Print regrets of each seed, and the mean of their ratios with its standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=101)
    options = parser.parse_args()
    ratios = []
    for seed in range(options.first, options.first + options.seeds):
        cold, warm = compare(seed)
        ratios.append(warm / cold)
        print(f"seed {seed}: cold {cold:.1f}, warm {warm:.1f}, ratio {warm / cold:.3f}")
    error = np.std(ratios, ddof=1) / np.sqrt(len(ratios)) if len(ratios) > 1 else np.nan
    print(f"mean ratio {np.mean(ratios):.3f}, standard error {error:.3f}")


if __name__ == "__main__":
    main()
