"""Ways to decide by evidence who is alike, side by side: ``python benchmarks/evidence.py``.

Seeds 100 to 102, on which `fedc3ucb-e` was tuned; none of them is reported elsewhere. Every variant is that
policy with another grouping, or with other constants.
"""

import argparse
import math
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from typing import ClassVar

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter
from population import Centred, Population, Unsent
from rich.console import Console
from rich.table import Table

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.federation.decisions import LastDownload
from fedcascade.federation.grouping.evidence import Evidence, EvidencePartition
from fedcascade.federation.grouping.partition import KnownClusters, Partition
from fedcascade.federation.holdings import Holdings
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import Constant, ProblemSize
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import streams

SEEDS = range(100, 103)
SETTINGS = (
    ("lifted", 1, 2.0), ("lifted", 5, 0.5), ("lifted", 10, 0.5), ("lifted", 5, 2.0),
    ("gaussian", 1, 1.0), ("gaussian", 5, 1.0), ("gaussian", 10, 1.0), ("gaussian", 40, 1.0),
)  # fmt: skip
UNTIL = (0, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 7_500, 10_000)
OURS = POLICIES["fedc3ucb-e"]


@dataclass(frozen=True, kw_only=True)
class Variant(Evidence):
    """An evidence grouping whose state is of another kind."""

    state: Callable[..., Partition] = EvidencePartition
    all_alike: float = 0.0  # the log-odds, before any data, that all users are alike; for ``AllAlike``

    def begin(self, holdings: Holdings, truth: np.ndarray | None) -> Partition:
        """That state, before the first upload."""
        return self.state(holdings, self, truth) if self.state is Watched else self.state(holdings, self)


class OnePartition(EvidencePartition):
    """Answers with the sum of the last sampled group, not with the average over samples."""

    def answer(self, agent: int) -> Statistics:
        """The sum over one group."""
        return self.pooled(agent)


class AllAlike(EvidencePartition):
    """Weighs the walk's answer and the sum over everybody by the odds that all users are alike.

    Agents that move one by one find out late that there is one group: each step there explains the data worse, until
    most have taken it.
    """

    def add(self, agent: int, statistics: Statistics) -> None:
        """Walk, compare one group with those of the walk, and mix."""
        super().add(agent, statistics)
        everybody = self.holdings.total(self.spoken)
        members = np.unique(self.labels[self.spoken], return_index=True)[1]
        groups = [self.rule.measure(self.pooled(agent)) for agent in self.spoken[members].tolist()]
        log_odds = self.rule.all_alike + self.rule.measure(everybody) - sum(groups)
        alike = 1.0 / (1.0 + math.exp(-np.clip(log_odds, -50.0, 50.0)))
        self.last_answer = everybody.scale(alike) + self.last_answer.scale(1.0 - alike)


class BestGroup(Partition):
    """No walk: an agent that speaks joins the group with the most evidence, if that passes the hurdle."""

    def __init__(self, holdings: Holdings, rule: Evidence) -> None:
        super().__init__(holdings, np.arange(len(holdings)))
        self.rule = rule
        self.last_answer = Statistics.zero(holdings.dimension)

    def add(self, agent: int, statistics: Statistics) -> None:  # noqa: ARG002
        """Leave, and join the best."""
        own, left = self.holdings[agent], int(self.labels[agent])
        self.labels[agent] = -1
        self.sum_group(left)
        alone = self.rule.measure(own)
        gains = {
            g: self.rule.measure(own + s) - self.rule.measure(s) - alone for g, s in self.pools.items() if s.count > 0
        }
        best = max(gains, key=gains.__getitem__, default=-1)
        fresh = self.find_unused_label()
        self.labels[agent] = best if best >= 0 and gains[best] > self.rule.hurdle else fresh
        self.sum_group(int(self.labels[agent]))


