"""A population's prior, learned from clicks: a variant of grouping by evidence that `benchmarks/evidence.py` measures.

Thetas are N(mu, tau^2 I). With l = sigma^2 / tau^2 a user whose statistics are (S, b) tells of mu with the weight
l (I - l K), K = (S + l I)^-1, so sums over users say what mu is likely to be and how well each l explains all data.
With one cluster l grows without bound, and everybody decides with mu. sigma^2 is what the fit leaves over.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.evidence import Evidence, EvidencePartition
from fedcascade.federation.holdings import Holdings
from fedcascade.federation.messages import Cause
from fedcascade.federation.triggers import Occasion, Trigger
from fedcascade.learning.statistics import Statistics

LENGTHS = np.array([4.0, 6.0, 9.0, 13.0, 20.0, 40.0, 100.0, 400.0]) / 20.0  # l / d, from 'all differ' to 'all alike'
DOUBT = (
    1.0  # how much log-likelihood an e-fold of l must bring: sharing with the wrong ones costs more than not sharing
)
NOISE = 0.2  # the largest sigma^2 that is believed
LAMBDA = 4.0  # what agents add to the gram themselves
TRUSTED = 0.5  # the part of l beyond lambda that narrows the widths, too


class Unsent(Trigger):
    """Fires when the rounds since the last exchange are a share of all that the agent has played."""

    def __init__(self, share: float) -> None:
        self.share = share

    def cause(self, occasion: Occasion) -> Cause | None:
        """Speak often at first, and ever more rarely."""
        return Cause.FORCED if occasion.buffer.rounds >= self.share * occasion.arrivals else None


class Centred(EvidencePartition):
    """Evidence is about how users differ from a centre, which for this class is what everybody's data say together."""

    def add(self, agent: int, statistics: Statistics) -> None:
        """Walk with moments less what the centre explains, and give that back in the answer."""
        held, centre = self.holdings, self.centre(agent)
        moments = held.moment
        held.moment = moments - held.gram @ centre
        for user in range(len(held)):
            self.own_evidence[user] = self.rule.measure(held[user])
        self.rebuild()  # all moments, and perhaps the constants, are others than at the last upload
        super().add(agent, statistics)
        held.moment = moments
        self.last_answer = replace(self.last_answer, moment=self.last_answer.moment + self.last_answer.gram @ centre)

    def centre(self, agent: int) -> NDArray[np.float64]:  # noqa: ARG002
        """One regression over all data."""
        held = self.holdings
        return np.linalg.solve(held.gram.sum(0) + np.eye(held.dimension), held.moment.sum(0))


class Population(Centred):
    """The centre is mu and the prior l, both learned; an agent is told of them as if they were data."""

    def __init__(self, holdings: Holdings, rule: Evidence) -> None:
        super().__init__(holdings, rule)
        self._first, d = rule, holdings.dimension
        self._weights = np.zeros((LENGTHS.size, len(holdings), d, d))
        self._pulls = np.zeros((LENGTHS.size, len(holdings), d))
        self._fits = np.zeros((LENGTHS.size, len(holdings)))
        self._volumes = np.zeros((LENGTHS.size, len(holdings)))

    def add(self, agent: int, statistics: Statistics) -> None:
        """As before; then mu counts like data of weight l, of which agents bring lambda themselves."""
        super().add(agent, statistics)
        told, prior = self.last_answer, self.rule.make_model(self.holdings.dimension).prior
        more = TRUSTED * (prior - LAMBDA)
        gram = told.gram + more * np.eye(told.dimension)
        self.last_answer = replace(told, gram=gram, moment=told.moment + (LAMBDA + more) * self._mu)

    def centre(self, agent: int) -> NDArray[np.float64]:
        """Mu of the l that explains everybody's clicks best; that l and the noise become the rule's."""
        own = self.holdings[agent]
        fits = [self._fit_prior(i, own, agent) for i in range(LENGTHS.size)]
        best = int(np.argmax([likelihood for likelihood, _, _ in fits]))
        _, noise, self._mu = fits[best]
        self.rule = replace(self._first, variance=noise, length=math.sqrt(noise / LENGTHS[best]))
        return self._mu

    def _fit_prior(self, i: int, own: Statistics, agent: int) -> tuple[float, float, NDArray[np.float64]]:
        """The log-likelihood of everybody's clicks under one l, the noise and mu."""
        d = own.dimension
        prior, one, held = LENGTHS[i] * d, np.eye(d), self.holdings
        inverse = np.linalg.inv(own.gram + prior * one)
        self._weights[i, agent], self._pulls[i, agent] = prior * (one - prior * inverse), prior * (inverse @ own.moment)
        self._fits[i, agent] = own.moment @ inverse @ own.moment
        self._volumes[i, agent] = 0.5 * (np.linalg.slogdet(inverse)[1] + d * math.log(prior))
        weight, pull = self._weights[i].sum(0) + LENGTHS[0] * d * one, self._pulls[i].sum(0)
        mu = np.linalg.solve(weight, pull)
        left = held.clicks.sum() - self._fits[i].sum() - pull @ mu  # clicks are their own squares
        volume = self._volumes[i].sum() - 0.5 * (np.linalg.slogdet(weight)[1] - d * math.log(LENGTHS[0] * d))
        seen = int(held.count.sum())
        noise = float(np.clip(left / seen, 0.02, NOISE))
        likelihood = volume - 0.5 * (seen * math.log(noise) + left / noise) - DOUBT * math.log(LENGTHS[i])
        return likelihood, noise, mu
