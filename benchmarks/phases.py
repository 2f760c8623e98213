"""The widths of phase-fclub: ``python benchmarks/phases.py --out FOLDER``, with J = 10 and 300,000 rounds.

One width for both alpha_1 (``alpha_d``) and alpha_2 is chosen on seeds 100 and 101, by the smallest mean regret, with
U = D = 5. It and the next wider one play seeds 200 to 202, on which nothing was chosen. Finished runs are kept in the
folder, one line each: the same command goes on where it was stopped.
"""

import argparse
import json
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from fedcascade import Synthetic, get_policy, simulate
from fedcascade.experiments.comparisons import estimate_mean

TUNING_SEEDS, REPORT_SEEDS = range(100, 102), range(200, 203)
CLUSTERS, ROUNDS = 10, 300_000
WIDTHS = (2.0, 3.0, 4.0, 5.0)
RATIO = 5.0
HEAD = (
    "| alpha_1 = alpha_2 | U = D | seeds | regret | exchanges | clusters found | clustering error |\n"
    + "|---" * 7
    + "|"
)


class Constants(NamedTuple):
    """alpha_1 = alpha_2, and the ratio of determinants that uploads and pushes wait for."""

    width: float
    ratio: float


class Outcome(NamedTuple):
    """What a run came to."""

    regret: float
    exchanges: float
    clusters: float
    error: float


Archive = dict[tuple[Constants, int], Outcome]


def play(constants: Constants, seed: int) -> Outcome:
    """Play one run with lambda 4 and beta 5, as Table 1 does."""
    width, ratio = constants
    chosen = {"alpha_d": width, "alpha_2": width, "gamma_u": ratio, "gamma_d": ratio}
    policy = get_policy("phase-fclub").with_beta(5.0).with_constants(lambda_=4.0, **chosen)
    trace = simulate(Synthetic(clusters=CLUSTERS, seed=seed), policy, rounds=ROUNDS, threads=1)
    return Outcome(trace.regret, trace.communications(), trace.clusters, trace.clustering_error)


def complete(path: Path, wanted: Iterable[Constants], seeds: range, processes: int) -> Archive:
    """Play those runs that are missing, and save each as it ends; returns all that there are."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    archive = {(Constants(*run[0]), run[1]): Outcome(*run[2]) for run in map(json.loads, lines)}
    missing = [(constants, seed) for seed in seeds for constants in wanted if (constants, seed) not in archive]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        futures = {pool.submit(play, *run): run for run in missing}
        for future in as_completed(futures):
            archive[futures[future]] = future.result()
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*futures[future], future.result()]) + "\n")
    return archive


def describe(archive: Archive, constants: Constants, seeds: range) -> str:
    """A row of the table: means over seeds, with half of their 95% intervals."""
    columns = list(zip(*(archive[constants, seed] for seed in seeds), strict=True))
    regret, exchanges = (estimate_mean(column) for column in columns[:2])
    measured = f"{regret.mean:,.0f} ± {regret.half_width:,.0f} | {exchanges.mean:,.0f} ± {exchanges.half_width:,.0f}"
    names = f"{constants.width:g} | {constants.ratio:g} | {seeds[0]} to {seeds[-1]}"
    return f"| {names} | {measured} | {mean(columns[2]):.1f} | {mean(columns[3]):.0%} |"


def main() -> None:
    """Choose, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "runs.jsonl"
    candidates = [Constants(width, RATIO) for width in WIDTHS]
    archive = complete(path, candidates, TUNING_SEEDS, asked.processes)
    print(HEAD, *(describe(archive, constants, TUNING_SEEDS) for constants in candidates), sep="\n", flush=True)
    chosen = min(candidates, key=lambda constants: sum(archive[constants, seed].regret for seed in TUNING_SEEDS))
    reported = candidates[candidates.index(chosen) :][:2]
    archive = complete(path, reported, REPORT_SEEDS, asked.processes)
    print(*(describe(archive, constants, REPORT_SEEDS) for constants in reported), sep="\n")


if __name__ == "__main__":
    main()
