"""Grouping by a population: an answer is the posterior of the asker's theta, in the form of statistics.

The model is theta ~ sum_k pi_k N(mu_k, spread_k T) + pi_0 N(m, T) (docs/explanation-our-policy.md). An answer matches
it, without the asker's own data, by one Gaussian N(c, C), written as gram v C^-1 - lambda I and moment v C^-1 c. The
asker's own data are added to that.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcascade.checks import require, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.grouping.population import gaussian, groups, proposals
from fedcascade.federation.grouping.population.groups import Groups, Users, VisitRule
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row, require_places
from fedcascade.learning.ridge import compute_log_det
from fedcascade.learning.statistics import MIN_NOISE, Statistics, estimate_noise
from fedcascade.numerics import streams
from fedcascade.numerics.linear import Matrix, Vector

MAX_FIT_USERS = 1_024  # sample size for fits and proposals
FIT_GROWTH = 1.2  # refit after 1.2x as many uploads
FIT_UPLOADS = 10  # and after at least 10 more uploads
MAX_CANDIDATES = 40  # users that an asker without a group is compared with
USERS_PER_PROPOSAL = 40  # users for each proposed group
MAX_PROPOSALS = 16  # groups proposed at a time
LARGE_GROUP = 0.25  # share of the active agents from which on a group's members may form new groups
MIN_GAIN_DEVIATIONS = 4.0  # keep proposed groups if their gain exceeds 4 standard deviations
MIN_GAIN_PER_USER = 0.1  # and this log-likelihood per user
NARROWINGS = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 64)  # of T, in populations that proposed groups have to beat
PROPOSAL_SWEEPS = 6  # visits of each user that refine proposed groups
COVARIANCE_WIDENING = 8.0  # answers widen T by 1 + 8 d^2 / observations, up to a trace of 1
NO_AGENT = -1
MIN_VARIANCE, MAX_SCALE = 1e-12, 1e3  # of a restored population: thetas have lengths of about 1
PER_AGENT = ("labels", "regrouped", "responsibilities", "shares", "click_rates", "active_index", "counts")
_SEED = np.uint64(0)


@dataclass(frozen=True, kw_only=True)
class Population(Part):
    """Grouping by a hierarchical model of all users, with posteriors as answers."""

    visits: int = constant(4, meaning="other users visited per upload", range=whole_numbers(0))
    slots: int = constant(32, meaning="maximum number of groups", range=whole_numbers(1))

    def begin(self, holdings: Holdings, truth: Labels | None) -> "PopulationPartition":  # noqa: ARG002
        return PopulationPartition(self, holdings)


class PopulationPartition(Partition):
    """Groups, responsibilities of each user, and the population's mean and covariance."""

    state_names = (
        *PER_AGENT, "group", "mean", "covariance", "uncertainty", "variance", "visited", "uploads", "next_fit", "fits",
        "observed", "count_bits", "pools", "active", "last_asker", "last_answer",
    )  # fmt: skip
    free_names = ("pools", "active")

    def __init__(self, rule: Population, holdings: Holdings) -> None:
        agents, d = len(holdings), holdings.dimension
        super().__init__(holdings, rule.slots + np.arange(agents))
        self.pools = {}
        self.rule = rule
        self.responsibilities = np.zeros((agents, rule.slots))
        self.shares = np.ones(agents)  # fraction of an agent's data that counts: below 1 beyond the guard's limit
        self.click_rates = np.zeros(agents)  # smoothed
        self.active = np.zeros(0, np.int64)  # agents that have uploaded
        self.active_index = np.full(agents, NO_AGENT)  # index of each agent in ``active``
        self.group = groups.make_groups(rule.slots, d)
        self.mean = np.zeros(d)
        self.covariance = np.eye(d) / d
        self.variance = 0.25
        self.uncertainty = np.eye(d) / d  # covariance of m
        self.visited = self.uploads = self.next_fit = self.fits = 0
        self.counts = np.zeros(agents, np.int64)  # observations of each active agent
        self.observed = 0  # sum of ``counts``
        self.count_bits = np.zeros(64, np.int64)  # histogram of the bit lengths of ``counts``
        self.base = gaussian.make_gaussian(self.mean, self.covariance, self.variance)
        self._clear_last_answer()

    def _clear_last_answer(self) -> None:
        self.last_asker = NO_AGENT
        self.last_answer = Statistics.zero(self.holdings.dimension)

    def to_state(self) -> dict[str, Any]:
        return super().to_state() | {"group": list(self.group)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.group = Groups(*self.group)
        self.base = gaussian.make_gaussian(self.mean, self.covariance, self.variance)

    def check_state(self) -> None:
        """Raise ValueError unless memberships, sums and the population could be those of a server."""
        agents, rows, index = self.labels.size, self.responsibilities, self.active_index
        is_list = self.active.ndim == 1 and self.active.dtype == np.int64 and not self.pools
        require(is_list, "groups.active must be a list of agents, and groups.pools empty")
        require_places("groups.labels", self.labels, self.rule.slots + agents)
        require_places("groups.active", self.active, agents)
        require_places("groups.active_index", index, self.active.size, NO_AGENT)
        require_places("groups.last_asker", np.array([self.last_asker]), agents, NO_AGENT)
        places = np.full(agents, NO_AGENT)
        places[self.active] = np.arange(self.active.size)
        require(np.array_equal(places, index), "groups.active and groups.active_index must agree")
        is_share = rows.min(initial=0.0) >= 0.0 and rows.sum(axis=1).max(initial=0.0) <= 1.001
        require(bool(is_share and not rows[index == NO_AGENT].any()), "groups.responsibilities must be probabilities")
        for name, values, least in (("shares", self.shares, 1e-12), ("click_rates", self.click_rates, 0.0)):
            require(bool((values >= least).all() and (values <= 1.0).all()), f"groups.{name} must be in {least:g}..1")
        bits = [min(63, int(count).bit_length()) for count in self.counts[self.active]]
        sizes = np.bincount(np.array(bits, np.int64), minlength=64)
        are_sums = self.observed == self.counts.sum() and np.array_equal(sizes, self.count_bits)
        require(bool(are_sums and self.counts.min(initial=0) >= 0), "groups.counts must agree with their sums")
        require(min(self.visited, self.uploads, self.next_fit, self.fits) >= 0, "groups must not count below 0")
        self._check_model()

    def _check_model(self) -> None:
        """Raise ValueError unless mean, covariance and groups have densities."""
        require(MIN_NOISE <= self.variance <= 0.25, f"groups.variance must be in {MIN_NOISE}..0.25")
        group = groups.copy_groups(self.group)
        groups.measure_groups(group, self.base)
        for matrix in (self.covariance, self.uncertainty, self.outside, self.last_answer.gram):
            shift = self.holdings.lambda_ if matrix is self.last_answer.gram else MIN_VARIANCE
            require(math.isfinite(compute_log_det(matrix, shift)), "groups must have covariances of full rank")
        largest = max(float(np.abs(self.mean).max()), float(np.abs(self.outside).max()))
        is_density = math.isfinite(self.base.log_det) and largest <= MAX_SCALE
        require(is_density, f"groups.covariance must be positive definite, and numbers at most {MAX_SCALE:g}")
        are_counted = np.array_equal(np.count_nonzero(self.responsibilities, axis=0), group.members)
        are_positive = group.size.min() >= -1e-6 and group.weight.min() >= 0.0
        is_sound = are_counted and are_positive and np.isfinite(group.evidence).all()
        require(bool(is_sound), "groups.group must count its members, with sizes and weights >= 0")

    def __len__(self) -> int:
        return int(np.unique(self.labels).size)

    def pooled(self, agent: int) -> Statistics:
        """Return the sum over the group of ``agent``."""
        return self.holdings.total(np.flatnonzero(self.labels == self.labels[agent]))

    def add(self, agent: int, statistics: Statistics) -> None:
        """Add an upload that the holdings already contain, visit users, and prepare the answer."""
        if self.holdings.count[agent] == 0:
            return
        self._record_activity(agent)
        users, row, active = self._view_users(), self.responsibilities[agent], self.active.size
        groups.add_upload(self.group, statistics.gram, statistics.moment, self.shares[agent], row, self.base)
        others = min(self.rule.visits, active - 1)
        visited = np.append(self.active[(self.visited + np.arange(others)) % active], agent)
        self.visited += others
        self.uploads += 1
        candidates = self._choose_candidates()
        mean, covariance = groups.visit_users(self.group, users, visited, candidates, self._make_rule(), self.base)
        self.last_asker, self.last_answer = agent, self._build_answer(agent, mean, covariance)
        self._merge_group(int(row.argmax()))
        if self.uploads >= self.next_fit and active > 1:
            self._fit_population()
            self._propose_groups()

    def _view_users(self) -> Users:
        held = self.holdings
        return Users(held.gram, held.moment, held.count, self.responsibilities, self.shares, self.labels)

    def _make_rule(self) -> VisitRule:
        return VisitRule(self.active.size, self.limit, self.guard.min_others, self.outside)

    @property
    def outside(self) -> Matrix:
        """Covariance of a user in no group: T, widened while there are few observations, plus that of m.

        The trace of the widened T is at most 1, that of the prior of an agent without a server.
        """
        widening = COVARIANCE_WIDENING * self.mean.size**2 / max(1, self.observed)
        widest = max(1.0, 1.0 / float(np.trace(self.covariance)))
        return min(1.0 + widening, widest) * self.covariance + self.uncertainty

    def _choose_candidates(self) -> Labels:
        """Draw consecutive active agents from a random start, to compare the asker with."""
        active = self.active.size
        start = int(streams.uniforms(_SEED, streams.VISIT, self.uploads, 1)[0] * active)
        return self.active[(start + np.arange(min(active, MAX_CANDIDATES))) % active]

    def _record_activity(self, agent: int) -> None:
        held = self.holdings
        if self.active_index[agent] == NO_AGENT:
            self.active_index[agent] = self.active.size
            self.active = append_zeros(self.active)
            self.active[-1] = agent
        else:
            self.count_bits[int(self.counts[agent]).bit_length()] -= 1
        self.observed += int(held.count[agent] - self.counts[agent])
        self.counts[agent] = held.count[agent]
        self.count_bits[int(self.counts[agent]).bit_length()] += 1
        reward = held.clicks[agent] - held.shortfall[agent]
        self.click_rates[agent] = (reward + 1.0) / (held.count[agent] + 2.0)

    @property
    def limit(self) -> float:
        """Most observations of one agent that count: a multiple of the median, rounded up to a power of 2."""
        median = int(np.argmax(2 * np.cumsum(self.count_bits) >= self.active.size))
        return self.guard.compute_limit(median, self.active.size)

    def _merge_group(self, slot: int) -> None:
        """Merge a group with the one whose merge gains most evidence, if any does."""
        if self.group.members[slot] == 0:
            return
        _, other = groups.measure_merge(self.group, slot, self.base)
        if other < 0:
            return
        both = (self.responsibilities[:, slot] > 0) & (self.responsibilities[:, other] > 0)
        self.responsibilities[:, slot] += self.responsibilities[:, other]
        self.responsibilities[:, other] = 0.0
        for array in self.group:
            array[slot] += array[other]
            array[other] = 0.0
        self.group.members[slot] -= np.count_nonzero(both)
        self.labels[self.responsibilities[:, slot] >= 0.5] = slot
        groups.measure_groups(self.group, self.base)

    def _fit_population(self) -> None:
        d = self.mean.size
        # After a deletion, nothing of the deleted agent may enter the fit.
        start = (self.mean, self.covariance) if self.next_fit else (np.zeros(d), np.eye(d) / d)
        self.next_fit = int(max(FIT_GROWTH * self.uploads, self.uploads + FIT_UPLOADS))
        self.fits += 1
        rate = float(self.click_rates[self.active].mean())
        self.variance = max(MIN_NOISE, rate * (1.0 - rate))
        base = gaussian.make_gaussian(*start, self.variance)
        chosen = self._sample(self.active)
        held = self.holdings
        self.base, self.uncertainty = gaussian.fit_population(held.gram, held.moment, self.shares, chosen, base)
        self.mean, self.covariance = self.base.mean, self.base.covariance
        groups.measure_groups(self.group, self.base)

    def _sample(self, agents: Labels) -> Labels:
        """Return the agents, or a random sample of ``MAX_FIT_USERS`` if there are more."""
        if agents.size <= MAX_FIT_USERS:
            return agents
        return agents[streams.sample_indices(_SEED, streams.ACTIVE_SAMPLE, self.fits, agents.size, MAX_FIT_USERS)]

    def _propose_groups(self) -> None:
        """Propose groups of users without a small group, and keep them if they predict held-out data better."""
        small = self.group.size <= LARGE_GROUP * self.active.size
        unassigned = self._sample(self.active[self.responsibilities[self.active][:, small].sum(axis=1) < 0.5])
        free = np.flatnonzero(self.group.members == 0)
        count = min(free.size, MAX_PROPOSALS, unassigned.size // USERS_PER_PROPOSAL)
        if count < 2:
            return
        held = self.holdings
        thetas = proposals.estimate_users(held.gram, held.moment, unassigned, self.base)
        labels = proposals.cluster_estimates(thetas, count, streams.uniforms(_SEED, streams.PROPOSAL, self.fits, count))
        rows = np.zeros((unassigned.size, count))
        sums = held.gram[unassigned], held.moment[unassigned], held.count[unassigned]
        chosen = Users(*sums, rows, self.shares[unassigned], labels.copy())
        present = self._predict_without_groups(unassigned)
        gain, deviation = proposals.try_groups(chosen, labels, present, PROPOSAL_SWEEPS, self.base)
        if gain > max(MIN_GAIN_DEVIATIONS * deviation, MIN_GAIN_PER_USER * unassigned.size):
            proposals.move_users(self.group, self._view_users(), unassigned, free[:count], rows, self.base)

    def _predict_without_groups(self, chosen: Labels) -> Vector:
        """Return the log-likelihood of each user under the present model or a narrower population, the best of them.

        T starts wide and narrows slowly where clicks are rare. Groups are narrow from the start, which must not count
        in their favour.
        """
        users, active = self._view_users(), self.active.size
        scores = [proposals.predict_users(self.group, users, chosen, active, self.base)]
        for factor in NARROWINGS:
            narrow = gaussian.make_gaussian(self.mean, factor * self.covariance, self.variance)
            data = users.gram[0], users.moment[0]  # none of it: their share is 0
            scores.append(gaussian.measure_joints(data, 0.0, users.gram, users.moment, chosen, narrow))
        return max(scores, key=np.sum)

    def _build_answer(self, agent: int, mean: Vector, covariance: Matrix) -> Statistics:
        """Convert a Gaussian to statistics, and add the agent's own data."""
        own = self.holdings[agent]
        others = self.active.size - int(self.active_index[agent] != NO_AGENT)
        if others < max(1, self.guard.min_others):
            return own
        noise = estimate_noise(own.count, own.reward)
        gram, moment = gaussian.to_statistics(mean, covariance, noise, self.holdings.lambda_)
        counts = own.count, own.clicks, own.rounds, own.shortfall
        return Statistics(own.gram + gram, own.moment + moment, *counts)

    def answer(self, agent: int) -> Statistics:
        """Return the answer that the last ``add`` prepared for the agent, or compute one without changing the state."""
        if agent == self.last_asker:
            return self.last_answer
        posterior = groups.answer_user(self.group, self._view_users(), agent, self._make_rule(), self.base)
        return self._build_answer(agent, *posterior)

    def prior_for_newcomer(self) -> Statistics | None:
        """Return the population's mean and covariance as statistics."""
        if self.active.size < max(2, self.guard.min_others + 1):
            return None
        gram, moment = gaussian.to_statistics(self.mean, self.outside, estimate_noise(0, 0.0), self.holdings.lambda_)
        return Statistics(gram, moment, 0, 0, 0)

    def join(self) -> None:
        for name in PER_AGENT:
            setattr(self, name, append_zeros(getattr(self, name)))
        self.shares[-1] = 1.0
        self.active_index[-1] = NO_AGENT
        self.labels[-1] = self.rule.slots + self.labels.size - 1

    def restart(self, agent: int) -> None:
        """Drop the data of an agent that the holdings have just cleared."""
        slots = np.flatnonzero(self.responsibilities[agent] > 0)
        self._deactivate(agent)
        groups.label_user(self._view_users(), agent)
        self._rebuild_groups(slots)

    def forget(self, agent: int) -> None:
        """Remove an agent that the holdings have just removed; the last agent takes its place."""
        slots, last = np.flatnonzero(self.responsibilities[agent] > 0), self.labels.size - 1
        self._deactivate(agent)
        if self.active_index[last] != NO_AGENT:
            self.active[self.active_index[last]] = agent
        for name in PER_AGENT:
            setattr(self, name, drop_row(getattr(self, name), agent))
        if agent < last:
            groups.label_user(self._view_users(), agent)
        self._rebuild_groups(slots)
        self.next_fit = 0  # the next upload refits mean and covariance

    def _deactivate(self, agent: int) -> None:
        """Remove an agent from the active ones, and clear the answer that may hold its data."""
        index = int(self.active_index[agent])
        if index != NO_AGENT:
            last = int(self.active[-1])
            self.active[index], self.active_index[last] = last, index
            self.active = self.active[:-1].copy()
            self.count_bits[int(self.counts[agent]).bit_length()] -= 1
            self.observed -= int(self.counts[agent])
            self.counts[agent] = 0
        self.active_index[agent] = NO_AGENT
        self.click_rates[agent] = 0.0
        self.shares[agent] = 1.0
        self.responsibilities[agent] = 0.0
        self._clear_last_answer()

    def _rebuild_groups(self, slots: Labels) -> None:
        """Recompute the sums of groups from their members, so that nothing of a removed agent is left."""
        for slot in slots.tolist():
            members = np.flatnonzero(self.responsibilities[:, slot])
            weights = self.shares[members] * self.responsibilities[members, slot]
            self.group.gram[slot] = np.tensordot(weights, self.holdings.gram[members], 1)
            self.group.moment[slot] = weights @ self.holdings.moment[members]
            self.group.size[slot] = self.responsibilities[members, slot].sum()
            self.group.members[slot] = members.size
            if members.size == 0:
                self.group.evidence[slot] = self.group.misfit[slot] = self.group.weight[slot] = 0.0
        groups.measure_groups(self.group, self.base)
