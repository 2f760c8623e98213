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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import POSITIVE, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.gibbs import Crowd, Model, compute_evidence, measure_row
from fedcascade.federation.grouping.guard import NO_GUARD
from fedcascade.federation.grouping.listing import LISTED, Listing
from fedcascade.federation.grouping.members import NO_LABEL, Circles
from fedcascade.federation.grouping.newcomers import match_groups
from fedcascade.federation.grouping.partition import Labels, Partition, relabel_by_appearance
from fedcascade.federation.grouping.rows import Row, gather_rows, pack_row, sum_rows, unpack_row
from fedcascade.federation.grouping.sampling import Sampling
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import streams

NO_AGENT = -1
FEW = 64  # speakers; up to so many, each looks at all groups, and groups come in the order of their first speakers
NOT_YET = -1  # the turn of an agent that has not spoken
NOWHERE = -1  # the place of a group that is not listed
CHUNK = 1024  # rows that are gathered at once
CONSIDERED = 16  # groups that one of more speakers looks at, beside its own
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
    """The state of a grouping by evidence: the last partition that was sampled, and the answer that came of it.

    What an upload costs does not depend on how many agents there are: groups are in a ``Listing`` of bounded length,
    with the exact sums of their members' rows, and ``pools`` stays empty. What follows from the state that outlives a
    process and from the holdings is made when it is first needed.
    """

    state_names: ClassVar[tuple[str, ...]] = (
        "labels", "regrouped", "own_evidence", "spoken", "samplings", "asker", "last_answer",
        "listed_labels", "listed_ages", "median_bits",
    )  # fmt: skip

    def __init__(self, holdings: Holdings, rule: Evidence) -> None:
        super().__init__(holdings, np.empty(0, np.int64))
        agents = len(holdings)
        self.labels, self.regrouped = np.arange(agents), np.zeros(agents, np.bool_)
        self.rule = rule
        self.own_evidence = np.zeros(agents)  # E of every agent's own statistics
        self.spoken = np.empty(0, np.int64)  # in the order of their first uploads, however agents are numbered
        self.samplings = 0
        self.asker = NO_AGENT
        self.last_answer = Statistics.zero(holdings.dimension)
        self.listed_labels = np.full(LISTED + rule.visits + 2, NO_LABEL)
        self.listed_ages = np.zeros(self.listed_labels.size, np.int64)
        self.median_bits = 0  # of how many observations agents that have spoken have; where there is a guard
        self.rebuild()

    def rebuild(self) -> None:
        """Make what follows from the state and from the holdings anew, when it is next needed."""
        self._derived: Derived | None = None

    @property
    def derived(self) -> "Derived":
        """What follows from the state and from the holdings."""
        if self._derived is None:
            self._derived = Derived(self)
        return self._derived

    @property
    def limit(self) -> float:
        """As how many observations an agent's data count at most."""
        return math.inf if self.guard is NO_GUARD else self.guard.max_weight * 2.0**self.median_bits

    @property
    def model(self) -> Model:
        """The constants as the sampler reads them."""
        return self.rule.make_model(self.holdings.dimension)

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.rebuild()

    def __len__(self) -> int:
        listing = self.derived.listing
        return len(listing.place_of) + self.labels.size - listing.agents

    def pooled(self, agent: int) -> Statistics:
        """The sum over the group of ``agent``; with a guard, of each member no more than its bounded weight."""
        place = self._find_place(agent)
        return self.holdings[agent] if place is None else self._unpack(self.derived.listing.sums[place])

    def count_members(self, agent: int) -> int:
        place = self._find_place(agent)
        return 1 if place is None else int(self.derived.listing.people[place])

    def answer(self, agent: int) -> Statistics:
        """The average over the samples for the agent that has just spoken; for others, the sum of their group."""
        if agent == self.asker:
            return self.last_answer
        own, place, listing = self.holdings[agent], self._find_place(agent), self.derived.listing
        if place is None or listing.people[place] <= self.guard.min_others:
            return own
        return own + self._unpack(listing.sums[place] - pack_row(own, self.limit))

    def tell_newcomer(self) -> Statistics | None:
        """The mixture of groups by size, those that are large enough to hide each of their members."""
        listing = self.derived.listing
        places = np.flatnonzero((listing.sizes >= 2) & (listing.people >= self.guard.min_others))
        if not places.size:
            return None
        told, sizes = [self._unpack(row) for row in listing.sums[places]], listing.sizes[places]
        return match_groups(
            np.stack([group.gram for group in told]), np.stack([group.moment for group in told]), sizes,
            self.spoken.size - int(sizes.sum()), variance=self.model.variance, lambda_=float(self.holdings.lambda_),
        )  # fmt: skip

    def _find_place(self, agent: int) -> int | None:
        return self.derived.listing.place_of.get(int(self.labels[agent]))

    def _unpack(self, row: Row) -> Statistics:
        return unpack_row(row, self.holdings.dimension)

    def add(self, agent: int, statistics: Statistics) -> None:
        """Sample partitions anew after an upload, which the holdings have already, and remember the answer to it."""
        own = self.holdings[agent]
        if own.count == 0:
            return
        self.own_evidence[agent] = self.rule.measure(own)
        self._take_in(agent, own, statistics)
        self.samplings += 1
        expected = self._sample(self._choose_visited(agent))
        self.asker, self.last_answer = agent, own + self._unpack(expected)

    def _take_in(self, agent: int, own: Statistics, upload: Statistics) -> None:
        """Let the sum of the agent's group hold the upload, and all sums follow the limit."""
        before = own if self._derived is None else own - upload  # what sums hold of the agent
        derived, limit = self.derived, self.limit
        listing, place = derived.listing, self._find_place(agent)
        if place is not None:
            listing.sums[place] -= pack_row(before, limit)
        if derived.turn[agent] == NOT_YET:
            derived.turn[agent] = self.spoken.size
            self.spoken = append_zeros(self.spoken)
            self.spoken[-1] = agent
        else:
            derived.count_bits(before.count, -1)
        derived.count_bits(own.count, 1)
        if self.guard is not NO_GUARD:
            self.median_bits = derived.find_median_bits(self.median_bits)
        if self.limit != limit:
            self._reweigh_heavies(agent, limit)
        if place is not None:
            listing.sums[place] += pack_row(own, self.limit)
            listing.fit(place, self.model)

    def _reweigh_heavies(self, asker: int, former_limit: float) -> None:
        """Let agents of much data count by the new limit; nobody else's row depends on it."""
        listing, counts = self.derived.listing, self.holdings.count[self.spoken]
        heavies = self.spoken[counts > min(former_limit, self.limit)]
        place_of = np.full(int(self.labels.max()) + 1, NOWHERE)
        place_of[listing.labels[listing.find_places()]] = listing.find_places()
        heavies = heavies[(place_of[self.labels[heavies]] != NOWHERE) & (heavies != asker)]
        for some in np.split(heavies, range(CHUNK, heavies.size, CHUNK)):
            rows = gather_rows(self.holdings, some, self.limit) - gather_rows(self.holdings, some, former_limit)
            np.add.at(listing.sums, place_of[self.labels[some]], rows)
        for place in listing.find_places():
            listing.fit(int(place), self.model)

    def _choose_visited(self, asker: int) -> Labels:
        """Whom the sampler visits: the asker first, then others that have spoken."""
        others, own, visits = self.spoken.size - 1, self.derived.turn[asker], self.rule.visits
        if others > visits:
            turns = streams.sample_few_indices(_SEED, streams.VISIT, self.samplings, others, visits)
        else:
            turns = np.arange(others)
        return np.append(asker, self.spoken[turns + (turns >= own)])

    def _sample(self, visited: Labels) -> Row:
        """Run the sampler; returns the expected sum of the others in the asker's group."""
        derived, limit, speakers = self.derived, self.limit, self.spoken.size
        rows, alone = gather_rows(self.holdings, visited, limit), self.own_evidence[visited]
        for i in np.flatnonzero(self.holdings.count[visited] > limit):
            alone[i] = measure_row(rows[i], self.model)
        people = np.ones_like(visited)
        sampling = Sampling(derived.circles, derived.listing, self._order_places(), visited, people, rows, alone)
        crowd = Crowd(speakers, speakers - derived.listing.agents - sampling.singles)
        considered = LISTED + visited.size if speakers <= FEW else CONSIDERED
        draws = streams.uniforms(_SEED, streams.PARTITION, self.samplings, visited.size * self.rule.sweeps)
        expected = sampling.run(draws, self.model, crowd, considered, self.guard.min_others)
        sampling.write_back(self.samplings, self.model)
        while (place := derived.listing.find_superfluous()) is not None:
            self._dissolve(place)
        return expected

    def _order_places(self) -> NDArray[np.intp]:
        """The places of all groups: in the order of first speakers while these are few, else as they are listed."""
        listing = self.derived.listing
        if self.spoken.size > FEW:
            return listing.find_places()
        labels = relabel_by_appearance(self.labels[self.spoken])[0].tolist()
        return np.array([listing.place_of[label] for label in labels if label in listing.place_of], np.intp)

    def _dissolve(self, place: int) -> None:
        """Take a group off the list; its members are alone."""
        derived = self.derived
        member = int(derived.listing.members[place])
        derived.listing.close_place(place)
        while (other := int(derived.circles.after[member])) != member:
            derived.circles.detach(other)
            self.labels[other] = derived.circles.take_label()

    def join(self) -> None:
        derived = self.derived
        derived.circles.join()
        self.labels = derived.circles.labels
        self.regrouped, self.own_evidence = append_zeros(self.regrouped), append_zeros(self.own_evidence)
        derived.turn = append_zeros(derived.turn)
        derived.turn[-1] = NOT_YET

    def restart(self, agent: int) -> None:
        """Let an agent be alone and silent, and drop the answer that may hold its old data."""
        label = int(self.labels[agent])
        self.labels[agent] = np.setdiff1d(np.arange(self.labels.size + 1), self.labels)[0]
        self.own_evidence[agent] = 0.0
        self.spoken = self.spoken[self.spoken != agent]
        self._drop_derived(label)

    def forget(self, agent: int) -> None:
        """Take out an agent, and the answer that may hold its data."""
        label = int(self.labels[agent])
        self.labels, self.regrouped = drop_row(self.labels, agent), drop_row(self.regrouped, agent)
        self.own_evidence = drop_row(self.own_evidence, agent)
        self.spoken = self.spoken[self.spoken != agent]
        self.spoken[self.spoken == self.labels.size] = agent
        self._drop_derived(label)

    def _drop_derived(self, label: int) -> None:
        """Take a group without members off the list, and recompute what followed from the holdings."""
        if label not in self.labels:
            self.listed_labels[self.listed_labels == label] = NO_LABEL
        self.asker, self.last_answer = NO_AGENT, Statistics.zero(self.holdings.dimension)
        self.rebuild()