class Restaurant(BestGroup):
    """A Chinese restaurant: to join a group has odds by its size, to found one by a concentration that is learned.

    The concentration is averaged, at each visit, over a grid of values by how well they explain the number of groups.
    """

    def __init__(self, holdings: Holdings, rule: Evidence) -> None:
        super().__init__(holdings, rule)
        self._spoken, self._own_evidence, self._samplings = np.empty(0, np.int64), np.zeros(len(holdings)), 0

    def answer(self, agent: int) -> Statistics:  # noqa: ARG002 (who has just spoken)
        """What the last upload led to."""
        return self.last_answer

    def add(self, agent: int, statistics: Statistics) -> None:  # noqa: ARG002
        """Walk as the sampler does, with those odds, and average what the agent's group knows."""
        if agent not in self._spoken:
            self._spoken = np.append(self._spoken, agent)
        self._own_evidence[agent] = self.rule.measure(self.holdings[agent])
        self._samplings += 1
        visits = self._choose_visits(agent)
        draws = streams.uniforms(np.uint64(0), streams.PARTITION, self._samplings, visits.size)
        told = [self._visit(int(visit), draw) for visit, draw in zip(visits, draws, strict=True)]
        told = [others for others, visit in zip(told, visits, strict=True) if visit == agent]
        total = sum(told, Statistics.zero(self.holdings.dimension))
        self.last_answer = self.holdings[agent] + total.scale(1.0 / len(told))

    def _choose_visits(self, asker: int) -> np.ndarray:
        others = self._spoken[self._spoken != asker]
        if others.size > self.rule.visits:
            chosen = (np.uint64(0), streams.VISIT, self._samplings, others.size, self.rule.visits)
            others = others[streams.sample_few_indices(*chosen)]
        return np.tile(np.append(asker, others), self.rule.sweeps)

    def _visit(self, agent: int, draw: float) -> Statistics:
        """Leave and join; returns what others of the group are expected to know."""
        own, left = self.holdings[agent], int(self.labels[agent])
        self.labels[agent] = -1
        self.sum_group(left)
        labels, sizes = np.unique(self.labels[self._spoken], return_counts=True)
        labels, sizes = labels[labels >= 0], sizes[labels >= 0]
        pools = [self.pools[int(label)] for label in labels]
        gains = [self.rule.measure(own + pool) - self.rule.measure(pool) - self._own_evidence[agent] for pool in pools]
        founding = self.rule.hurdle + learn_concentration(len(pools), self._spoken.size - 1)
        odds = np.append(np.array(gains) + np.log(sizes), founding)
        odds = np.exp(odds - odds.max())
        odds /= odds.sum()
        chosen = min(int(np.searchsorted(np.cumsum(odds), draw)), labels.size)
        self.labels[agent] = labels[chosen] if chosen < labels.size else self.find_unused_label()
        self.sum_group(int(self.labels[agent]))
        shares = [pool.scale(float(share)) for pool, share in zip(pools, odds, strict=False)]
        return sum(shares, Statistics.zero(own.dimension))


def learn_concentration(groups: int, agents: int) -> float:
    """The expected logarithm of the concentration, given how many groups there are of so many agents."""
    grid = np.exp(np.linspace(math.log(0.05), math.log(200.0), 24))
    weights = np.array([groups * math.log(c) + math.lgamma(c) - math.lgamma(c + agents) for c in grid])
    weights = np.exp(weights - weights.max())
    return float(weights @ np.log(grid) / weights.sum())


class Pairs(BestGroup):
    """No groups: every other agent counts by the probability that the two of them are alike."""

    def answer(self, agent: int) -> Statistics:  # noqa: ARG002 (who has just spoken)
        """What the last upload led to."""
        return self.last_answer

    def add(self, agent: int, statistics: Statistics) -> None:  # noqa: ARG002
        """Weigh all others."""
        own, alone = self.holdings[agent], self.rule.measure(self.holdings[agent])
        total = own
        for neighbour in np.flatnonzero(self.holdings.count > 0):
            if neighbour != agent:
                theirs = self.holdings[int(neighbour)]
                gain = self.rule.measure(own + theirs) - self.rule.measure(theirs) - alone
                total += theirs.scale(1.0 / (1.0 + np.exp(np.clip(self.rule.hurdle - gain, -50, 50))))
        self.last_answer = total


