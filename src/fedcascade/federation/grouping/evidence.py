"""Grouping by evidence: what others know counts by the probability that they are alike.

The evidence is the log Bayes factor of 'one theta' against 'two', each theta ~ N(0, tau^2 I) and clicks with
noise sigma^2. With l = sigma^2 / tau^2 the evidence of statistics (S, b) is, up to what cancels,

    E(S, b) = b^T (S + l I)^-1 b / (2 sigma^2) - (ln det(S + l I) - d ln l) / 2,

and E(S_1 + S_2, b_1 + b_2) - E(S_1, b_1) - E(S_2, b_2) is 0 without data, grows like (d/2) ln T for equals
and falls without bound for unequals. There is no gap between clusters to know.

Early on the data cannot tell who is alike, and a guess would pool the wrong users. So the server does not
guess: it walks through the partitions that the data allow (Gibbs sampling), and an agent that speaks gets
the average, over the walk, of what its group would know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.gibbs import NOBODY, Rows, evidence_of, walk
from fedcascade.federation.grouping.partition import Labels, Partition, relabel_by_appearance
from fedcascade.federation.holdings import Holdings, append_zero_row
from fedcascade.learning.statistics import Statistics


@dataclass(frozen=True, kw_only=True)
class Evidence(Part):
    """Agents start apart; at each upload the server samples more of the partitions that the data allow.

    The hurdle is above 0 because to share with the wrong agents costs more than not to share.
    """

    hurdle: float = constant(
        3.0,
        meaning="how much more a user is taken to be unlike others than they are unlike each other, in log-odds",
    )
    variance: float = constant(
        0.2, meaning="the noise of a click that the evidence assumes", symbol="sigma^2", range=POSITIVE
    )
    length: float = constant(
        1.0,
        meaning="how long a theta is expected to be, before any data: tau^2 is length^2 / d",
        symbol="tau sqrt(d)",
        range=POSITIVE,
    )
    sweeps: int = constant(
        3, meaning="how often the sampler comes by each agent that it visits", range=whole_numbers(1)
    )
    visits: int = constant(
        10, meaning="how many other agents the sampler visits; all, if there are not more", range=whole_numbers(1)
    )

    def prior(self, dimension: int) -> float:
        """l = sigma^2 / tau^2."""
        return self.variance * dimension / self.length**2

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        """Everybody apart."""
        return EvidencePartition(holdings, self)


def evidence(statistics: Statistics, *, variance: float, prior: float) -> float:
    """E(S, b)."""
    return float(evidence_of(statistics.gram, statistics.moment, variance, prior))


class EvidencePartition(Partition):
    """The state of a grouping by evidence: the partition at which the walk has arrived."""

    def __init__(self, holdings: Holdings, rule: Evidence) -> None:
        super().__init__(holdings, np.arange(len(holdings), dtype=np.int64))
        self._rule = rule
        self._alone = np.zeros(len(holdings))  # E of every agent's own statistics
        self._spoken = np.empty(0, np.int64)  # in the order of their first uploads, however agents are numbered
        self._walks = 0
        self._asker = NOBODY
        self._answer = Statistics.zero(holdings.dimension)

    def to_state(self) -> dict[str, Any]:
        """The partition, what the sampler goes on from, and the last answer."""
        return super().to_state() | {
            "alone": self._alone,
            "spoken": self._spoken,
            "walks": self._walks,
            "asker": self._asker,
            "answer": self._answer,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_state`` gave."""
        super().load_state(state)
        self._alone, self._spoken, self._walks = state["alone"], state["spoken"], state["walks"]
        self._asker, self._answer = state["asker"], state["answer"]

    def answer(self, agent: int) -> Statistics:
        """The average over the walk for the agent that has just spoken; for others, what their group knows."""
        return self._answer if agent == self._asker else self.pooled(agent)

    def add(self, agent: int, statistics: Statistics) -> None:  # noqa: ARG002 (the holdings have it already)
        """Take an upload: walk on, and keep what the agent will be told."""
        own, rule = self.holdings[agent], self._rule
        if own.count == 0:
            return
        if agent not in self._spoken:
            self._spoken = np.append(self._spoken, agent)
        prior = rule.prior(own.dimension)
        self._alone[agent] = evidence(own, variance=rule.variance, prior=prior)
        self._walks += 1
        chance = np.random.Generator(np.random.Philox(key=self._walks))
        visits = self._visits(int(np.flatnonzero(self._spoken == agent)[0]), chance)
        names, places = relabel_by_appearance(self.labels[self._spoken])
        expected = walk(
            _rows(self.holdings, self._spoken), self._alone[self._spoken], places, names.size,
            visits, chance.random(visits.size), rule.hurdle, rule.variance, prior,
        )  # fmt: skip
        self._move(agent, names, places)
        self._asker, self._answer = agent, own + _as_statistics(expected, own.dimension)

    def _visits(self, asker: int, chance: np.random.Generator) -> Labels:
        """Whom the walk visits, in order: in each sweep the asker first, then others that have spoken."""
        others = np.delete(np.arange(self._spoken.size), asker)
        if others.size > self._rule.visits:
            others = chance.choice(others, self._rule.visits, replace=False)
        return np.tile(np.append(asker, others), self._rule.sweeps)

    def _move(self, agent: int, names: Labels, places: Labels) -> None:
        """Take the walk's partition over: groups keep their labels, new ones get labels that nobody has."""
        free = np.setdiff1d(np.arange(self.labels.size + 1), self.labels)
        before = self.labels.copy()
        self.labels[self._spoken] = np.concatenate([names, free])[places]
        moved = before != self.labels
        moved[agent] = True  # even where it stays, its group has more data
        for label in np.union1d(before[moved], self.labels[moved]):
            self._sum_up(int(label))

    def join(self) -> None:
        """A newcomer starts apart, like everybody."""
        self._alone = append_zero_row(self._alone)
        self.place(self._unused())

    def forget(self, agent: int) -> None:
        """Without the agent, its group knows less."""
        self._alone = np.delete(self._alone, agent)
        left = self._spoken[self._spoken != agent]
        self._spoken = left - (left > agent)
        self._asker = NOBODY
        super().forget(agent)


def _rows(holdings: Holdings, agents: Labels) -> Rows:
    counts = [held[agents, None] for held in (holdings.count, holdings.clicks, holdings.rounds)]
    return np.hstack([holdings.gram[agents].reshape(agents.size, -1), holdings.moment[agents], *counts])


def _as_statistics(row: NDArray[np.float64], dimension: int) -> Statistics:
    """A row as statistics; what is known with a probability counts as so much, whole numbers rounded down."""
    gram, moment, counts = np.split(row, [dimension**2, dimension**2 + dimension])
    return Statistics(gram.reshape(dimension, dimension), moment, *(int(count) for count in counts))
