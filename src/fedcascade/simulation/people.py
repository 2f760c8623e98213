"""What a run keeps of each user of a living population: who it was, and what it lost."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.history import Person
from fedcascade.numerics.jit import jit
from fedcascade.numerics.linear import Vector

EARLY = 50  # a user's first rounds


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
