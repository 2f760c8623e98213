"""Grouping by a population: an answer is what everybody's data tell of a user, a Gaussian in the form of statistics.

Among few, this is grouping by evidence (``evidence.py``), to the bit. From the 65th speaker on, the server learns a
mixture of users (``mixture.py``) from a sample of them. An agent is told the mean and the covariance of its theta under
the mixture, given its own data: gram sigma^2 C^-1 - lambda I, moment sigma^2 C^-1 m. Where it is in doubt which
component it belongs to, C is large and the answer says little. An agent without data is told what there is to know of
anybody.

Components are told while they predict uploads, before they are learned from, better than the population does, and the
population while it predicts them better than a ridge that knows nothing. Else an agent is told its own data.

No agent counts for much: what an upload says for or against the mixture is limited, an agent is asked again only when
most others have been, and a fit weighs users, not observations.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedcascade.checks import POSITIVE, require, whole_numbers
from fedcascade.constants import constant
from fedcascade.federation.grouping.evidence import FEW, Evidence, EvidencePartition
from fedcascade.federation.grouping.fitting import (
    EVERYTHING,
    Fit,
    FittedMixture,
    Sample,
    Shape,
    is_spread_known,
    make_fitted,
)
from fedcascade.federation.grouping.gibbs import compute_evidence
from fedcascade.federation.grouping.mixture import (
    FREE,
    Mixture,
    discount_own,
    make_room,
    match_moments,
    state_as_statistics,
    weigh,
)
from fedcascade.federation.grouping.partition import Labels, Partition
from fedcascade.federation.holdings import Holdings, append_zeros, drop_row
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics import streams
from fedcascade.numerics.linear import Vector

GROWTH = 1.2  # a fit is due when so many times the uploads have counted that had before the last one
BIRTH_GROWTH = 1.4  # new components are looked for again when so many times the uploads of the last vain search have
LEAST_SHARE = 0.5  # of the median of observations, which a user must have to be fitted to
LONGEST = 4.0  # an estimate so many times as long as expected is not fitted to
FADE = 0.995  # what a prediction counts after one more upload
MOST_GAIN = 0.5  # of log-evidence, that one upload may say for or against what is told
SHUT, OPEN = -7.0, 0.0  # a sum of log-evidence below or above which something is told no more, or again
MOST = 20.0  # to which a sum is limited, so that what was right for long is not trusted for long when it is not
TICK = 16  # by which an upload that counts moves the clock; one that does not, of whoever has just spoken, by 1
PATIENCE = 0.5  # an agent's uploads count once while so large a share of the speakers' do
COMPONENTS, POPULATION = 0, 1  # places in ``scores`` and ``is_told``
NOBODY = -1  # stands for an agent without a place
_SEED = np.uint64(0)  # of the sample: a server has none of its own, and replays must agree


@dataclass(frozen=True, kw_only=True)
class Population(Evidence):
    """Among few, grouping by evidence; from the 65th speaker on, answers from a mixture that everybody's data teach."""

    slots: int = constant(32, meaning="the most components of the population's mixture", range=whole_numbers(1))
    spread: float = constant(
        0.002, meaning="the variance within a component, in each direction of theta", symbol="v", range=POSITIVE
    )
    sample: int = constant(
        4000, meaning="to how many agents at most the population is fitted", range=whole_numbers(FEW + 1)
    )
    work: int = constant(
        48, meaning="how many users of a fit an upload waits for, if there are 32 components", range=whole_numbers(1)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_spread_known(self.spread), f"spread must be between 0.0005 and 0.256, got {self.spread:g}")

    def begin(self, holdings: Holdings, truth: Labels | None) -> Partition:  # noqa: ARG002
        return PopulationPartition(holdings, self)


