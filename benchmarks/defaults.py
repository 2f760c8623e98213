"""Are the constants of a deployment right without tuning? ``python benchmarks/defaults.py --ratings ratings.csv``.

Many worlds: one taste or forty, both kinds of features, short and long, small and large, and people's ratings. Seeds
100 to 104 choose: beta by hand for each world and system ('tuned'), and the one constant that does well in all of them.
Seeds 200 to 209, on which nothing was chosen, report: clicks of ``population`` with everything at its default, beside
``fedind`` and ``population`` with the best beta of that world. Finished runs are kept in the folder: the same command
goes on where it was stopped.
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
from fedcascade.experiments.comparisons import Interval, estimate_mean, estimate_ratio

TUNING_SEEDS, REPORT_SEEDS = range(100, 105), range(200, 210)
BETAS = (0.2, 0.7, 2.0)
OURS, ALONE, PAPER = "population", "fedind", "fedc3ucb-h"


class World(NamedTuple):
    """An environment and how long it is played."""

    kind: str
    clusters: int
    rounds: int = 30_000
    dimension: int = 20
    items: int = 200
    list_length: int = 4
    users: int = 40

    def __str__(self) -> str:
        plain = World(self.kind, self.clusters)
        sizes = {"T": "rounds", "d": "dimension", "items": "items", "K": "list_length", "users": "users"}
        others = [f"{word} {getattr(self, name):,}" for word, name in sizes.items()
                  if getattr(self, name) != getattr(plain, name)]  # fmt: skip
        return ", ".join([self.kind, f"J {self.clusters}", *others])


KINDS = ("lifted", "gaussian")
WORLDS = (  # of the report, and to choose by
    World("ratings", 10),
    *(World(kind, clusters) for kind in KINDS for clusters in (1, 5, 10)),
    *(World(kind, 40, rounds=10_000, dimension=41) for kind in KINDS),
)
OTHER_WORLDS = (  # to choose by alone
    World("ratings", 10, rounds=3_000),
    World("ratings", 10, dimension=8),
    World("ratings", 10, list_length=10),
    World("ratings, paper's steps", 10),
    World("ratings", 40),
    World("ratings", 10, rounds=100_000),
    *(World(kind, 10, rounds=3_000) for kind in KINDS),
    *(World(kind, 5, dimension=8) for kind in KINDS),
    *(World(kind, 10, list_length=length) for kind in KINDS for length in (1, 10)),
    *(World(kind, 10, items=20) for kind in KINDS),
)


class Run(NamedTuple):
    """One run: a system with a beta and a lambda, other constants its own, in a world."""

    system: str
    beta: float
    lambda_: float
    world: World
    seed: int


class Outcome(NamedTuple):
    """What a run earned, and what it cost."""

    clicks: int
    regret: float
    exchanges: int


@cache
def load_ratings(path: str) -> Triplets:
    """Read a file of ratings once in each process."""
    from fedcascade.data.readers import read_ratings  # it needs polars, which synthetic worlds do without

    return read_ratings(path)


@cache
def make_world(world: World, seed: int, ratings: str) -> Clustered:
    """Make the environment of a world."""
    sizes = {"users": world.users, "clusters": world.clusters, "dimension": world.dimension, "items": world.items}
    if world.kind.startswith("ratings"):
        preset = "paper" if "paper" in world.kind else "catalogue"
        return Ratings(load_ratings(ratings), **sizes, preset=preset, seed=seed)
    return Synthetic(**sizes, features=world.kind, seed=seed)


def play(run: Run, ratings: str) -> Outcome:
    """Play a run."""
    warnings.simplefilter("ignore")
    policy, world = POLICIES[run.system].with_constants(beta=run.beta, lambda_=run.lambda_), run.world
    trace = simulate(make_world(world, run.seed, ratings), policy, rounds=world.rounds, threads=1,
                     oracle=TopK(length=world.list_length))  # fmt: skip
    return Outcome(trace.reward, trace.regret, trace.communications())


class Archive:
    """Finished runs in a file, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.outcomes = {decode_run(run): Outcome(*outcome) for run, outcome in map(json.loads, lines)}

    def complete(self, runs: Iterable[Run], ratings: str, pool: ProcessPoolExecutor) -> None:
        """Play those of the runs that are missing, with a line of progress now and then."""
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
    """Read a run as JSON has it."""
    system, beta, lambda_, world, seed = entry
    return Run(system, beta, lambda_, World(*world), seed)  # type: ignore


def list_tuning_runs(worlds: Iterable[World], lambdas: Sequence[float]) -> list[Run]:
    """The runs that constants are chosen by."""
    return [
        Run(system, beta, lambda_, world, seed)
        for seed in TUNING_SEEDS
        for world in worlds
        for system in (OURS, ALONE)
        for lambda_ in lambdas
        for beta in BETAS
    ]


