"""The registry of attacks: name, input, expected defence, and a function that measures."""

from collections.abc import Callable
from dataclasses import dataclass

from attack.arena import Arena


@dataclass(frozen=True)
class Finding:
    """The measurement of an attack, in a few words, and whether the service withstood it."""

    measured: str
    held: bool


class NotPossible(Exception):  # noqa: N818 (not an error: the reason why an attack cannot run here)
    """A requirement of an attack that this machine does not meet."""


@dataclass(frozen=True)
class Attack:
    """An attack on a server that the function starts in its arena."""

    name: str
    item: int  # of the first list of attacks, or 200 + that of the second
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