class Derived:
    """What follows from the state of a grouping by evidence and from the holdings.

    ``turn`` says when each agent first spoke, as the how manieth.
    """

    def __init__(self, partition: EvidencePartition) -> None:
        held, spoken = partition.holdings, partition.spoken
        self.circles = Circles(partition.labels)
        self.turn = np.full(len(held), NOT_YET)
        self.turn[spoken] = np.arange(spoken.size)
        self.bits = np.bincount(np.frexp(held.count[spoken])[1], minlength=64)  # how many counts have how many bits
        self.listing = Listing(partition.listed_labels, partition.listed_ages, held.dimension)
        for place in self.listing.find_places().tolist():
            self._fill_place(place, partition)

    def _fill_place(self, place: int, partition: EvidencePartition) -> None:
        listing = self.listing
        members = np.flatnonzero(partition.labels == listing.labels[place])
        listing.sizes[place], listing.members[place] = members.size, members[0]
        listing.people[place] = members.size
        listing.sums[place] = sum_rows(partition.holdings, members, partition.limit)
        listing.fit(place, partition.model)

    def count_bits(self, count: int, times: int) -> None:
        """Note that so many more agents have so many observations."""
        self.bits[count.bit_length()] += times

    def find_median_bits(self, former: int) -> int:
        """How many bits the median of all counts has.

        Of many agents it stays what it was while nearly half are on the same side, so that the limit, on which many
        sums depend, does not come and go.
        """
        ranks, agents = np.cumsum(self.bits), int(self.bits.sum())
        slack = agents // FEW
        below = int(ranks[former - 1]) if former > 0 else 0
        if 2 * (int(ranks[former]) + slack) >= agents and 2 * (below - slack) < agents:
            return former
        return int(np.argmax(2 * ranks >= agents))
