"""Regret by user, in all rounds and in its first."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.history import UserRole
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Vector

EARLY_ROUNDS = 50  # first rounds of a user


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
