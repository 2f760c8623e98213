"""Are the constants of a deployment right without tuning? ``python benchmarks/defaults.py --ratings ratings.csv``.

Plays many environments: one cluster or forty, both kinds of features, short and long, small and large, and ratings.
Seeds 100 to 104 select beta for each environment and policy ('tuned'), and the one constant that does well in all of
them. Seeds 200 to 209 report clicks of ``population`` with its defaults, beside ``fedind`` and ``population`` with the
best beta of each environment. Finished runs are kept in the folder, and an interrupted command can be repeated.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from fedcascade import POLICIES, Ratings, Synthetic, TopK, simulate
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.matrices import Triplets
from fedcascade.intervals import Interval, estimate_mean, estimate_ratio

TUNING_SEEDS, REPORT_SEEDS = range(100, 105), range(200, 210)
BETAS = (0.2, 0.7, 2.0)
OURS, ALONE, PAPER = "population", "fedind", "fedc3ucb-h"


class Setting(NamedTuple):
    """An environment and the number of its rounds."""

    kind: str
    clusters: int
    rounds: int = 30_000
    dimension: int = 20
    items: int = 200
    list_length: int = 4
    users: int = 40

    def __str__(self) -> str:
        plain = Setting(self.kind, self.clusters)
        sizes = {"T": "rounds", "d": "dimension", "items": "items", "K": "list_length", "users": "users"}
        others = [f"{word} {getattr(self, name):,}" for word, name in sizes.items()
                  if getattr(self, name) != getattr(plain, name)]  # fmt: skip
        return ", ".join([self.kind, f"J {self.clusters}", *others])


KINDS = ("lifted", "gaussian")
SETTINGS = (  # of the report, and to choose by
    Setting("ratings", 10),
    *(Setting(kind, clusters) for kind in KINDS for clusters in (1, 5, 10)),
    *(Setting(kind, 40, rounds=10_000, dimension=41) for kind in KINDS),
)
OTHER_SETTINGS = (  # to choose by alone
    Setting("ratings", 10, rounds=3_000),
    Setting("ratings", 10, dimension=8),
    Setting("ratings", 10, list_length=10),
    Setting("ratings, paper's steps", 10),
    Setting("ratings", 40),
    Setting("ratings", 10, rounds=100_000),
    *(Setting(kind, 10, rounds=3_000) for kind in KINDS),
    *(Setting(kind, 5, dimension=8) for kind in KINDS),
    *(Setting(kind, 10, list_length=length) for kind in KINDS for length in (1, 10)),
    *(Setting(kind, 10, items=20) for kind in KINDS),
)


class Run(NamedTuple):
    """One run: a policy with a beta and a lambda in an environment."""

    system: str
    beta: float
    lambda_: float
    setting: Setting
    seed: int


class Outcome(NamedTuple):
    """The clicks, regret and exchanges of a run."""

    clicks: int
    regret: float
    exchanges: int


@cache
def load_ratings(path: str) -> Triplets:
    """Read a file of ratings once in each process."""
    from fedcascade.data.readers import read_ratings  # needs polars, unlike synthetic environments

    return read_ratings(path)


@cache
def build_environment(setting: Setting, seed: int, ratings: str) -> Clustered:
    """Build the environment of a setting."""
    sizes = {
        "users": setting.users,
        "clusters": setting.clusters,
        "dimension": setting.dimension,
        "items": setting.items,
    }
    if setting.kind.startswith("ratings"):
        preset = "paper" if "paper" in setting.kind else "catalogue"
        return Ratings(load_ratings(ratings), **sizes, preset=preset, seed=seed)
    return Synthetic(**sizes, features=setting.kind, seed=seed)


def play(run: Run, ratings: str) -> Outcome:
    """Play a run."""
    warnings.simplefilter("ignore")
    policy, setting = POLICIES[run.system].with_constants(beta=run.beta, lambda_=run.lambda_), run.setting
    trace = simulate(build_environment(setting, run.seed, ratings), policy, rounds=setting.rounds, threads=1,
                     oracle=TopK(length=setting.list_length))  # fmt: skip
    return Outcome(trace.reward, trace.regret, trace.communications())


class Archive:
    """Finished runs in a file, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.outcomes = {decode_run(run): Outcome(*outcome) for run, outcome in map(json.loads, lines)}

    def complete(self, runs: Iterable[Run], ratings: str, pool: ProcessPoolExecutor) -> None:
        """Play missing runs, with a line of progress every ten seconds."""
        missing = [run for run in dict.fromkeys(runs) if run not in self.outcomes]
        futures = {pool.submit(play, run, ratings): run for run in missing}
        shown = time.monotonic()
        with self.path.open("a", encoding="utf-8") as file:
            for done, future in enumerate(as_completed(futures), 1):
                run = futures[future]
                self.outcomes[run] = future.result()
                file.write(json.dumps([run, self.outcomes[run]]) + "\n")
                file.flush()
                if time.monotonic() - shown > 10 or done == len(missing):
                    shown = time.monotonic()
                    print(f"{done:,} of {len(missing):,} runs", file=sys.stderr, flush=True)


def decode_run(entry: Sequence[object]) -> Run:
    """Convert a run from JSON."""
    system, beta, lambda_, setting, seed = entry
    return Run(system, beta, lambda_, Setting(*setting), seed)  # type: ignore


