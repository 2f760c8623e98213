"""Everybody tuned, fresh seeds: ``python benchmarks/fair.py --out FOLDER``.

The width alpha_d of every system with a graph is chosen for each setting on seeds 100 to 104, by the smallest mean
regret; then all systems play seeds 200 to 219, on which nothing was chosen. Finished runs are kept in the folder, one
line each: the same command goes on where it was stopped, and prints the tables from what is there at the end.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from fedcascade import POLICIES, Ratings, Synthetic, simulate
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.matrices import Triplets
from fedcascade.experiments.intervals import Interval, estimate_mean, estimate_ratio
from fedcascade.federation.decisions import DownloadAndBuffer
from fedcascade.federation.policies import Policy

TUNING_SEEDS, REPORT_SEEDS = range(100, 105), range(200, 220)
WIDTHS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
OURS, ALONE = "population", "fedind"
ABLATION = "fedc3ucb-h, own data at once"
SYSTEMS: dict[str, Policy] = {
    **{name: POLICIES[name] for name in (OURS, "fedc3ucb-h", "force-comm", "no-auxiliary", "club-cascade", ALONE)},
    ABLATION: replace(POLICIES["fedc3ucb-h"], decision=DownloadAndBuffer()),
    **{name: POLICIES[name] for name in ("fedlinucb", "known-clusters")},
}
TUNED = ("fedc3ucb-h", ABLATION, "force-comm", "no-auxiliary", "club-cascade")
PLAYED_EVERY_ROUND = "club-cascade"  # an exchange in every round takes ten times as long: one beta of each world
# Untuned, as the paper's reproduction has it: what our own tables compared with before.
REPRODUCTION = "fedc3ucb-h, alpha_d 7"


class Setting(NamedTuple):
    """A world and the beta that every system plays it with."""

    world: str
    clusters: int
    beta: float

    def __str__(self) -> str:
        return f"{self.world}, J {self.clusters}, beta {self.beta:g}"


SETTINGS = (
    *(Setting("lifted", clusters, beta) for clusters in (5, 10) for beta in (0.5, 2.0)),
    *(Setting("gaussian", clusters, beta) for clusters in (5, 10) for beta in (1.0, 5.0)),
    Setting("lifted", 1, 2.0), Setting("gaussian", 1, 1.0), Setting("gaussian", 40, 1.0),
)  # fmt: skip
RATINGS_SETTINGS = (Setting("ratings", 10, 0.5), Setting("ratings", 10, 2.0))


class Run(NamedTuple):
    """One run: a system with a width, or with its own constants where that is 0, in a setting."""

    system: str
    width: float
    setting: Setting
    seed: int
    rounds: int


@cache
def load_ratings(path: str) -> Triplets:
    """Read a file of ratings once in each process."""
    from fedcascade.data.readers import read_ratings  # it needs polars, which synthetic worlds do without

    return read_ratings(path)


def make_world(setting: Setting, seed: int, ratings: str) -> Clustered:
    """Make the world of a setting; with forty different users its dimension is forty too."""
    if setting.world == "ratings":
        return Ratings(load_ratings(ratings), clusters=setting.clusters, seed=seed)
    dimension = 40 if setting.clusters == 40 else 20
    return Synthetic(features=setting.world, clusters=setting.clusters, dimension=dimension, seed=seed)


def play(run: Run, ratings: str) -> tuple[float, int]:
    """Play a run; regret and exchanges."""
    warnings.simplefilter("ignore")
    policy = SYSTEMS[run.system].with_constants(beta=run.setting.beta, lambda_=4.0)
    policy = policy.with_constants(alpha_d=run.width) if run.width else policy
    trace = simulate(make_world(run.setting, run.seed, ratings), policy, rounds=run.rounds, threads=1)
    return trace.regret, trace.communications()


def list_tuning_runs(settings: Iterable[Setting], rounds: int) -> list[Run]:
    """The runs that widths are chosen by."""
    return [
        Run(system, width, setting, seed, rounds)
        for setting in settings
        for system in TUNED
        if does_play(system, setting)
        for width in WIDTHS
        for seed in TUNING_SEEDS
    ]


def does_play(system: str, setting: Setting) -> bool:
    """Whether a system takes part: the slowest one does so once in each kind of world with ten clusters."""
    return system != PLAYED_EVERY_ROUND or (setting.clusters == 10 and setting.beta in (1.0, 2.0))


def choose_widths(results: dict[Run, tuple[float, int]]) -> dict[tuple[str, Setting], float]:
    """The width with the smallest mean regret on the tuning seeds, for every tuned system and setting."""
    regrets: dict[tuple[str, Setting], dict[float, list[float]]] = {}
    for run, (regret, _) in results.items():
        if run.seed in TUNING_SEEDS:
            regrets.setdefault((run.system, run.setting), {}).setdefault(run.width, []).append(regret)
    return {key: min(by_width, key=lambda width: sum(by_width[width])) for key, by_width in regrets.items()}


def list_report_runs(
    settings: Iterable[Setting], widths: dict[tuple[str, Setting], float], rounds: int
) -> list[tuple[str, Run]]:
    """The runs of the report, each with the name of its system there."""
    named = []
    for setting in settings:
        systems = [(name, name, widths.get((name, setting), 0.0)) for name in SYSTEMS if does_play(name, setting)]
        for name, system, width in [*systems, (REPRODUCTION, "fedc3ucb-h", 7.0)]:
            named += [(name, Run(system, width, setting, seed, rounds)) for seed in REPORT_SEEDS]
    return named


class Archive:
    """Finished runs in a file, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines]
        self.results = {decode_run(entry[0]): (float(entry[1]), int(entry[2])) for entry in entries}

    def complete(self, runs: Iterable[Run], ratings: str, pool: ProcessPoolExecutor) -> None:
        """Play those of the runs that are missing, with a line of progress now and then."""
        missing = [run for run in dict.fromkeys(runs) if run not in self.results]
        missing.sort(key=lambda run: run.seed)  # so that what is there when somebody stops it is balanced
        futures = {pool.submit(play, run, ratings): run for run in missing}
        shown = time.monotonic()
        with self.path.open("a", encoding="utf-8") as file:
            for done, future in enumerate(as_completed(futures), 1):
                run, result = futures[future], future.result()
                self.results[run] = result
                file.write(json.dumps([run, *result]) + "\n")
                file.flush()
                if time.monotonic() - shown > 10 or done == len(missing):
                    shown = time.monotonic()
                    print(f"{done:,} of {len(missing):,} runs", file=sys.stderr, flush=True)


