"""Regret by user: after so many rounds of its own, and in all, for each user of a living population."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.history import Person
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Vector

EARLY = 50  # a user's first rounds
COHORTS = 4  # quarters of all users, in the order in which they first arrived


@dataclass(frozen=True)
class CohortCurve:
    """The users of one cohort: how many arrived, and regret per user after 1, 2, ... rounds of its own.

    Each step is the mean over those who have had that round. The curve ends where there are none.
    """

    users: int
    regret: tuple[float, ...]


class OwnRounds:
    """Adds up regret by cohort and own round while a simulation runs, up to ``most`` own rounds.

    >>> own = OwnRounds(users=4, most=2)
    >>> own.record(np.array([2, 2, 0]), np.array([0.5, 0.25, 1.0]))
    >>> own.list_curves()[0], own.list_curves()[1].regret
    (CohortCurve(users=1, regret=(0.5, 0.75)), (1.0,))
    """

    def __init__(self, *, users: int, most: int) -> None:
        self._seen, self._cohort = np.zeros(users, np.int32), np.zeros(users, np.int8)
        self._arrived = np.zeros(1, np.int64)
        self._sums, self._counts = np.zeros((COHORTS, most)), np.zeros((COHORTS, most), np.int64)

    def record(self, users: NDArray[np.int64], regret: Vector) -> None:
        """Add rounds, in their order: who arrived, and the regret."""
        _add_rounds(users, regret, self._seen, self._cohort, self._arrived, self._sums, self._counts)

    def list_curves(self) -> tuple[CohortCurve, ...]:
        """A curve for each cohort, those who came first at the front."""
        curves = []
        for sums, counts in zip(self._sums, self._counts, strict=True):
            reached = int(np.count_nonzero(counts))
            curves.append(CohortCurve(int(counts[0]), tuple(np.cumsum(sums[:reached] / counts[:reached]).tolist())))
        return tuple(curves)


@jit
def _add_rounds(
    users: NDArray[np.int64], regret: Vector, seen: NDArray[np.int32], cohort: NDArray[np.int8],
    arrived: NDArray[np.int64], sums: NDArray[np.float64], counts: NDArray[np.int64],
) -> None:  # fmt: skip
    """Add each round's regret to the sum of its user's cohort and own round; the arrays are those of ``OwnRounds``."""
    for i in range(users.size):
        user = users[i]
        if seen[user] == 0:
            cohort[user] = arrived[0] * sums.shape[0] // seen.size
            arrived[0] += 1
        if seen[user] < sums.shape[1]:
            sums[cohort[user], seen[user]] += regret[i]
            counts[cohort[user], seen[user]] += 1
        seen[user] += 1


@dataclass(frozen=True)
class PersonRecord:
    """A user, how many rounds it had, and its expected regret in all of them and in its first 50."""

    person: Person
    rounds: int
    regret: float
    early_regret: float


class People:
    """Adds up the regret of each user; that of liars does not count for the run."""

    def __init__(self, persons: tuple[Person, ...]) -> None:
        self.persons = persons
        self.honest = np.array([person.kind != "liar" for person in persons])
        self._rounds = np.zeros(len(persons), np.int64)
        self._regret, self._early = np.zeros((2, len(persons)))

    def record(self, users: NDArray[np.int64], regret: Vector) -> Vector:
        """Add the regret of some rounds, in their order, to that of their users; returns what of it counts."""
        _add_regret(users, regret, self._rounds, self._regret, self._early)
        return np.where(self.honest[users], regret, 0.0)

    def build_records(self) -> tuple[PersonRecord, ...]:
        numbers = self._rounds.tolist(), self._regret.tolist(), self._early.tolist()
        return tuple(PersonRecord(*record) for record in zip(self.persons, *numbers, strict=True))


@jit
def _add_regret(
    users: NDArray[np.int64], regret: Vector, rounds: NDArray[np.int64], total: Vector, early: Vector
) -> None:
    for i in range(users.size):
        user = users[i]
        rounds[user] += 1
        total[user] += regret[i]
        if rounds[user] <= EARLY:
            early[user] += regret[i]