@dataclass(frozen=True, kw_only=True)
class ByVariance(Constant):
    """A beta that follows the noise of clicks, which is the root of p (1 - p) and at most 1/2."""

    def radius(self, ridge: Ridge, problem: ProblemSize) -> float:  # noqa: ARG002
        """Beta times what the noise is of its largest."""
        clicked = (ridge.statistics.clicks + 1) / (ridge.statistics.count + 2)
        return self.beta * 2.0 * math.sqrt(clicked * (1.0 - clicked))


class Watched(EvidencePartition):
    """The same walk; at each upload it notes how much better the truth explains the clicks than its own partition."""

    notes: ClassVar[list[tuple[int, float]]] = []

    def __init__(self, holdings: Holdings, rule: Evidence, truth: np.ndarray) -> None:
        super().__init__(holdings, rule)
        self._truth = np.array(truth, np.int64)

    def add(self, agent: int, statistics: Statistics) -> None:
        """Walk, and compare."""
        super().add(agent, statistics)
        better = self._measure_labels(self._truth) - self._measure_labels(self.labels)
        self.notes.append((int(self.holdings.rounds.sum()), better))

    def _measure_labels(self, labels: np.ndarray) -> float:
        groups = [self.holdings.total(np.flatnonzero(labels == label)) for label in np.unique(labels)]
        return sum(self.rule.measure(group) for group in groups)


def make_variant(state: Callable[..., Partition], **constants: float) -> Policy:
    """Make our policy with another state of its grouping."""
    return replace(OURS, grouping=Variant(state=state, **constants))


VARIANTS: dict[str, Policy] = {
    "fedc3ucb-e": OURS,
    "hurdle 0": OURS.with_constants(hurdle=0.0),
    "hurdle 2": OURS.with_constants(hurdle=2.0),
    "hurdle 5": OURS.with_constants(hurdle=5.0),
    "sweeps 10": OURS.with_constants(sweeps=10),
    "40 visits": OURS.with_constants(visits=40),
    "noise 0.12": OURS.with_constants(variance=0.12),
    "noise 0.3": OURS.with_constants(variance=0.3),
    "one partition of the walk": make_variant(OnePartition),
    "the best group, hurdle 4": make_variant(BestGroup, hurdle=4.0),
    "pairs, hurdle 4": make_variant(Pairs, hurdle=4.0),
    "all alike: log-odds -10": make_variant(AllAlike, all_alike=-10.0),
    "all alike: log-odds -20": make_variant(AllAlike, all_alike=-20.0),
    "Chinese restaurant, learned concentration": make_variant(Restaurant, hurdle=0.0),
    "Chinese restaurant, hurdle 3": make_variant(Restaurant, hurdle=3.0),
    "prior around the population": make_variant(Centred),
    "learned prior, hurdle 0": make_variant(Population, hurdle=0.0),
    "learned prior, speaks at 45% unsent": replace(make_variant(Population, hurdle=0.0), trigger=Unsent(0.45)),
    "speaks at 45% unsent": replace(OURS, trigger=Unsent(0.45)),
    "truth known, speaks at 45% unsent": replace(OURS, grouping=KnownClusters(), trigger=Unsent(0.45)),
    "beta by the variance of clicks": replace(OURS, confidence=ByVariance()),
    "alpha_c 2": OURS.with_constants(alpha_c=2.0),
    "alpha_c 15": OURS.with_constants(alpha_c=15.0),
    "last download alone": replace(OURS, decision=LastDownload()),
    "fedind": POLICIES["fedind"],
    "fedlinucb": POLICIES["fedlinucb"],
    "known-clusters": POLICIES["known-clusters"],
}


def measure_variant(variant: str, features: str, clusters: int, beta: float, rounds: int) -> tuple[float, float]:
    """Return mean regret and exchanges over the seeds."""
    warnings.simplefilter("ignore")  # the exact engine does not know all of these parts and says so
    policy = VARIANTS[variant].with_constants(beta=beta)
    dimension = 40 if clusters == 40 else 20
    worlds = [Synthetic(features=features, clusters=clusters, dimension=dimension, seed=seed) for seed in SEEDS]
    traces = [simulate(world, policy, rounds=rounds, threads=1) for world in worlds]
    return float(np.mean([trace.regret for trace in traces])), float(np.mean([len(trace.ledger) for trace in traces]))


