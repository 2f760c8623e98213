"""Grouping by a population: an answer is the posterior of the asker's theta, in the form of statistics.

The model: theta ~ sum_k pi_k N(mu_k, spread_k T) + pi_0 N(m, T). Everything in it is learned from all users' uploads:
the population's mean m and covariance T by EM, the variance of a click from click rates, groups by
visits. A visit takes a user out of its groups and puts it back by its responsibilities. The same model serves two
users and a million: an upload visits the asker and a few others in turn, whatever their number.

An answer leaves the asker's own data out of the groups: it is what others' data say of this user, matched by one
Gaussian N(c, C) and stated as gram v C^-1 - lambda I and moment v C^-1 c, to which the asker's own data are added.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedcascade.checks import whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.grouping.population.births import cluster_estimates, estimate_users
from fedcascade.federation.grouping.population.fit import fit_population
from fedcascade.federation.grouping.population.gaussian import (
    make_gaussian,
    make_workspace,
    state_as_statistics,
)
from fedcascade.federation.grouping.population.groups import (
    Groups,
    Users,
    VisitRule,
    add_upload,
    answer_user,
    label_user,
    make_groups,
    measure_groups,
    measure_merge,
    move_users,
    predict_users,
    try_groups,
    visit_users,
)
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row
from fedcascade.learning.noise import LEAST_NOISE, estimate_noise
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import streams
from fedcascade.numerics.linear import Matrix, Vector

FIT_USERS = 1_024  # users that a fit and proposals are made from, at most
FIT_GROWTH, FIT_UPLOADS = 1.2, 10  # fit again after 1.2x as many uploads, and at least 10 more
CANDIDATES = 40  # users that an asker without a group is compared with
HURDLE = 2.0  # extra log-odds for opening a group
USERS_PER_BIRTH = 40  # users for each group that is proposed
MOST_BIRTHS = 16  # groups that are proposed at a time
LARGE_GROUP = 0.25  # of the active agents: the members of a larger group are also proposed for new groups
BIRTH_DEVIATIONS = 4.0  # standard deviations by which proposed groups must predict users better than the model without
BIRTH_GAIN = 0.02  # least gain in log-likelihood per user
BIRTH_SWEEPS = 6  # of visits among proposed groups alone
UNKNOWN_COVARIANCE = 8.0  # answers widen T by 1 + 8 d^2 / observations, up to a trace of 1
NO_AGENT = -1
_SEED = np.uint64(0)


@dataclass(frozen=True, kw_only=True)
class Population(Part):
    """Groups users by a hierarchical model of all of them, and answers with posteriors."""

    visits: int = constant(4, meaning="other users visited per upload", range=whole_numbers(0))
    slots: int = constant(32, meaning="most groups that are kept", range=whole_numbers(1))

    def begin(self, holdings: Holdings, truth: Labels | None) -> "PopulationPartition":  # noqa: ARG002
        """Return the partition before the first upload: no groups."""
        return PopulationPartition(self, holdings)


class PopulationPartition(Partition):
    """Groups, responsibilities of each user, and the population's mean and covariance."""

    state_names: ClassVar[tuple[str, ...]] = (
        "labels", "regrouped", "pools", "rows", "shares", "rates", "spoken", "turns", "groups_state",
        "mean", "covariance", "uncertainty", "variance", "visited", "uploads", "next_fit", "fits",
        "bits", "counts", "observed", "asker", "last_answer",
    )  # fmt: skip

    def __init__(self, rule: Population, holdings: Holdings) -> None:
        agents, d = len(holdings), holdings.dimension
        super().__init__(holdings, rule.slots + np.arange(agents))
        self.pools = {}
        self.rule = rule
        self.rows = np.zeros((agents, rule.slots))
        self.shares = np.ones(agents)  # of a user's data that counts: less than 1 beyond the guard's limit
        self.rates = np.zeros(agents)  # smoothed click rate of each speaker
        self.spoken = np.zeros(0, np.int64)
        self.turns = np.full(agents, NO_AGENT)  # each agent's place in ``spoken``
        self.group = make_groups(rule.slots, d)
        self.mean, self.covariance, self.variance = np.zeros(d), np.eye(d) / d, 0.25
        self.uncertainty = np.eye(d) / d  # covariance of m
        self.visited = self.uploads = self.next_fit = self.fits = 0
        self.counts, self.observed = np.zeros(agents, np.int64), 0  # observations of each speaker, and of all
        self.bits = np.zeros(64, np.int64)  # how many speakers have counts of how many bits
        self.base = make_gaussian(self.mean, self.covariance, self.variance)
        self.work = make_workspace(d)
        self.asker, self.last_answer = NO_AGENT, Statistics.zero(d)  # kept for an agent that repeats its upload

    @property
    def groups_state(self) -> list[Matrix]:
        """The arrays of all groups."""
        return list(self.group)

    @groups_state.setter
    def groups_state(self, arrays: list[Matrix]) -> None:
        self.group = Groups(*arrays)

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.base = make_gaussian(self.mean, self.covariance, self.variance)

    def __len__(self) -> int:
        return int(np.unique(self.labels).size)

    def pooled(self, agent: int) -> Statistics:
        """Return the sum over the agents with the same label."""
        return self.holdings.total(np.flatnonzero(self.labels == self.labels[agent]))

    def add(self, agent: int, statistics: Statistics) -> None:
        """Add an upload, which the holdings have already; visit users, and prepare the answer."""
        if self.holdings.count[agent] == 0:
            return
        self._count_speaker(agent)
        users, row, speakers = self._view_users(), self.rows[agent], self.spoken.size
        add_upload(self.group, statistics.gram, statistics.moment, self.shares[agent], row, self.base, self.work)
        others = min(self.rule.visits, speakers - 1)
        turns = (self.visited + np.arange(others)) % speakers
        self.visited, self.uploads = self.visited + others, self.uploads + 1
        visited = np.append(self.spoken[turns], agent)
        candidates = self._choose_candidates()
        mean, covariance = visit_users(self.group, users, visited, candidates, self._make_rule(), self.base, self.work)
        self.asker, self.last_answer = agent, self._state_answer(agent, mean, covariance)
        self._merge_group(int(row.argmax()))
        if self.uploads >= self.next_fit and speakers > 1:
            self._fit_population()
            self._propose_groups()

    def _view_users(self) -> Users:
        held = self.holdings
        return Users(held.gram, held.moment, held.count, self.rows, self.shares, self.labels)

    def _make_rule(self) -> VisitRule:
        least = self.guard.min_others
        return VisitRule(self.spoken.size, self.limit, least, HURDLE, self.outside)

    @property
    def outside(self) -> Matrix:
        """Covariance of a user in no group: T, wider while its d^2 / 2 parameters are not well known, and that of m.

        T is not widened beyond a trace of 1, which the prior of an agent without a server has.
        """
        unknown = UNKNOWN_COVARIANCE * self.mean.size**2 / max(1, self.observed)
        widest = max(1.0, 1.0 / float(np.trace(self.covariance)))
        return min(1.0 + unknown, widest) * self.covariance + self.uncertainty

    def _choose_candidates(self) -> Labels:
        """Draw speakers that the asker is compared with: consecutive ones from a random place."""
        speakers = self.spoken.size
        start = int(streams.uniforms(_SEED, streams.VISIT, self.uploads, 1)[0] * speakers)
        return self.spoken[(start + np.arange(min(speakers, CANDIDATES))) % speakers]

    def _count_speaker(self, agent: int) -> None:
        held = self.holdings
        if self.turns[agent] == NO_AGENT:
            self.turns[agent], self.spoken = self.spoken.size, append_zeros(self.spoken)
            self.spoken[-1] = agent
        else:
            self.bits[int(self.counts[agent]).bit_length()] -= 1
        self.observed += int(held.count[agent] - self.counts[agent])
        self.counts[agent] = held.count[agent]
        self.bits[int(self.counts[agent]).bit_length()] += 1
        self.rates[agent] = (held.clicks[agent] + 1.0) / (held.count[agent] + 2.0)

    @property
    def limit(self) -> float:
        """The most observations of one agent that count: some times the median, rounded up to a power of 2."""
        median = int(np.argmax(2 * np.cumsum(self.bits) >= self.spoken.size))
        return float(self.guard.max_weight * 2.0**median)

    def _merge_group(self, slot: int) -> None:
        """Merge the group with the one that it shares theta with, if there is one."""
        if self.group.members[slot] == 0:
            return
        _, other = measure_merge(self.group, slot, self.base, self.work)
        if other < 0:
            return
        both = (self.rows[:, slot] > 0) & (self.rows[:, other] > 0)
        self.rows[:, slot] += self.rows[:, other]
        self.rows[:, other] = 0.0
        for array in self.group:
            array[slot] += array[other]
            array[other] = 0.0
        self.group.members[slot] -= np.count_nonzero(both)
        self.labels[self.rows[:, slot] >= 0.5] = slot
        measure_groups(self.group, self.base, self.work)

    def _fit_population(self) -> None:
        """Fit mean and covariance of the population, and the variance of a click."""
        self.next_fit = int(max(FIT_GROWTH * self.uploads, self.uploads + FIT_UPLOADS))
        self.fits += 1
        rate = float(self.rates[self.spoken].mean())
        self.variance = max(LEAST_NOISE, rate * (1.0 - rate))
        base = make_gaussian(self.mean, self.covariance, self.variance)
        chosen = self._sample(self.spoken)
        self.base, self.uncertainty = fit_population(self._view_users(), chosen, base, self.work)
        self.mean, self.covariance = self.base.mean, self.base.covariance
        measure_groups(self.group, self.base, self.work)

    def _sample(self, agents: Labels) -> Labels:
        """Return the agents, or some of them if they are many."""
        if agents.size <= FIT_USERS:
            return agents
        return agents[streams.sample_few_indices(_SEED, streams.SPEAKER, self.fits, agents.size, FIT_USERS)]

    def _propose_groups(self) -> None:
        """Propose groups from clusters of users in no group or in a large one, and keep them if they predict better."""
        small = self.group.size <= LARGE_GROUP * self.spoken.size
        unassigned = self._sample(self.spoken[self.rows[self.spoken][:, small].sum(axis=1) < 0.5])
        free = np.flatnonzero(self.group.members == 0)
        count = min(free.size, MOST_BIRTHS, unassigned.size // USERS_PER_BIRTH)
        if count < 2:
            return
        held = self.holdings
        thetas = estimate_users(held.gram, held.moment, unassigned, self.base, self.work)
        labels = cluster_estimates(thetas, count, streams.uniforms(_SEED, streams.BIRTH, self.fits, count))
        chosen = Users(
            held.gram[unassigned], held.moment[unassigned], held.count[unassigned],
            np.zeros((unassigned.size, count)), self.shares[unassigned], labels.copy(),
        )  # fmt: skip
        present = predict_users(self.group, self._view_users(), unassigned, self.spoken.size, self.base, self.work)
        gain, deviation = try_groups(chosen, labels, present, BIRTH_SWEEPS, self.base, self.work)
        if gain > max(BIRTH_DEVIATIONS * deviation, BIRTH_GAIN * unassigned.size):
            move_users(self.group, self._view_users(), unassigned, free[:count], chosen.rows, self.base, self.work)

    def _state_answer(self, agent: int, mean: Vector, covariance: Matrix) -> Statistics:
        """State a Gaussian as statistics, and add the agent's own data."""
        own, others = self.holdings[agent], self.spoken.size - int(self.turns[agent] != NO_AGENT)
        if others < max(1, self.guard.min_others):
            return own
        noise = estimate_noise(own.count, own.clicks)
        gram, moment = state_as_statistics(mean, covariance, noise, self.holdings.lambda_)
        return Statistics(own.gram + gram, own.moment + moment, own.count, own.clicks, own.rounds)

    def answer(self, agent: int) -> Statistics:
        """Return the answer that the last ``add`` prepared, or what the state says now; nothing changes."""
        if agent == self.asker:
            return self.last_answer
        posterior = answer_user(self.group, self._view_users(), agent, self._make_rule(), self.base, self.work)
        return self._state_answer(agent, *posterior)

    def prior_for_newcomer(self) -> Statistics | None:
        """Return what is known of a user without data: the population's mean and covariance."""
        if self.spoken.size < max(2, self.guard.min_others + 1):
            return None
        gram, moment = state_as_statistics(self.mean, self.outside, estimate_noise(0, 0), self.holdings.lambda_)
        return Statistics(gram, moment, 0, 0, 0)

    def join(self) -> None:
        for name in ("labels", "regrouped", "rows", "shares", "rates", "turns", "counts"):
            setattr(self, name, append_zeros(getattr(self, name)))
        self.shares[-1], self.turns[-1] = 1.0, NO_AGENT
        self.labels[-1] = self.rule.slots + self.labels.size - 1

    def restart(self, agent: int) -> None:
        """Forget an agent's data, which the holdings have no more."""
        slots = np.flatnonzero(self.rows[agent] > 0)
        self._silence(agent)
        label_user(self._view_users(), agent)
        self._rebuild_groups(slots)

    def forget(self, agent: int) -> None:
        """Remove an agent, which the holdings have no more; the last one takes its place."""
        slots, last = np.flatnonzero(self.rows[agent] > 0), self.labels.size - 1
        self._silence(agent)
        if self.turns[last] != NO_AGENT:
            self.spoken[self.turns[last]] = agent
        for name in ("labels", "regrouped", "rows", "shares", "rates", "turns", "counts"):
            setattr(self, name, drop_row(getattr(self, name), agent))
        if agent < last:
            label_user(self._view_users(), agent)
        self._rebuild_groups(slots)

    def _silence(self, agent: int) -> None:
        """Take an agent off the speakers, and the answer that may hold its data."""
        turn = int(self.turns[agent])
        if turn != NO_AGENT:
            last = int(self.spoken[-1])
            self.spoken[turn], self.turns[last] = last, turn
            self.spoken = self.spoken[:-1].copy()
            self.bits[int(self.counts[agent]).bit_length()] -= 1
            self.observed -= int(self.counts[agent])
            self.counts[agent] = 0
        self.turns[agent], self.rates[agent], self.shares[agent] = NO_AGENT, 0.0, 1.0
        self.rows[agent] = 0.0
        self.asker, self.last_answer = NO_AGENT, Statistics.zero(self.holdings.dimension)

    def _rebuild_groups(self, slots: Labels) -> None:
        """Sum groups over their members, so that nothing of a former member is left."""
        for slot in slots.tolist():
            members = np.flatnonzero(self.rows[:, slot])
            weights = self.shares[members] * self.rows[members, slot]
            self.group.gram[slot] = np.tensordot(weights, self.holdings.gram[members], 1)
            self.group.moment[slot] = weights @ self.holdings.moment[members]
            self.group.size[slot], self.group.members[slot] = self.rows[members, slot].sum(), members.size
            if members.size == 0:
                self.group.evidence[slot] = self.group.misfit[slot] = self.group.weight[slot] = 0.0
        measure_groups(self.group, self.base, self.work)