def list_tuning_runs(settings: Iterable[Setting], lambdas: Sequence[float]) -> list[Run]:
    """Return the runs by which constants are selected."""
    return [
        Run(system, beta, lambda_, setting, seed)
        for seed in TUNING_SEEDS
        for setting in settings
        for system in (OURS, ALONE)
        for lambda_ in lambdas
        for beta in BETAS
    ]


Totals = Mapping[tuple[str, float, float, Setting], tuple[float, float]]


def sum_tuning(archive: Archive) -> Totals:
    """Sum the clicks and the regret of each policy, constant and environment over the tuning seeds."""
    totals: dict[tuple[str, float, float, Setting], tuple[float, float]] = {}
    for run, outcome in archive.outcomes.items():
        if run.seed in TUNING_SEEDS:
            clicks, regret = totals.get(run[:4], (0.0, 0.0))
            totals[run[:4]] = (clicks + outcome.clicks, regret + outcome.regret)
    return totals


def choose_constants(totals: Totals, system: str, setting: Setting) -> tuple[float, float]:
    """Return the beta and lambda with the least regret on the tuning seeds."""
    return min((regret, key[1:3]) for key, (_, regret) in totals.items() if (key[0], key[3]) == (system, setting))[1]


def print_choice(totals: Totals, settings: Sequence[Setting]) -> None:
    """Print the clicks and regret of each constant relative to the best, in the worst environment and on average."""
    print("\n| system | lambda | beta | least clicks of the best | in | most regret of the best | in | mean regret |")
    print("|---|---|---|---|---|---|---|---|")
    for system, beta, lambda_ in sorted({key[:3] for key in totals}, key=lambda key: (key[0], key[2], key[1])):
        best = {setting: totals[system, *choose_constants(totals, system, setting), setting] for setting in settings}
        here = {setting: totals[system, beta, lambda_, setting] for setting in settings}
        clicks, poor = min((here[setting][0] / best[setting][0], str(setting)) for setting in settings)
        regrets = [(here[setting][1] / best[setting][1], str(setting)) for setting in settings]
        regret, poorest = max(regrets)
        mean = sum(ratio for ratio, _ in regrets) / len(regrets)
        print(f"| {system} | {lambda_:g} | {beta:g} | {clicks:.4f} | {poor} | {regret:.2f} | {poorest} | {mean:.2f} |")


def list_report_runs(totals: Totals, setting: Setting) -> dict[str, list[Run]]:
    """Return the runs of the report by column of the table."""
    tuned = {system: choose_constants(totals, system, setting) for system in (OURS, ALONE)}
    own = {system: (POLICIES[system].constants()["beta"], POLICIES[system].lambda_) for system in (OURS, PAPER)}
    rows = {"default": (OURS, *own[OURS]), "tuned": (OURS, *tuned[OURS]),
            "fedind tuned": (ALONE, *tuned[ALONE]), "the paper's": (PAPER, *own[PAPER])}  # fmt: skip
    return {name: [Run(*row, setting, seed) for seed in REPORT_SEEDS] for name, row in rows.items()}


def format_interval(interval: Interval, digits: int = 0) -> str:
    """Format a mean and half of its 95% interval."""
    return f"{interval.mean:,.{digits}f} ± {interval.half_width:,.{digits}f}"


def print_report(rows: Mapping[Setting, Mapping[str, Sequence[Run]]], archive: Archive) -> None:
    """Print clicks in every environment: of the default, of the best tuned policy, their ratio, and of others."""
    print("\n| environment | default | best tuned | its beta | default of it | fedind tuned | the paper's |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for setting, runs in rows.items():
        clicks = {name: [archive.outcomes[run].clicks for run in played] for name, played in runs.items()}
        best = max(("tuned", "fedind tuned"), key=lambda name: sum(clicks[name]))
        cells = [format_interval(estimate_mean(clicks[name])) for name in ("default", best)]
        others = [format_interval(estimate_mean(clicks[name])) for name in ("fedind tuned", "the paper's")]
        ratio = format_interval(estimate_ratio(clicks["default"], clicks[best]), 4)
        print(f"| {setting} | {' | '.join(cells)} | {runs[best][0].beta:g} | {ratio} | {' | '.join(others)} |")


def main() -> None:
    """Select constants, play other seeds, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/defaults"), help="folder for finished runs")
    parser.add_argument("--ratings", default="", help="a file of ratings, for environments from ratings")
    parser.add_argument("--lambdas", type=float, nargs="+", default=[4.0], help="lambdas to choose from")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--choose-only", action="store_true", help="play no fresh seeds")
    options = parser.parse_args()
    is_played = {
        setting: bool(options.ratings) or "ratings" not in setting.kind for setting in (*SETTINGS, *OTHER_SETTINGS)
    }
    settings = [setting for setting in is_played if is_played[setting]]
    archive = Archive(options.out / "runs.jsonl")
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        archive.complete(list_tuning_runs(settings, options.lambdas), options.ratings, pool)
        totals = sum_tuning(archive)
        print_choice(totals, settings)
        if options.choose_only:
            return
        rows = {setting: list_report_runs(totals, setting) for setting in settings}
        played = [run for runs in rows.values() for each in runs.values() for run in each]
        archive.complete(played, options.ratings, pool)
    print_report(rows, archive)


if __name__ == "__main__":
    main()