class PopulationPartition(EvidencePartition):
    """The state of a grouping by a population.

    Among many, a label is the slot of a component that an agent belongs to with more than even odds, or else a number
    of its own. ``former`` has the responsibilities of the sampled agents in the last fit.
    """

    state_names: ClassVar[tuple[str, ...]] = (
        *EvidencePartition.state_names, "is_many", "speakers", "clock", "counted", "fits", "fit_due", "births_due",
        "work", "leavers", "earlier_leavers", "sample", "former", "scores", "is_told", "means", "levels",
        "log_weights", "centre", "precision", "pull", "mixture_numbers", "covariance", "covariances",
    )  # fmt: skip
    rule: Population

    def __init__(self, holdings: Holdings, rule: Population) -> None:
        super().__init__(holdings, rule)
        self.is_many = False
        self.speakers = self.fits = 0
        self.clock, self.counted = 0, np.empty(0, np.int64)  # when an upload of each agent last counted; among many
        self.fit_due = self.births_due = 0.0  # by the clock
        self._fit: Fit | None = None
        # Who has left the sample, but taught the mixture or the fit under way; so many of them before that began.
        self.leavers, self.earlier_leavers = np.empty(0, np.int64), 0
        self.sample, self.former = np.empty(0, np.int64), np.empty((0, int(rule.slots)))
        self.scores, self.is_told = np.zeros(2), np.ones(2, np.bool_)
        self._set_fitted(make_fitted(int(rule.slots), holdings.dimension, float(rule.variance)))

    def _set_fitted(self, fitted: FittedMixture) -> None:
        """Let the arrays that outlive a process be those of a mixture."""
        self.means, self.levels, self.log_weights, self.centre, self.precision, self.pull, numbers = fitted.mixture
        self.mixture_numbers, self.covariance, self.covariances = numbers, fitted.covariance, fitted.covariances
        self._derive()

    @property
    def work(self) -> dict[str, Any]:
        """The state of the fit that is under way, if there is one."""
        return {} if self._fit is None else self._fit.to_state()

    @work.setter
    def work(self, state: Mapping[str, Any]) -> None:
        self._fit = Fit.from_state(state) if state else None

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._derive()

    def _derive(self) -> None:
        """Make what follows from the state."""
        mixture = Mixture(
            self.means, self.levels, self.log_weights, self.centre, self.precision, self.pull, self.mixture_numbers
        )
        self._fitted = FittedMixture(mixture, self.covariance, self.covariances)
        self._place_of = {agent: place for place, agent in enumerate(self.sample.tolist())}
        self._room = make_room(*self.means.shape)
        self._count_members()

    def _count_members(self) -> None:
        """How many agents have the label of each component; nobody while these are labels of groups by evidence."""
        labels = self.labels[self.labels < self.levels.size] if self.is_many else self.labels[:0]
        self._members = np.bincount(labels, minlength=self.levels.size)

    def __len__(self) -> int:
        if not self.is_many:
            return super().__len__()
        return self.labels.size - int(self._members.sum()) + int(np.count_nonzero(self._members))

    def count_members(self, agent: int) -> int:
        if not self.is_many:
            return super().count_members(agent)
        label = int(self.labels[agent])
        return int(self._members[label]) if label < self._members.size else 1

    def pooled(self, agent: int) -> Statistics:
        if not self.is_many:
            return super().pooled(agent)
        return self.holdings.total(np.flatnonzero(self.labels == self.labels[agent]))

    def answer(self, agent: int) -> Statistics:
        """What is known of an agent's theta; its own data where others' do not help."""
        if not self.is_many:
            return super().answer(agent)
        own = self.holdings[agent]
        told = self._tell(agent, own)
        return own if told is None else told

    def tell_newcomer(self) -> Statistics | None:
        """What the mixture says of anybody, under the rules of every answer."""
        if not self.is_many:
            return super().tell_newcomer()
        return self._tell(NOBODY, Statistics.zero(self.holdings.dimension))

    def _tell(self, agent: int, own: Statistics) -> Statistics | None:
        """What is known of an agent that has sent ``own``; None where others' data do not help, or must not."""
        if self.fits == 0 or not self.is_told[POPULATION] or self.speakers <= self.guard.min_others:
            return None
        gram, moment = self._tell_mixture(agent, own) if self.is_told[COMPONENTS] else self._tell_population(own)
        is_sound = bool(np.isfinite(gram).all() and np.isfinite(moment).all())
        return Statistics(gram, moment, own.count, own.clicks, own.rounds) if is_sound else None

    def _tell_mixture(self, agent: int, own: Statistics) -> tuple[Any, Vector]:
        self._weigh(agent, own.gram, own.moment)
        mean, covariance = match_moments(self._fitted.mixture, float(self.rule.variance), self._room)
        return state_as_statistics(mean, covariance, float(self.holdings.lambda_))

    def _tell_population(self, own: Statistics) -> tuple[Any, Vector]:
        """The population, widened until it is on average as wide as the ridge assumes: explore no less than alone."""
        lambda_, d = self.holdings.lambda_, own.dimension
        wider = max(1.0, self.rule.variance * d / (lambda_ * float(self.covariance.trace())))
        prior = np.triu(self.precision / wider)
        gram = own.gram + prior + np.triu(prior, 1).T
        gram[np.diag_indices(d)] -= lambda_
        return gram, own.moment + self.pull / wider

    def _weigh(self, agent: int, gram: Any, moment: Vector) -> None:
        """Responsibilities for an agent, left in the room; its own part in the last fit is left out."""
        weigh(self._fitted.mixture, gram, moment, float(self.rule.variance), self._room)
        place = self._place_of.get(agent)
        if place is not None:
            discount_own(
                self._fitted.mixture, self.former[place], self.covariances, float(self.rule.variance), self._room
            )

    def add(self, agent: int, statistics: Statistics) -> None:
        """Judge what is told by an upload, which the holdings have already, and learn from it when a fit is due."""
        own = self.holdings.view(agent)
        is_new = 0 < own.count == statistics.count
        if not self.is_many:
            if self.spoken.size + is_new <= FEW:
                super().add(agent, statistics)
                return
            self.become_many()
        if own.count == 0:
            return
        if statistics.count and self._count_upload(agent) and self.fits:
            self._judge(own, statistics)
        if is_new:
            self._take_in_speaker(agent)
        self._learn(float(self.rule.work) if self.fits else EVERYTHING)
        self._label(agent, own)

    def _count_upload(self, agent: int) -> bool:
        """Whether an upload counts: it does not if one of the agent has while most others said nothing."""
        since = self.clock - int(self.counted[agent])
        is_counted = self.counted[agent] == 0 or since >= PATIENCE * TICK * self.speakers
        self.clock += TICK if is_counted else 1
        if is_counted:
            self.counted[agent] = self.clock
        return bool(is_counted)

    def _learn(self, work: float) -> None:
        """Begin a fit if one is due, and go on with the one under way."""
        if self._fit is None and self.clock >= self.fit_due:
            self._begin_fit(has_births=self.clock >= self.births_due)
        if self._fit is not None:
            self._fit.advance(Sample(self.holdings, self.sample, self.former), self._shape, work)
            if self._fit.is_done:
                self._end_fit(self._fit)

    def become_many(self) -> None:
        """Leave grouping by evidence for good; its first speakers are the sample."""
        self.is_many, self.speakers = True, self.spoken.size
        self.clock, self.counted = TICK * self.speakers, np.zeros(len(self.holdings), np.int64)
        self.sample, self.spoken = self.spoken[: self.rule.sample].copy(), self.spoken[:0].copy()
        self.former = np.zeros((self.sample.size, int(self.rule.slots)))
        self.own_evidence = self.own_evidence[:0].copy()
        self.asker, self.listed_labels = -1, np.full_like(self.listed_labels, -1)
        self.labels = self.levels.size + np.arange(len(self.holdings))
        self.rebuild()
        self._derive()

    def _take_in_speaker(self, agent: int) -> None:
        """Let a new speaker into the sample while there is room, then with the chance that all have equal ones."""
        self.speakers += 1
        if self.sample.size < self.rule.sample:
            place = self.sample.size
            self.sample, self.former = append_zeros(self.sample), append_zeros(self.former)
        else:
            place = int(streams.uniform(_SEED, streams.SPEAKER, self.speakers, 0) * self.speakers)
            if place >= self.sample.size:
                return
            del self._place_of[int(self.sample[place])]
            self.leavers = np.append(self.leavers, self.sample[place])
        self.sample[place], self.former[place] = agent, 0.0
        self._place_of[agent] = place

    def _judge(self, own: Statistics, upload: Statistics) -> None:
        """Compare how likely an upload was, given what the agent had sent before."""
        variance, mixture, room = float(self.rule.variance), self._fitted.mixture, self._room
        prior = float(self.holdings.lambda_)
        gains = []
        for gram, moment in ((own.gram - upload.gram, own.moment - upload.moment), (own.gram, own.moment)):
            evidence = weigh(mixture, gram, moment, variance, room)
            alone = compute_evidence(gram, moment, variance, prior)
            gains.append((evidence - room.numbers[1], room.numbers[1] - alone))
        for place in (COMPONENTS, POPULATION):
            gain = gains[1][place] - gains[0][place]
            gain = min(max(gain, -MOST_GAIN), MOST_GAIN) if math.isfinite(gain) else -MOST_GAIN
            self.scores[place] = min(max(FADE * self.scores[place] + gain, -MOST), MOST)
            is_told = self.scores[place] > (SHUT if self.is_told[place] else OPEN)
            self.is_told[place] = is_told

    @property
    def _shape(self) -> Shape:
        rule = self.rule
        return Shape(float(rule.variance), float(rule.spread), max(1.5, self.guard.min_others + 1.0))

    def _begin_fit(self, *, has_births: bool) -> None:
        """Begin to fit the mixture to those of the sample who have said enough."""
        counts = self.holdings.count[self.sample]
        is_fit = counts >= LEAST_SHARE * np.median(counts) if counts.size else counts > 0
        is_fit &= self.holdings.length[self.sample] <= LONGEST * self.rule.length
        places = np.flatnonzero(is_fit)
        self.former[~is_fit] = 0.0
        self.fits += 1
        self.fit_due, self.earlier_leavers = GROWTH * self.clock, self.leavers.size
        if places.size > self.guard.min_others:
            self._fit = Fit(self._fitted, places, self.fits, has_births)
        else:
            self._fit = None
            self._begin_anew()

    def _end_fit(self, fit: Fit) -> None:
        """Tell the mixture of a fit from now on."""
        self._fit, self.leavers = None, self.leavers[self.earlier_leavers :]
        if fit.fitted.is_finite:
            self._set_fitted(fit.fitted)
        else:  # what no data should be able to do; the next fit begins anew
            self._begin_anew()
        if fit.has_births and not fit.is_grown:
            self.births_due = BIRTH_GROWTH * self.clock
        self._label_sample()

    def _begin_anew(self) -> None:
        """Know nothing of the population."""
        rule = self.rule
        self._set_fitted(make_fitted(int(rule.slots), self.holdings.dimension, float(rule.variance)))
        self.former[:] = 0.0

    def _label(self, agent: int, own: Statistics) -> None:
        self._weigh(agent, own.gram, own.moment)
        slot, before = int(self._room.weights.argmax()), int(self.labels[agent])
        self.labels[agent] = slot if self._room.weights[slot] > 0.5 else self.levels.size + agent
        for label, change in ((before, -1), (int(self.labels[agent]), 1)):
            if label < self._members.size:
                self._members[label] += change

    def _label_sample(self) -> None:
        """Labels after a fit: those of the sample, and nobody in a component that is gone."""
        slots = self.levels.size
        alone = slots + np.arange(self.labels.size)
        gone = np.flatnonzero(self.labels < slots)
        gone = gone[self.levels[self.labels[gone]] == FREE]
        self.labels[gone] = alone[gone]
        if self.former.size:
            best = self.former.argmax(axis=1)
            is_member = self.former[np.arange(best.size), best] > 0.5
            self.labels[self.sample] = np.where(is_member, best, alone[self.sample])
        self._count_members()

    def join(self) -> None:
        if not self.is_many:
            super().join()
            return
        self.labels, self.regrouped = append_zeros(self.labels), append_zeros(self.regrouped)
        self.counted = append_zeros(self.counted)
        self.labels[-1] = self.levels.size + self.labels.size - 1

    def restart(self, agent: int) -> None:
        """Let an agent be alone and silent; if the mixture was fitted to it, refit without it."""
        if not self.is_many:
            super().restart(agent)
            return
        has_taught, stays = agent in self._place_of or agent in self.leavers, self.sample != agent
        self.labels[agent] = self.levels.size + agent
        self.sample, self.former = self.sample[stays], self.former[stays]
        self.leavers = self.leavers[self.leavers != agent]
        self.speakers = int(np.count_nonzero(self.holdings.count))
        self._derive()
        if has_taught:
            self._begin_fit(has_births=False)
            self._learn(EVERYTHING)

    def forget(self, agent: int) -> None:
        """Take out an agent. If the mixture was fitted to it, that is done anew without it: nothing is summed of it.

        Who was never in the sample has taught the mixture nothing.
        """
        if not self.is_many:
            super().forget(agent)
            return
        slots, last = self.levels.size, self.labels.size - 1
        label, place, moved = int(self.labels[agent]), self._place_of.pop(agent, None), self._place_of.pop(last, None)
        has_taught = place is not None or agent in self.leavers
        if label < slots:
            self._members[label] -= 1
        self.labels, self.regrouped = drop_row(self.labels, agent), drop_row(self.regrouped, agent)
        self.counted = drop_row(self.counted, agent)
        if agent < last and self.labels[agent] >= slots:
            self.labels[agent] = slots + agent
        if moved is not None:
            self.sample[moved], self._place_of[agent] = agent, moved
        self.leavers = self.leavers[self.leavers != agent]
        self.leavers[self.leavers == last] = agent
        self.speakers = int(np.count_nonzero(self.holdings.count))
        if place is not None:
            self.sample, self.former = np.delete(self.sample, place), np.delete(self.former, place, axis=0)
            self._derive()
        if has_taught:
            self._begin_fit(has_births=False)
            self._learn(EVERYTHING)
