"""Regret by user, and by the number of a user's own rounds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.history import UserRole
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Vector

EARLY_ROUNDS = 50  # first rounds of a user
COHORTS = 4  # quarters of all users, in order of first arrival


@dataclass(frozen=True)
class CohortCurve:
    """The number of users of a cohort that arrived, and mean regret per user after 1, 2, ... own rounds.

    Each step averages over the users with that many rounds.
    """

    users: int
    regret: tuple[float, ...]


class OwnRounds:
    """Sums of regret by cohort and own round, up to ``most`` own rounds.

    >>> own = OwnRounds(users=4, most=2)
    >>> own.record(np.array([2, 2, 0]), np.array([0.5, 0.25, 1.0]))
    >>> own.list_curves()[0], own.list_curves()[1].regret
    (CohortCurve(users=1, regret=(0.5, 0.75)), (1.0,))
    """

    def __init__(self, *, users: int, most: int) -> None:
        self._seen = np.zeros(users, np.int32)
        self._cohort = np.zeros(users, np.int8)
        self._arrived = np.zeros(1, np.int64)
        self._sums = np.zeros((COHORTS, most))
        self._counts = np.zeros((COHORTS, most), np.int64)

    def record(self, users: NDArray[np.int64], regret: Vector) -> None:
        """Add the users and the regret of rounds, in order."""
        _add_rounds(users, regret, self._seen, self._cohort, self._arrived, self._sums, self._counts)

    def list_curves(self) -> tuple[CohortCurve, ...]:
        """Return the curve of each cohort, in order of arrival."""
        curves = []
        for sums, counts in zip(self._sums, self._counts, strict=True):
            reached = int(np.count_nonzero(counts))
            curves.append(CohortCurve(int(counts[0]), tuple(np.cumsum(sums[:reached] / counts[:reached]).tolist())))
        return tuple(curves)


@jit
def _add_rounds(
    users: NDArray[np.int64],
    regret: Vector,
    seen: NDArray[np.int32],
    cohort: NDArray[np.int8],
    arrived: NDArray[np.int64],
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> None:
    """Add the regret of each round to the arrays of ``OwnRounds``."""
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
class UserRecord:
    """A user's role, number of rounds, and expected regret in all rounds and in its first 50."""

    role: UserRole
    rounds: int
    regret: float
    early_regret: float


class RegretByUser:
    """Sums of the regret of each user."""

    def __init__(self, roles: tuple[UserRole, ...]) -> None:
        self.roles = roles
        self.is_honest = np.array([role.kind != "poisoning" for role in roles])
        self._rounds = np.zeros(len(roles), np.int64)
        self._regret, self._early = np.zeros((2, len(roles)))

    def record(self, users: NDArray[np.int64], regret: Vector) -> Vector:
        """Add the regret of rounds, in order; return it with 0 for poisoning users."""
        _add_regret(users, regret, self._rounds, self._regret, self._early)
        return np.where(self.is_honest[users], regret, 0.0)

    def build_records(self) -> tuple[UserRecord, ...]:
        sums = self._rounds.tolist(), self._regret.tolist(), self._early.tolist()
        return tuple(UserRecord(*record) for record in zip(self.roles, *sums, strict=True))


@jit
def _add_regret(
    users: NDArray[np.int64], regret: Vector, rounds: NDArray[np.int64], total: Vector, early: Vector
) -> None:
    for i in range(users.size):
        user = users[i]
        rounds[user] += 1
        total[user] += regret[i]
        if rounds[user] <= EARLY_ROUNDS:
            early[user] += regret[i]
