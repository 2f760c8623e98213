"""What an attack is: a name, what it sends, what counts as held, and a function that measures."""

from collections.abc import Callable
from dataclasses import dataclass

from attack.arena import Arena


@dataclass(frozen=True)
class Finding:
    """What an attack measured, in a few words, and whether the service held."""

    measured: str
    held: bool


class NotPossible(Exception):  # noqa: N818 (not an error: the reason why an attack cannot run here)
    """Says what is missing on this machine for an attack."""


@dataclass(frozen=True)
class Attack:
    """An attack on a server that the function starts in its arena."""

    name: str
    item: int  # of issue 15
    sends: str
    holds: str
    run: Callable[[Arena], Finding]


ATTACKS: dict[str, Attack] = {}


def attack(
    item: int, name: str, *, sends: str, holds: str
) -> Callable[[Callable[[Arena], Finding]], Callable[[Arena], Finding]]:
    """Register a function as an attack."""

    def register(run: Callable[[Arena], Finding]) -> Callable[[Arena], Finding]:
        ATTACKS[name] = Attack(name, item, sends, holds, run)
        return run

    return register
