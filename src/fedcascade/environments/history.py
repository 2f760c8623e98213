"""Histories: what the users of a world want, who is like whom and who is there, round by round."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.options import NEVER, ClusteredOptions, Turnover
from fedcascade.numerics import streams
from fedcascade.numerics.linear import normalise_rows

Labels = NDArray[np.int64]
Thetas = NDArray[np.float64]
Flags = NDArray[np.bool_]

CHANGING, LYING, JOINING, LEAVING = 1, 2, 3, 4  # which draws of the stream CLUSTER say who does
NEARLY = 0.3  # how far liars who are near a cluster have turned from it


class Moment(NamedTuple):
    """A population in some rounds: the theta and the true cluster of each user, and who is there."""

    thetas: Thetas
    clusters: Labels
    present: Flags


@dataclass(frozen=True)
class Person:
    """Who a user is, which no agent knows.

    ``joined`` and ``left`` are rounds; None where it is there from the start, or to the end.
    """

    kind: Literal["steady", "changing", "liar"]
    joined: int | None = None
    left: int | None = None


class History(Protocol):
    """A population as a function of the round; ``persons`` says who is who, and is empty where nobody changes."""

    persons: tuple[Person, ...]

    def find_moment(self, round_: int) -> Moment:
        """The population in a round."""

    def find_next(self, round_: int) -> int:
        """The first round after ``round_`` in which the population may be another one."""


class OneChange:
    """Thetas that change once, in round ``at``, or never; ``clusters`` are the same before and after."""

    persons: tuple[Person, ...]

    def __init__(self, clusters: Labels, thetas: Thetas, at: int = NEVER, later: Thetas | None = None) -> None:
        self.persons, self._at = (), at
        self._before = Moment(thetas, clusters, np.ones(clusters.size, np.bool_))
        self._after = self._before if later is None else self._before._replace(thetas=later)

    def find_moment(self, round_: int) -> Moment:
        return self._before if round_ < self._at else self._after

    def find_next(self, round_: int) -> int:
        return self._at if round_ < self._at else NEVER


class Tastes(NamedTuple):
    """What users want at first, and what they may come to want.

    ``centres`` has the theta of each cluster; ``others`` has one more for each cluster, and after these the one that
    liars promote. The last coordinate of ``lifted`` thetas is the same for all.
    """

    clusters: Labels
    centres: Thetas
    others: Thetas
    lifted: bool


class LivingHistory:
    """The history of users who change, lie, join and leave as options say; the draws of a seed say which ones."""

    def __init__(self, options: ClusteredOptions, tastes: Tastes, seed: int) -> None:
        self._options, self._tastes, self._seed = options, tastes, np.uint64(seed)
        users = tastes.clusters.size
        self._changing = self._select_in_clusters(options.change.share) if options.change else np.zeros(users, np.bool_)
        self._lying = np.zeros(users, np.bool_)
        if options.liars is not None:
            self._lying[self._draw_order(LYING)[: round(options.liars.share * users)]] = True
        self._joined = self._spread(options.joins, JOINING, 1)
        self._left = self._spread(options.leaves, LEAVING, NEVER)
        self._moments: dict[tuple[float, bool, int, int], Moment] = {}
        self.persons = tuple(self._describe(user) for user in range(users))

    def _describe(self, user: int) -> Person:
        joined, left = int(self._joined[user]), int(self._left[user])
        kind: Literal["steady", "changing", "liar"] = "changing" if self._changing[user] else "steady"
        if self._lying[user]:
            kind = "liar"
        return Person(kind, joined if joined > 1 else None, left if left < NEVER else None)

    def _draw_order(self, which: int) -> Labels:
        return np.argsort(streams.uniforms(self._seed, streams.CLUSTER, which, self._tastes.clusters.size))

    def _select_in_clusters(self, share: float) -> Flags:
        """That share of each cluster."""
        clusters, order = self._tastes.clusters, self._draw_order(CHANGING)
        selected = np.zeros(clusters.size, np.bool_)
        for cluster in np.unique(clusters):
            members = order[clusters[order] == cluster]
            selected[members[: round(share * members.size)]] = True
        return selected

    def _spread(self, turnover: Turnover | None, which: int, otherwise: int) -> Labels:
        """The round in which each user comes or leaves."""
        rounds = np.full(self._tastes.clusters.size, otherwise)
        if turnover is not None:
            moving = self._draw_order(which)[: round(turnover.share * rounds.size)]
            steps = (turnover.until - turnover.since) * np.arange(1, moving.size + 1) // max(1, moving.size)
            rounds[moving] = turnover.since + steps
        return rounds

    def find_next(self, round_: int) -> int:
        options, turns = self._options, np.append(self._joined, self._left)
        following = [NEVER, int(turns[turns > round_].min(initial=NEVER))]
        if options.change is not None:
            following.append(options.change.find_next(round_))
        if options.liars is not None and round_ < options.liars.since:
            following.append(options.liars.since)
        return min(following)

    def find_moment(self, round_: int) -> Moment:
        options = self._options
        progress = 0.0 if options.change is None else options.change.measure_progress(round_)
        lying = options.liars is not None and round_ >= options.liars.since
        there = int((self._joined <= round_).sum()), int((self._left <= round_).sum())
        key = (progress, lying, *there)
        if key not in self._moments:
            present = (self._joined <= round_) & (round_ < self._left)
            self._moments[key] = Moment(*self._build_wishes(progress, lying), present)
        return self._moments[key]

    def _build_wishes(self, progress: float, lying: bool) -> tuple[Thetas, Labels]:
        """The thetas and clusters of all users."""
        clusters, centres, others, lifted = self._tastes
        thetas, labels, changing, liars = centres[clusters], clusters.copy(), self._changing, self._lying
        if progress and self._options.change is not None:
            is_new = self._options.change.to == "new"
            following = (clusters + 1) % len(centres)
            wanted = others[clusters] if is_new else centres[following]
            thetas[changing] = turn_to(thetas[changing], wanted[changing], progress, lifted)
            if progress > 0.5:
                labels[changing] = (clusters + len(centres) if is_new else following)[changing]
        if lying and self._options.liars is not None:
            thetas[liars] = self._tell_lies(self._options.liars.lie)[liars]
            labels[liars] = 2 * len(centres) + np.flatnonzero(liars)
        return thetas, labels

    def _tell_lies(self, lie: str) -> Thetas:
        clusters, centres, others, lifted = self._tastes
        promoted = others[-1:]
        if lie == "near":
            promoted = turn_to(centres[:1], promoted, NEARLY, lifted)
        elif lie == "inverted":
            promoted = -centres[clusters]
            if lifted:
                promoted[:, -1] *= -1.0
        return np.broadcast_to(promoted, (clusters.size, centres.shape[1]))


def turn_to(thetas: Thetas, wanted: Thetas, progress: float, lifted: bool) -> Thetas:
    """Thetas on their way to others, row by row; their lengths change evenly.

    >>> turn_to(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), 0.5, False).round(3).tolist()
    [[0.707, 0.707]]
    """
    free = thetas.shape[1] - lifted
    before, after = np.ascontiguousarray(thetas[:, :free]), np.ascontiguousarray(wanted[:, :free])
    lengths = (np.sqrt(np.square(ends).sum(axis=1, keepdims=True)) for ends in (before, after))
    length = (1.0 - progress) * next(lengths) + progress * next(lengths)
    turned = thetas.copy()
    turned[:, :free] = length * normalise_rows((1.0 - progress) * before + progress * after)
    return turned
