"""What happens to a population: who comes late, who leaves, who changes its mind, who lies. A value, not a process."""

from dataclasses import dataclass
from typing import Literal, get_args

from fedcascade.checks import PROBABILITY, SHARE, require, require_integer, require_known

Destination = Literal["new", "existing"]
Lie = Literal["inverted", "promoted", "near"]

STEPS = 64  # in which a gradual change goes on
NEVER = 2**62  # a round that no run reaches


@dataclass(frozen=True, kw_only=True)
class Change:
    """A share of each cluster comes to want something else, all of them the same.

    Abrupt, unless one of the last two is given.

    Args:
        at: the round from which on they do.
        share: of the users of each cluster.
        to: "new": what nobody wanted before; "existing": what the next cluster wants.
        until: gradual: they come nearer to it, step by step, until this round.
        every: recurring: after so many rounds they want again what they wanted first, and so on.
    """

    at: int
    share: float = 0.5
    to: Destination = "new"
    until: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        require_integer("change: at", self.at)
        SHARE.check("change: share", self.share)
        require_known("destination of a change", self.to, get_args(Destination))
        require(self.until is None or self.every is None, "a change is gradual (until) or recurring (every), not both")
        if self.until is not None:
            require_integer("change: until", self.until, self.at + 1)
        if self.every is not None:
            require_integer("change: every", self.every)

    def measure_progress(self, round_: int) -> float:
        """How far the change has gone in a round, from 0 to 1.

        >>> gradual, recurring = Change(at=101, until=165), Change(at=101, every=50)
        >>> [gradual.measure_progress(t) for t in (100, 101, 133, 165, 999)]
        [0.0, 0.0, 0.5, 1.0, 1.0]
        >>> [recurring.measure_progress(t) for t in (100, 101, 151, 201)]
        [0.0, 1.0, 0.0, 1.0]
        """
        if round_ < self.at:
            return 0.0
        if self.until is not None:
            return min(self._count_steps(round_, self.until), STEPS) / STEPS
        return 1.0 if self.every is None else float((round_ - self.at) // self.every % 2 == 0)

    def find_next(self, round_: int) -> int:
        """The first round after ``round_`` in which the progress may be another one."""
        if round_ < self.at:
            return self.at
        if self.until is not None:
            step = self._count_steps(round_, self.until) + 1
            return self.at - (step * (self.at - self.until) // STEPS) if step <= STEPS else NEVER
        return NEVER if self.every is None else round_ + self.every - (round_ - self.at) % self.every

    def _count_steps(self, round_: int, until: int) -> int:
        return (round_ - self.at) * STEPS // (until - self.at)


@dataclass(frozen=True, kw_only=True)
class Liars:
    """A share of all users who click as if they wanted something else; their regret does not count.

    Args:
        share: of all users.
        lie: "inverted": the opposite of what they want; "promoted": all of them the same, which nobody wants; "near":
            all of them nearly what the first cluster wants.
        since: the round from which on they lie; before it they are honest, as mimics are.
    """

    share: float
    lie: Lie = "inverted"
    since: int = 1

    def __post_init__(self) -> None:
        PROBABILITY.check("liars: share", self.share)
        require_known("lie", self.lie, get_args(Lie))
        require_integer("liars: since", self.since)


@dataclass(frozen=True, kw_only=True)
class Turnover:
    """A share of all users who come late, or who leave, one after another between two rounds.

    Args:
        share: of all users.
        since: the round after which the first of them comes or leaves.
        until: the round in which the last one does.
    """

    share: float
    since: int = 1
    until: int

    def __post_init__(self) -> None:
        PROBABILITY.check("turnover: share", self.share)
        require_integer("turnover: since", self.since)
        require_integer("turnover: until", self.until, self.since + 1)


@dataclass(frozen=True, kw_only=True)
class Life:
    """What happens to a population. The draws of an environment's seed say to whom.

    >>> Life(change=Change(at=50_000, to="existing"), liars=Liars(share=0.2)).change.share
    0.5
    """

    change: Change | None = None
    liars: Liars | None = None
    joins: Turnover | None = None
    leaves: Turnover | None = None

    def __post_init__(self) -> None:
        moving = sum(turnover.share for turnover in (self.joins, self.leaves) if turnover is not None)
        require(moving < 1, f"somebody must stay all the time: the shares of joins and leaves add up to {moving:g}")