def decode_run(fields: list[object]) -> Run:
    """Read a run as JSON has it."""
    system, width, setting, seed, rounds = fields
    return Run(str(system), float(width), Setting(*setting), int(seed), int(rounds))  # type: ignore


def format_interval(interval: Interval, digits: int = 0) -> str:
    """A mean and half of its 95% interval."""
    return f"{interval.mean:,.{digits}f} ± {interval.half_width:,.{digits}f}"


def print_report(
    settings: Iterable[Setting], named: list[tuple[str, Run]], results: dict[Run, tuple[float, int]]
) -> None:
    """Print a Markdown table for each setting: regret, exchanges, and ours as a multiple of each system's regret."""
    for setting in settings:
        runs: dict[str, list[Run]] = {}
        for name, run in named:
            if run.setting == setting:
                runs.setdefault(name, []).append(run)
        ours = [results[run][0] for run in runs[OURS]]
        print(f"\n{setting}\n\n| system | alpha_d | regret | exchanges | ours of it |\n|---|---|---|---|---|")
        for name, played in sorted(runs.items(), key=lambda pair: sum(results[run][0] for run in pair[1])):
            regrets, exchanges = zip(*(results[run] for run in played), strict=True)
            width = f"{played[0].width:g}" if played[0].width else ""
            ratio = "" if name == OURS else format_interval(estimate_ratio(ours, regrets), 2)
            told = f"{sum(exchanges) / len(exchanges):,.0f}"
            print(f"| {name} | {width} | {format_interval(estimate_mean(regrets))} | {told} | {ratio} |")


def main() -> None:
    """Tune, play fresh seeds, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/fair"), help="folder for finished runs")
    parser.add_argument("--rounds", type=int, default=300_000)
    parser.add_argument("--ratings", default="", help="a file of ratings: plays those settings instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    settings = RATINGS_SETTINGS if options.ratings else SETTINGS
    archive = Archive(options.out / "runs.jsonl")
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        print("choosing widths on seeds 100 to 104", file=sys.stderr)
        tuning = list_tuning_runs(settings, options.rounds)
        archive.complete(tuning, options.ratings, pool)
        widths = choose_widths({run: archive.results[run] for run in tuning})
        print("playing seeds 200 to 219", file=sys.stderr)
        named = list_report_runs(settings, widths, options.rounds)
        archive.complete([run for _, run in named], options.ratings, pool)
    print(f"regret after {options.rounds:,} rounds: mean of seeds 200 to 219 ± half of the 95% interval")
    print_report(settings, named, archive.results)


if __name__ == "__main__":
    main()
