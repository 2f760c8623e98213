"""Measure what it costs to see clicks without their values, and what late or batched feedback costs.

``python tools/measure_rewards.py values`` compares a policy that learns rewards with the same policy that learns from
clicks alone, in an environment with ``rewards="beta"``. ``python tools/measure_rewards.py delays`` plays policies with
feedback that comes late. Both print a table for the page of results; differences are paired by seed.
"""

import argparse
import warnings
from collections.abc import Iterator, Sequence

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.intervals import estimate_mean, estimate_ratio, format_mean
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.scenario import Delay

COMPARED = ("population", "fedind", "fedc3ucb-h")
BETA = 0.7  # of fedc3ucb-h: the paper's is made for a million rounds
DELAYS = (("0", 1), ("100", 1), ("500", 1), ("exp:500", 1), ("0-1000", 1), ("0", 500), ("0", 2_000))


class ClicksAlone(Synthetic):
    """An environment whose agents see a click where others see its value."""

    def draw_reward(self, round_: int, item: int, mean: float) -> float:  # noqa: ARG002
        return 1.0


def get_policy(name: str):  # type: ignore[no-untyped-def]
    """Return a policy; the paper's with a beta for short runs."""
    return POLICIES[name].with_beta(BETA) if name == "fedc3ucb-h" else POLICIES[name]


def compare_values(seeds: Sequence[int], rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield a row per policy: expected rewards lost with values, with clicks alone, and the paired difference."""
    for name in COMPARED:
        lost = [
            [simulate(kind(rewards="beta", seed=seed), get_policy(name), rounds=rounds).regret for seed in seeds]
            for kind in (Synthetic, ClicksAlone)
        ]
        gaps = [clicks - values for values, clicks in zip(*lost, strict=True)]
        yield name, *(format_mean(estimate_mean(each)) for each in (*lost, gaps))


def compare_delays(seeds: Sequence[int], rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield a row per delay and batch: the regret of each policy, relative to feedback at once, paired by seed."""
    at_once: dict[str, list[float]] = {}
    for delay, batch in DELAYS:
        cells = []
        for name in COMPARED:
            options = {"delay": Delay.parse(delay), "batch": batch}
            runs = [simulate(Synthetic(seed=seed), get_policy(name), rounds=rounds, **options).regret for seed in seeds]  # type: ignore[arg-type]
            base = at_once.setdefault(name, runs)
            is_base = runs is base
            cells.append(format_mean(estimate_mean(runs)) if is_base else format_mean(estimate_ratio(runs, base), "%"))
        yield delay, f"{batch:,}", *cells


def main() -> None:
    """Print the table of one comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["values", "delays"])
    parser.add_argument("--seeds", type=int, default=8, help="number of runs of each")
    parser.add_argument("--first", type=int, default=400, help="the first seed")
    parser.add_argument("--rounds", type=int, default=5_000)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="the exact engine does not support")
    seeds = range(options.first, options.first + options.seeds)
    compare = compare_values if options.what == "values" else compare_delays
    for row in compare(seeds, options.rounds):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