Totals = Mapping[tuple[str, float, float, World], tuple[float, float]]


def sum_tuning(archive: Archive) -> Totals:
    """The clicks and the regret of each system with each constant in each world, over the seeds that choose."""
    totals: dict[tuple[str, float, float, World], tuple[float, float]] = {}
    for run, outcome in archive.outcomes.items():
        if run.seed in TUNING_SEEDS:
            clicks, regret = totals.get(run[:4], (0.0, 0.0))
            totals[run[:4]] = (clicks + outcome.clicks, regret + outcome.regret)
    return totals


def choose_constants(totals: Totals, system: str, world: World) -> tuple[float, float]:
    """The beta and lambda with the least regret on the seeds that choose."""
    return min((regret, key[1:3]) for key, (_, regret) in totals.items() if (key[0], key[3]) == (system, world))[1]


def print_choice(totals: Totals, worlds: Sequence[World]) -> None:
    """Print how much of the best is earned with each constant, in the worst world and on average."""
    print("\n| system | lambda | beta | least clicks of the best | in | most regret of the best | in | mean regret |")
    print("|---|---|---|---|---|---|---|---|")
    for system, beta, lambda_ in sorted({key[:3] for key in totals}, key=lambda key: (key[0], key[2], key[1])):
        best = {world: totals[system, *choose_constants(totals, system, world), world] for world in worlds}
        here = {world: totals[system, beta, lambda_, world] for world in worlds}
        clicks, poor = min((here[world][0] / best[world][0], str(world)) for world in worlds)
        regrets = [(here[world][1] / best[world][1], str(world)) for world in worlds]
        regret, poorest = max(regrets)
        mean = sum(ratio for ratio, _ in regrets) / len(regrets)
        print(f"| {system} | {lambda_:g} | {beta:g} | {clicks:.4f} | {poor} | {regret:.2f} | {poorest} | {mean:.2f} |")


def list_report_runs(totals: Totals, world: World) -> dict[str, list[Run]]:
    """The runs of the report by what the table calls them."""
    tuned = {system: choose_constants(totals, system, world) for system in (OURS, ALONE)}
    own = {system: (POLICIES[system].constants()["beta"], POLICIES[system].lambda_) for system in (OURS, PAPER)}
    rows = {"default": (OURS, *own[OURS]), "tuned": (OURS, *tuned[OURS]),
            "fedind tuned": (ALONE, *tuned[ALONE]), "the paper's": (PAPER, *own[PAPER])}  # fmt: skip
    return {name: [Run(*row, world, seed) for seed in REPORT_SEEDS] for name, row in rows.items()}


def format_interval(interval: Interval, digits: int = 0) -> str:
    """A mean and half of its 95% interval."""
    return f"{interval.mean:,.{digits}f} ± {interval.half_width:,.{digits}f}"


def print_report(rows: Mapping[World, Mapping[str, Sequence[Run]]], archive: Archive) -> None:
    """Print clicks in every world: at the default, as a share of the best tuned system, and of the others."""
    print("\n| world | default | best tuned | its beta | default of it | fedind tuned | the paper's |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for world, runs in rows.items():
        clicks = {name: [archive.outcomes[run].clicks for run in played] for name, played in runs.items()}
        best = max(("tuned", "fedind tuned"), key=lambda name: sum(clicks[name]))
        cells = [format_interval(estimate_mean(clicks[name])) for name in ("default", best)]
        others = [format_interval(estimate_mean(clicks[name])) for name in ("fedind tuned", "the paper's")]
        ratio = format_interval(estimate_ratio(clicks["default"], clicks[best]), 4)
        print(f"| {world} | {' | '.join(cells)} | {runs[best][0].beta:g} | {ratio} | {' | '.join(others)} |")


def main() -> None:
    """Choose, play fresh seeds, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/defaults"), help="folder for finished runs")
    parser.add_argument("--ratings", default="", help="a file of ratings: plays its worlds too")
    parser.add_argument("--lambdas", type=float, nargs="+", default=[4.0], help="lambdas to choose from")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--choose-only", action="store_true", help="play no fresh seeds")
    options = parser.parse_args()
    is_played = {world: bool(options.ratings) or "ratings" not in world.kind for world in (*WORLDS, *OTHER_WORLDS)}
    worlds = [world for world in is_played if is_played[world]]
    archive = Archive(options.out / "runs.jsonl")
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        archive.complete(list_tuning_runs(worlds, options.lambdas), options.ratings, pool)
        totals = sum_tuning(archive)
        print_choice(totals, worlds)
        if options.choose_only:
            return
        rows = {world: list_report_runs(totals, world) for world in worlds}
        played = [run for runs in rows.values() for each in runs.values() for run in each]
        archive.complete(played, options.ratings, pool)
    print_report(rows, archive)


if __name__ == "__main__":
    main()
