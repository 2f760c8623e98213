"""100,000 rounds of every system, 4 seeds each, against the figures of an independent prototype.

Run it with ``make figures``. It prints a table per setting and exits with 1 if a mean is off by more than 6%
in regret or 4% in exchanges.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import mean, stdev

from fedcascade import Synthetic, get_policy, simulate

ROUNDS, SEEDS = 100_000, range(4)
REGRET_WITHIN, EXCHANGES_WITHIN = 0.06, 0.04

SETTINGS = {
    "lifted": {"lambda_": 4.0, "alpha_c": 1.0, "alpha_d": 7.0, "beta": 10.5},
    "gaussian": {"lambda_": 1.0, "alpha_c": 1.5, "alpha_d": 6.0, "beta": 30.0},
}
# (features, clusters) -> policy -> (regret, exchanges) of the prototype
EXPECTED = {
    ("lifted", 10): {
        "fedlinucb": (2974, 364.0), "fedind": (5826, 0.0), "no-auxiliary": (2973, 364.0),
        "fedc3ucb-h": (2953, 461.0), "force-comm": (2969, 541.5), "known-clusters": (3216, 1440.2),
    },
    ("lifted", 5): {
        "fedlinucb": (2230, 359.2), "fedind": (5824, 0.0), "no-auxiliary": (2228, 359.2),
        "fedc3ucb-h": (2214, 458.0), "force-comm": (2199, 532.8), "known-clusters": (1917, 892.0),
    },
    ("gaussian", 10): {
        "fedlinucb": (39445, 369.5), "fedind": (62546, 0.0), "no-auxiliary": (40507, 454.8),
        "fedc3ucb-h": (39788, 547.8), "force-comm": (38831, 577.2), "known-clusters": (43965, 1516.8),
    },
    ("gaussian", 5): {
        "fedlinucb": (31148, 365.0), "fedind": (62458, 0.0), "no-auxiliary": (28982, 391.0),
        "fedc3ucb-h": (27612, 489.8), "force-comm": (24916, 534.8), "known-clusters": (26775, 916.0),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run."""

    features: str
    clusters: int
    policy: str
    seed: int


def run_job(job: Job) -> tuple[float, int]:
    """Return regret and exchanges of one run."""
    policy = get_policy(job.policy).with_known_constants(SETTINGS[job.features])
    environment = Synthetic(clusters=job.clusters, features=job.features, seed=job.seed)
    trace = simulate(environment, policy, rounds=ROUNDS)
    return trace.regret, trace.communications()


def compute_difference(ours: float, expected: float) -> float:
    """Return the relative difference."""
    return (ours - expected) / expected if expected else float(ours != 0)


def main() -> None:
    """Run everything, two runs at a time, and compare."""
    jobs = [Job(*setting, name, seed) for setting, rows in EXPECTED.items() for name in rows for seed in SEEDS]
    with ProcessPoolExecutor() as pool:
        results = dict(zip(jobs, pool.map(run_job, jobs), strict=True))
    failed = False
    for (features, clusters), rows in EXPECTED.items():
        print(f"\n{features}, J = {clusters}, {ROUNDS:,} rounds, {len(SEEDS)} seeds: ours | prototype | difference")
        for name, (regret, exchanges) in rows.items():
            runs = [results[Job(features, clusters, name, seed)] for seed in SEEDS]
            regrets, counts = zip(*runs, strict=True)
            gaps = compute_difference(mean(regrets), regret), compute_difference(mean(counts), exchanges)
            good = abs(gaps[0]) <= REGRET_WITHIN and abs(gaps[1]) <= EXCHANGES_WITHIN
            failed |= not good
            print(
                f"{name:15} regret {mean(regrets):9,.0f} +- {stdev(regrets):4.0f} | {regret:6,} | {gaps[0]:+6.1%}"
                f"   exchanges {mean(counts):7.1f} +- {stdev(counts):4.1f} | {exchanges:7.1f} | {gaps[1]:+6.1%}"
                f"   {'ok' if good else 'OFF'}"
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
