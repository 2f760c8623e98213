"""Populations by round: the theta and cluster of each user, and the users that are present."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.options import NO_ROUND, Attack, ClusteredOptions, Turnover
from fedcascade.numerics import streams
from fedcascade.numerics.linear import normalise_rows

Labels = NDArray[np.int64]
Thetas = NDArray[np.float64]
Flags = NDArray[np.bool_]
UserKind = Literal["steady", "changing", "poisoning"]

# Round numbers of the draws in the stream CLUSTER that select the users of each event.
CHANGING, POISONING, JOINING, LEAVING = 1, 2, 3, 4
NEAR_TURN = 0.3  # share of the way from the first cluster to the promoted theta, for the attack "near"


class Moment(NamedTuple):
    """A population in a round: the theta and true cluster of each user, and whether it is present."""

    thetas: Thetas
    clusters: Labels
    present: Flags


@dataclass(frozen=True)
class UserRole:
    """The part of a user in the events of an environment; agents do not know it.

    ``joined`` and ``left`` are rounds; None for a user that is present from the start, or to the end.
    """

    kind: UserKind
    joined: int | None = None
    left: int | None = None


class OneChange:
    """Thetas that change once, in round ``at``, or never; clusters stay the same."""

    user_roles: tuple[UserRole, ...] = ()  # none without events

    def __init__(self, clusters: Labels, thetas: Thetas, at: int = NO_ROUND, later: Thetas | None = None) -> None:
        self._at = at
        self._before = Moment(thetas, clusters, np.ones(clusters.size, np.bool_))
        self._after = self._before if later is None else self._before._replace(thetas=later)

    def find_moment(self, round_: int) -> Moment:
        """Return the population in a round."""
        return self._before if round_ < self._at else self._after

    def find_next(self, round_: int) -> int:
        """Return the first round after ``round_`` in which the population may differ."""
        return self._at if round_ < self._at else NO_ROUND


class Tastes(NamedTuple):
    """The clusters and thetas of users before and after events.

    ``centres`` holds the theta of each cluster. ``others`` holds a new theta for each cluster, and last the one that
    poisoning users promote. ``lifted`` thetas share their last coordinate.
    """

    clusters: Labels
    centres: Thetas
    others: Thetas
    lifted: bool


class EventHistory:
    """A population with change, poisoning, joins and leaves; the seed selects the users."""

    def __init__(self, options: ClusteredOptions, tastes: Tastes, seed: int) -> None:
        self._options, self._tastes = options, tastes
        self._seed = np.uint64(seed)
        users = tastes.clusters.size
        self._changing = self._select_in_clusters(options.change.share) if options.change else np.zeros(users, np.bool_)
        self._poisoning = np.zeros(users, np.bool_)
        if options.poisoning is not None:
            self._poisoning[self._draw_order(POISONING)[: round(options.poisoning.share * users)]] = True
        self._joined = self._spread(options.joins, JOINING, 1)
        self._left = self._spread(options.leaves, LEAVING, NO_ROUND)
        self._moments: dict[tuple[float, Attack | None, int, int], Moment] = {}
        self.user_roles = tuple(self._describe(user) for user in range(users))

    def _describe(self, user: int) -> UserRole:
        joined, left = int(self._joined[user]), int(self._left[user])
        kind: UserKind = "changing" if self._changing[user] else "steady"
        if self._poisoning[user]:
            kind = "poisoning"
        return UserRole(kind, joined if joined > 1 else None, left if left < NO_ROUND else None)

    def _draw_order(self, which: int) -> Labels:
        return np.argsort(streams.uniforms(self._seed, streams.CLUSTER, which, self._tastes.clusters.size))

    def _select_in_clusters(self, share: float) -> Flags:
        clusters, order = self._tastes.clusters, self._draw_order(CHANGING)
        selected = np.zeros(clusters.size, np.bool_)
        for cluster in np.unique(clusters):
            members = order[clusters[order] == cluster]
            selected[members[: round(share * members.size)]] = True
        return selected

    def _spread(self, turnover: Turnover | None, which: int, otherwise: int) -> Labels:
        """Return the round in which each user joins or leaves."""
        rounds = np.full(self._tastes.clusters.size, otherwise)
        if turnover is not None:
            moving = self._draw_order(which)[: round(turnover.share * rounds.size)]
            steps = (turnover.until - turnover.since) * np.arange(1, moving.size + 1) // max(1, moving.size)
            rounds[moving] = turnover.since + steps
        return rounds

    def find_next(self, round_: int) -> int:
        options, turns = self._options, np.append(self._joined, self._left)
        following = [NO_ROUND, int(turns[turns > round_].min(initial=NO_ROUND))]
        if options.change is not None:
            following.append(options.change.find_next(round_))
        if options.poisoning is not None and round_ < options.poisoning.since:
            following.append(options.poisoning.since)
        return min(following)

    def find_moment(self, round_: int) -> Moment:
        options = self._options
        progress = 0.0 if options.change is None else options.change.measure_progress(round_)
        attack = options.poisoning.attack if options.poisoning and round_ >= options.poisoning.since else None
        key = (progress, attack, int((self._joined <= round_).sum()), int((self._left <= round_).sum()))
        if key not in self._moments:
            present = (self._joined <= round_) & (round_ < self._left)
            self._moments[key] = Moment(*self._build_thetas(progress, attack), present)
        return self._moments[key]

    def _build_thetas(self, progress: float, attack: Attack | None) -> tuple[Thetas, Labels]:
        clusters, centres, others, lifted = self._tastes
        thetas, labels = centres[clusters], clusters.copy()
        changing, poisoning = self._changing, self._poisoning
        if progress and self._options.change is not None:
            is_new = self._options.change.to == "new"
            following = (clusters + 1) % len(centres)
            wanted = others[clusters] if is_new else centres[following]
            thetas[changing] = turn_to(thetas[changing], wanted[changing], progress, lifted)
            if progress > 0.5:
                labels[changing] = (clusters + len(centres) if is_new else following)[changing]
        if attack is not None:
            thetas[poisoning] = self._build_poisoned_thetas(attack)[poisoning]
            labels[poisoning] = 2 * len(centres) + np.flatnonzero(poisoning)
        return thetas, labels

    def _build_poisoned_thetas(self, attack: Attack) -> Thetas:
        clusters, centres, others, lifted = self._tastes
        promoted = others[-1:]
        if attack == "near":
            promoted = turn_to(centres[:1], promoted, NEAR_TURN, lifted)
        elif attack == "inverted":
            promoted = -centres[clusters]
            if lifted:
                promoted[:, -1] *= -1.0
        return np.broadcast_to(promoted, (clusters.size, centres.shape[1]))


History = OneChange | EventHistory  # a population as a function of the round


def turn_to(thetas: Thetas, wanted: Thetas, progress: float, lifted: bool) -> Thetas:
    """Turn each row of ``thetas`` towards that of ``wanted``, with linearly interpolated lengths.

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
