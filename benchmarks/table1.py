"""Every system of Table 1 over 3 seeds: 300,000 rounds with J = 10 clusters, and J = 1 at 100,000 rounds.

Run it with ``make table1``; it takes about three minutes on 2 cores. All systems get lambda 4 and beta 5; other
constants are their own. What was measured goes to .cache/table1.json, which ``make docs`` turns into tables
and figures. A run that is there already is not played again.
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedcascade import Policy, Synthetic, get_policy, simulate

KEPT = Path(__file__).parent.parent / ".cache" / "table1.json"
SEEDS, CHECKPOINTS = range(3), 30
ROUNDS = {10: 300_000, 1: 100_000}
NINE = ("oful", "c3-ucb", "dislinucb", "club-cascade", "async-linucb", "async-linucb-am", "phase-fclub", "fedlinucb",
        "fedc3ucb-h")  # fmt: skip
BESIDE = ("fedind", "club-cascade at alpha_d 7")  # not in Table 1, for comparison
ALIKE = ("oful", "dislinucb", "async-linucb", "fedlinucb", "fedind")  # played with J = 1


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str
    clusters: int
    seed: int

    def row(self) -> Policy:
        """The system with lambda 4 and beta 5."""
        name, _, alpha_d = self.name.partition(" at alpha_d ")
        row = get_policy(name).with_beta(5.0).with_constants(lambda_=4.0)
        return row.with_constants(alpha_d=float(alpha_d)) if alpha_d else row


def play(job: Job) -> dict[str, Any]:
    """Regret and exchanges at the checkpoints."""
    world = Synthetic(clusters=job.clusters, seed=job.seed)
    trace = simulate(world, job.row(), rounds=ROUNDS[job.clusters], threads=1, checkpoints=CHECKPOINTS)
    curve = [(point.round, point.regret, point.communications) for point in trace.curve]
    end = {"found": trace.clusters, "error": trace.clustering_error, "seconds": trace.seconds}
    return asdict(job) | end | {"curve": curve}


def jobs() -> list[Job]:
    """All runs, seed by seed, so that whoever stops early has some of each."""
    many = [Job(name, 10, seed) for name in (*NINE, *BESIDE) for seed in SEEDS]
    alike = [Job(name, 1, seed) for name in ALIKE for seed in SEEDS]
    return sorted(many + alike, key=lambda job: job.seed)


def main() -> None:
    """Play what is missing, and keep it run by run."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else []
    there = {(run["name"], run["clusters"], run["seed"]) for run in kept}
    missing = [job for job in jobs() if (job.name, job.clusters, job.seed) not in there]
    KEPT.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(int(sys.argv[1]) if len(sys.argv) > 1 else os.cpu_count()) as pool:
        for job, run in zip(missing, pool.map(play, missing), strict=True):
            kept.append(run)
            KEPT.write_text(json.dumps(kept))
            _, regret, exchanges = run["curve"][-1]
            print(f"{job.name:26} J {job.clusters:2}  seed {job.seed}  regret {regret:9,.1f}  exchanges {exchanges:,}")


if __name__ == "__main__":
    main()
