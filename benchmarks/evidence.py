"""Ways to decide by evidence who is alike, side by side: ``python benchmarks/evidence.py``.

Seeds 100 to 102, on which `fedc3ucb-e` was tuned; none of them is reported elsewhere. Every variant is that
policy with another grouping, or with other constants.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console
from rich.table import Table

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.federation.decisions import LastDownload
from fedcascade.federation.evidence import Evidence, EvidenceGroups, evidence
from fedcascade.federation.grouping import Groups
from fedcascade.federation.holdings import Holdings
from fedcascade.federation.policies import Policy
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

SEEDS = range(100, 103)
SETTINGS = (("lifted", 5, 0.5), ("lifted", 10, 0.5), ("lifted", 5, 2.0), ("gaussian", 5, 1.0), ("gaussian", 10, 1.0))
OURS = POLICIES["fedc3ucb-e"]


def scaled(statistics: Statistics, share: float) -> Statistics:
    """So much of some statistics."""
    counts = (int(share * count) for count in (statistics.count, statistics.clicks, statistics.rounds))
    return Statistics(share * statistics.gram, share * statistics.moment, *counts)


@dataclass(frozen=True, kw_only=True)
class Variant(Evidence):
    """An evidence grouping whose state is of another kind."""

    state: Callable[[Holdings, Evidence], Groups] = EvidenceGroups

    def begin(self, holdings: Holdings, truth: np.ndarray | None) -> Groups:  # noqa: ARG002
        """That state, before the first upload."""
        return self.state(holdings, self)


class OnePartition(EvidenceGroups):
    """Answers with the group at which the walk has arrived, not with the average."""

    def answer(self, agent: int) -> Statistics:
        """The sum over one group."""
        return self.pooled(agent)


class BestGroup(EvidenceGroups):
    """No walk: an agent that speaks joins the group with the most evidence, if that passes the hurdle."""

    def add(self, agent: int, statistics: Statistics) -> None:  # noqa: ARG002
        """Leave, and join the best."""
        own, left = self.holdings[agent], int(self.labels[agent])
        self.labels[agent] = -1
        self._sum_up(left)
        alone = self._known(own)
        gains = {g: self._known(own + s) - self._known(s) - alone for g, s in self._pooled.items() if s.count > 0}
        best = max(gains, key=gains.__getitem__, default=-1)
        fresh = next(label for label in range(len(self.labels) + 1) if label not in self._pooled)
        self.labels[agent] = best if best >= 0 and gains[best] > self._rule.hurdle else fresh
        self._sum_up(int(self.labels[agent]))

    def _known(self, statistics: Statistics) -> float:
        return evidence(statistics, variance=self._rule.variance, prior=self._rule.prior(self.holdings.dimension))


class Pairs(BestGroup):
    """No groups: every other agent counts by the probability that the two of them are alike."""

    def add(self, agent: int, statistics: Statistics) -> None:  # noqa: ARG002
        """Weigh all others."""
        own, alone = self.holdings[agent], self._known(self.holdings[agent])
        total = own
        for other in np.flatnonzero(self.holdings.count > 0):
            if other != agent:
                theirs = self.holdings[int(other)]
                gain = self._known(own + theirs) - self._known(theirs) - alone
                total += scaled(theirs, 1.0 / (1.0 + np.exp(np.clip(self._rule.hurdle - gain, -50, 50))))
        self._asker, self._answer = agent, total


class Centred(EvidenceGroups):
    """A prior around what the population likes: evidence is about how users differ from it."""

    def add(self, agent: int, statistics: Statistics) -> None:
        """Walk with moments less what the population's estimate explains, and give that back in the answer."""
        held = self.holdings
        centre = Ridge(held.total(np.arange(len(held))), 1.0).theta
        moments, explained = held.moment, held.gram @ centre
        held.moment = moments - explained
        for other in range(len(held)):
            self._alone[other] = evidence(
                held[other], variance=self._rule.variance, prior=self._rule.prior(self.holdings.dimension)
            )
        super().add(agent, statistics)
        held.moment = moments
        told = self._answer
        self._answer = replace(told, moment=told.moment + told.gram @ centre)


def tried(state: Callable[[Holdings, Evidence], Groups], **constants: float) -> Policy:
    """Our policy with another state of its grouping."""
    return replace(OURS, grouping=Variant(state=state, **constants))


VARIANTS: dict[str, Policy] = {
    "fedc3ucb-e": OURS,
    "hurdle 0": OURS.tuned(hurdle=0.0),
    "hurdle 2": OURS.tuned(hurdle=2.0),
    "hurdle 5": OURS.tuned(hurdle=5.0),
    "sweeps 10": OURS.tuned(sweeps=10),
    "40 visits": OURS.tuned(visits=40),
    "noise 0.12": OURS.tuned(variance=0.12),
    "noise 0.3": OURS.tuned(variance=0.3),
    "one partition of the walk": tried(OnePartition),
    "the best group, hurdle 4": tried(BestGroup, hurdle=4.0),
    "pairs, hurdle 4": tried(Pairs, hurdle=4.0),
    "prior around the population": tried(Centred),
    "alpha_c 2": OURS.tuned(alpha_c=2.0),
    "alpha_c 15": OURS.tuned(alpha_c=15.0),
    "last download alone": replace(OURS, decision=LastDownload()),
    "fedind": POLICIES["fedind"],
    "known-clusters": POLICIES["known-clusters"],
}


def measured(policy: Policy, features: str, clusters: int, beta: float, rounds: int) -> str:
    """Mean regret and exchanges over the seeds."""
    traces = [
        simulate(Synthetic(features=features, clusters=clusters, seed=seed), policy.exploring(beta), rounds=rounds)
        for seed in SEEDS
    ]
    regret, exchanges = np.mean([trace.regret for trace in traces]), np.mean([len(trace.ledger) for trace in traces])
    return f"{regret:,.0f} ({exchanges:,.0f})"


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100_000)
    rounds = parser.parse_args().rounds
    table = Table(title=f"regret (exchanges) after {rounds:,} rounds, mean of seeds 100 to 102")
    table.add_column("variant")
    for features, clusters, beta in SETTINGS:
        table.add_column(f"{features}, J {clusters}, beta {beta:g}", justify="right")
    for name, policy in VARIANTS.items():
        table.add_row(name, *(measured(policy, *setting, rounds) for setting in SETTINGS))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
