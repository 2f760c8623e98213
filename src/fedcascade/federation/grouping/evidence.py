"""Grouping by evidence: other agents' data count by the probability that they are alike.

The evidence is the log Bayes factor of 'one theta' against 'two', each theta ~ N(0, tau^2 I) and clicks with
noise sigma^2. With l = sigma^2 / tau^2 the evidence of statistics (S, b) is, up to what cancels,

    E(S, b) = b^T (S + l I)^-1 b / (2 sigma^2) - (ln det(S + l I) - d ln l) / 2,

and E(S_1 + S_2, b_1 + b_2) - E(S_1, b_1) - E(S_2, b_2) is 0 without data, grows like (d/2) ln T for equals
and falls without bound for unequals. There is no gap between clusters to know.

Early on the data cannot tell who is alike, and a guess would pool the wrong users. So the server does not
guess: it samples the partitions that the data allow (Gibbs sampling, ``gibbs.py``), and an agent that speaks gets
the average, over the samples, of the statistics of its group.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.gibbs import Model, Row, Rows, compute_evidence, sample_partitions
from fedcascade.federation.grouping.guard import NO_GUARD, compute_shares
from fedcascade.federation.grouping.partition import Labels, Partition, relabel_by_appearance
from fedcascade.federation.holdings import Holdings, append_zeros
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import streams

NO_AGENT = -1
_SEED = np.uint64(0)  # of the sampler: a server has none of its own, and replays must agree


def describe_variance() -> Any:
    """The field of the noise of a click, of every part that weighs evidence."""
    meaning = "the noise of a click that the evidence assumes"
    return constant(0.2, meaning=meaning, symbol="sigma^2", range=POSITIVE)


def describe_length() -> Any:
    """The field of the length of a theta, of every part that weighs evidence."""
    meaning = "how long a theta is expected to be, before any data: tau^2 is length^2 / d"
    return constant(1.0, meaning=meaning, symbol="tau sqrt(d)", range=POSITIVE)


def compute_prior(variance: float, length: float, dimension: int) -> float:
    """l = sigma^2 / tau^2."""
    return float(variance * dimension / length**2)


@dataclass(frozen=True, kw_only=True)
class Evidence(Part):
    """Agents start apart; at each upload the server samples more of the partitions that the data allow.

    The hurdle is above 0 because to share with the wrong agents costs more than not to share.
    """

    hurdle: float = constant(
        3.0, meaning="how much more a user is taken to be unlike others than they are unlike each other, in log-odds"
    )
    variance: float = describe_variance()
    length: float = describe_length()
    sweeps: int = constant(
        3, meaning="how often the sampler comes by each agent that it visits", range=whole_numbers(1)
    )
    visits: int = constant(
        10, meaning="how many other agents the sampler visits; all, if there are not more", range=whole_numbers(1)
    )

    def make_model(self, dimension: int) -> Model:
        """The constants as the sampler reads them, with l = sigma^2 / tau^2."""
        return Model(float(self.hurdle), float(self.variance), compute_prior(self.variance, self.length, dimension))

    def measure(self, statistics: Statistics) -> float:
        """E(S, b) of some statistics."""
        model = self.make_model(statistics.dimension)
        return float(compute_evidence(statistics.gram, statistics.moment, model.variance, model.prior))

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return EvidencePartition(holdings, self)


class EvidencePartition(Partition):
    """The state of a grouping by evidence: the last partition that was sampled, and the answer that came of it."""

    state_names = (*Partition.state_names, "own_evidence", "spoken", "samplings", "asker", "last_answer")

    def __init__(self, holdings: Holdings, rule: Evidence) -> None:
        super().__init__(holdings, np.arange(len(holdings), dtype=np.int64))
        self.rule = rule
        self.own_evidence = np.zeros(len(holdings))  # E of every agent's own statistics
        self.spoken = np.empty(0, np.int64)  # in the order of their first uploads, however agents are numbered
        self.samplings = 0
        self.asker = NO_AGENT
        self.last_answer = Statistics.zero(holdings.dimension)

    def answer(self, agent: int) -> Statistics:
        """The average over the samples for the agent that has just spoken; for others, the sum of their group."""
        return self.last_answer if agent == self.asker else super().answer(agent)

    def add(self, agent: int, statistics: Statistics) -> None:  # noqa: ARG002 (the holdings have it already)
        """Sample partitions anew after an upload, and remember the answer to it."""
        own = self.holdings[agent]
        if own.count == 0:
            return
        if agent not in self.spoken:
            self.spoken = np.append(self.spoken, agent)
        self.own_evidence[agent] = self.rule.measure(own)
        self.samplings += 1
        visits = self._choose_visits(int(np.flatnonzero(self.spoken == agent)[0]))
        labels, assignment = relabel_by_appearance(self.labels[self.spoken])
        rows, alone = self._gather_guarded_rows(visits)
        draws = self._draw_uniforms(visits.size)
        model, told = self.rule.make_model(own.dimension), max(1, self.guard.min_others)
        expected = sample_partitions(rows, alone, assignment, labels.size, visits, draws, model, told)
        self._take_over(agent, labels, assignment)
        self.asker, self.last_answer = agent, own + _to_statistics(expected, own.dimension)

    def _draw_uniforms(self, count: int) -> NDArray[np.float64]:
        """Luck that depends on how many samplings there were, and on nothing else."""
        return streams.uniforms(_SEED, streams.PARTITION, self.samplings, count)

    def _choose_visits(self, asker: int) -> Labels:
        """Whom the sampler visits, in order: in each sweep the asker first, then others that have spoken."""
        others = np.delete(np.arange(self.spoken.size), asker)
        if others.size > self.rule.visits:
            others = others[streams.sample_indices(_SEED, streams.VISIT, self.samplings, others.size, self.rule.visits)]
        return np.tile(np.append(asker, others), self.rule.sweeps)

    def _gather_guarded_rows(self, visits: Labels) -> tuple[Rows, Row]:
        """The data of agents that have spoken, of each no more than its bounded weight, and E of each visited row."""
        rows, alone = _gather_rows(self.holdings, self.spoken), self.own_evidence[self.spoken]
        if self.guard is not NO_GUARD:
            shares = compute_shares(self.holdings.count[self.spoken], self.guard.max_weight)
            heavies = np.flatnonzero(shares < 1.0)
            rows[heavies] *= shares[heavies, None]
            for heavy in np.intersect1d(heavies, visits):
                alone[heavy] = self.rule.measure(_to_statistics(rows[heavy], self.holdings.dimension))
        return rows, alone

    def _take_over(self, agent: int, labels: Labels, assignment: Labels) -> None:
        """Make the sampled assignment the partition: groups keep their labels, new ones get unused labels."""
        unused = np.setdiff1d(np.arange(self.labels.size + 1), self.labels)
        before = self.labels.copy()
        self.labels[self.spoken] = np.concatenate([labels, unused])[assignment]
        moved = before != self.labels
        moved[agent] = True  # even where it stays, its group has more data
        for label in np.union1d(before[moved], self.labels[moved]):
            self.sum_group(int(label))

    def join(self) -> None:
        self.own_evidence = append_zeros(self.own_evidence)
        self.append_agent(self.find_unused_label())

    def forget(self, agent: int) -> None:
        """Take out an agent, and the answer that may hold its data."""
        self.own_evidence = np.delete(self.own_evidence, agent)
        remaining = self.spoken[self.spoken != agent]
        self.spoken = remaining - (remaining > agent)
        self.asker, self.last_answer = NO_AGENT, Statistics.zero(self.holdings.dimension)
        super().forget(agent)


def _gather_rows(holdings: Holdings, agents: Labels) -> Rows:
    """The data of some agents as the sampler reads them, one row each."""
    counts = [held[agents, None] for held in (holdings.count, holdings.clicks, holdings.rounds)]
    return np.hstack([holdings.gram[agents].reshape(agents.size, -1), holdings.moment[agents], *counts])


def _to_statistics(row: Row, dimension: int) -> Statistics:
    """A row as statistics; counts that were weighted by probabilities are rounded down."""
    gram, moment, counts = np.split(row, [dimension**2, dimension**2 + dimension])
    return Statistics(gram.reshape(dimension, dimension), moment, *(int(count) for count in counts))
