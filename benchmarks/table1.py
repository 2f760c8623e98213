"""Every policy of Table 1 over 3 seeds: 300,000 rounds with J = 10 clusters, and J = 1 at 100,000 rounds.

Run it with ``make table1``; it takes about three minutes on 2 cores. Policies get lambda 4 and beta 5, and their own
other constants. Results go to .cache/table1.json, from which ``make docs`` makes tables of docs/reference-results.md.
Finished runs are not repeated.
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedcascade import Policy, Synthetic, get_policy, simulate

MEASURED = Path(__file__).parent.parent / ".cache" / "table1.json"
SEEDS, CHECKPOINTS = range(3), 30
ROUNDS = {10: 300_000, 1: 100_000}
NINE = ("oful", "c3-ucb", "dislinucb", "club-cascade", "async-linucb", "async-linucb-am", "phase-fclub", "fedlinucb",
        "fedc3ucb-h")  # fmt: skip
# Not in Table 1, for comparison; club-cascade with the F of its paper instead of its authors' code.
PAPERS_WIDTH = "club-cascade, its paper's F"
BESIDE = ("fedind", PAPERS_WIDTH, f"{PAPERS_WIDTH} at alpha_d 7")
ALIKE = ("oful", "dislinucb", "async-linucb", "fedlinucb", "fedind")  # played with J = 1


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str
    clusters: int
    seed: int

    def build_policy(self) -> Policy:
        """Build the policy with lambda 4 and beta 5."""
        name, _, alpha_d = self.name.partition(" at alpha_d ")
        policy = get_policy(name.partition(",")[0]).with_beta(5.0).with_constants(lambda_=4.0)
        policy = policy.with_constants(width="paper") if name == PAPERS_WIDTH else policy
        return policy.with_constants(alpha_d=float(alpha_d)) if alpha_d else policy


def run_job(job: Job) -> dict[str, Any]:
    """Run one job; return regret and exchanges at the checkpoints."""
    environment = Synthetic(clusters=job.clusters, seed=job.seed)
    trace = simulate(environment, job.build_policy(), rounds=ROUNDS[job.clusters], threads=1, checkpoints=CHECKPOINTS)
    curve = [(point.round, point.regret, point.communications) for point in trace.curve]
    end = {"found": trace.clusters, "error": trace.clustering_error, "seconds": trace.seconds}
    return asdict(job) | end | {"curve": curve}


def list_jobs() -> list[Job]:
    """Return all runs, seed by seed, so that an interrupted benchmark has some runs of each policy."""
    many = [Job(name, 10, seed) for name in (*NINE, *BESIDE) for seed in SEEDS]
    alike = [Job(name, 1, seed) for name in ALIKE for seed in SEEDS]
    return sorted(many + alike, key=lambda job: job.seed)


def main() -> None:
    """Play the missing runs, and save each of them."""
    runs = json.loads(MEASURED.read_text()) if MEASURED.exists() else []
    finished = {(run["name"], run["clusters"], run["seed"]) for run in runs}
    missing = [job for job in list_jobs() if (job.name, job.clusters, job.seed) not in finished]
    MEASURED.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(int(sys.argv[1]) if len(sys.argv) > 1 else os.cpu_count()) as pool:
        for job, run in zip(missing, pool.map(run_job, missing), strict=True):
            runs.append(run)
            MEASURED.write_text(json.dumps(runs))
            _, regret, exchanges = run["curve"][-1]
            print(f"{job.name:26} J {job.clusters:2}  seed {job.seed}  regret {regret:9,.1f}  exchanges {exchanges:,}")


if __name__ == "__main__":
    main()