def compare_truth_with_sampler(**constants: float) -> list[str]:
    """Return how much better the truth explains the clicks than the sampler's partition, by round."""
    Watched.notes.clear()
    for seed in SEEDS:
        world = Synthetic(features="lifted", clusters=5, seed=seed)
        simulate(world, make_variant(Watched, **constants).with_beta(0.5), rounds=10_000, threads=1)
    rounds, better = np.array(Watched.notes).T
    return [f"{better[(rounds > first) & (rounds <= last)].mean():+.1f}" for first, last in pairwise(UNTIL)]


def make_truth_table() -> Table:
    """Make a table of when clicks begin to tell: before, a wrong partition explains them better than the true one."""
    table = Table(title="log-evidence of the true partition less that of the walk's, lifted, J 5, beta 0.5")
    table.add_column("variant")
    for last in UNTIL[1:]:
        table.add_column(f"to {last:,}", justify="right")
    table.add_row("fedc3ucb-e", *compare_truth_with_sampler())
    table.add_row("hurdle 0, 40 visits, 10 sweeps", *compare_truth_with_sampler(hurdle=0.0, visits=40, sweeps=10))
    return table


def make_results_table(cells: dict[str, list[tuple[float, float]]], rounds: int) -> Table:
    """Make a table of all that was measured, a line for each variant."""
    table = Table(title=f"regret (exchanges) after {rounds:,} rounds, mean of seeds 100 to 102")
    table.add_column("variant")
    for features, clusters, beta in SETTINGS:
        table.add_column(f"{features}, J {clusters}, beta {beta:g}", justify="right")
    for name, row in cells.items():
        table.add_row(name, *(f"{regret:,.0f} ({exchanges:,.0f})" for regret, exchanges in row))
    return table


def draw_figure(cells: dict[str, list[tuple[float, float]]], path: str) -> None:
    """Draw what variants lose where all are alike, against what they lose where there are ten clusters."""
    alike, ten = SETTINGS.index(("lifted", 1, 2.0)), SETTINGS.index(("lifted", 10, 0.5))
    best = cells["known-clusters"]
    at = {name: (row[alike][0] / best[alike][0], row[ten][0] / best[ten][0]) for name, row in cells.items()}
    guessing = [name for name in at if "know" not in name]
    frontier = [
        name
        for name in guessing
        if not any(at[rival][0] < at[name][0] and at[rival][1] < at[name][1] for rival in guessing)
    ]
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", xlim=(0.7, 20), ylim=(0.9, 11))
    axes.plot(*zip(*sorted(at[name] for name in frontier), strict=True), "-", color="C0", linewidth=1)
    for name, place in at.items():
        is_labelled = name in (*frontier, OURS.name, "fedind") or name not in guessing
        colour = "C3" if name == OURS.name else "C0" if is_labelled else "0.7"
        axes.plot(*place, "o", color=colour, markersize=6 if is_labelled else 3)
        turned = 35 if name in guessing else 0
        if is_labelled:
            axes.annotate(name, place, xytext=(2, 5), textcoords="offset points", fontsize=8, rotation=turned)
    axes.set_xlabel("regret with one cluster, lifted, beta 2: multiple of known-clusters")
    axes.set_ylabel("with ten clusters, lifted, beta 0.5")
    for axis, ticks in ((axes.xaxis, (1, 2, 3, 5, 10)), (axes.yaxis, (1, 2, 3, 5, 7))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(NullLocator())
    with rc_context({"svg.hashsalt": "evidence", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="VARIANT", help="these variants alone")
    parser.add_argument("--figure", help="also draw one cluster against ten into this file")
    options = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        futures = {
            name: [pool.submit(measure_variant, name, *at, options.rounds) for at in SETTINGS]
            for name in options.only or VARIANTS
        }
        cells = {name: [cell.result() for cell in row] for name, row in futures.items()}
    Console(width=170).print(make_results_table(cells, options.rounds))
    if not options.only:
        Console(width=170).print(make_truth_table())
    if options.figure:
        draw_figure(cells, options.figure)


if __name__ == "__main__":
    main()
