"""Triggers: when an agent uploads."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedcascade.checks import NONNEGATIVE, whole_numbers
from fedcascade.constants import Part, constant
from fedcascade.federation.messages import UPLOAD_RATIO, Cause
from fedcascade.learning.confidence import ALPHA_C
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit_inline


class Occasion(NamedTuple):
    """The input of a trigger at the end of an agent's round."""

    round: int  # t
    draw: float  # the round's uniform number
    arrivals: int  # of the agent's user
    download: Ridge  # the last one
    buffer: Statistics  # data since then


class Trigger(Part, ABC):
    """A rule for when to upload. Triggers combine with ``|``; the first that fires is the cause."""

    is_scheduled: ClassVar[bool] = False  # whether the rounds of uploads do not depend on data

    @property
    def least(self) -> int:
        """Fewest observations in an upload of any cause."""
        return 0

    def list_joined(self) -> "list[Trigger]":
        """Return the triggers that ``|`` joins in this one, in order."""
        return [self]

    @abstractmethod
    def cause(self, occasion: Occasion) -> Cause | None:
        """Return the cause of an upload now, or None."""

    def __or__(self, other: "Trigger") -> "Trigger":
        return AnyOf(first=self, second=other)


@dataclass(frozen=True, kw_only=True)
class AnyOf(Trigger):
    """A trigger that fires when one of two does."""

    first: Trigger
    second: Trigger

    def list_joined(self) -> list[Trigger]:
        return self.first.list_joined() + self.second.list_joined()

    def cause(self, occasion: Occasion) -> Cause | None:
        return self.first.cause(occasion) or self.second.cause(occasion)


class Growth(Trigger):
    """A trigger that fires when the log-determinant has grown by more than a level."""

    @property
    @abstractmethod
    def level(self) -> float:
        """Growth of the log-determinant at which it fires."""

    def cause(self, occasion: Occasion) -> Cause | None:
        return Cause.DETERMINANT if occasion.download.growth(occasion.buffer) > self.level else None


@dataclass(frozen=True, kw_only=True)
class Determinant(Growth):
    """Algorithm 2, line 13, first half: det(Sigma + Sigma_loc) > (1 + alpha_c) det(Sigma)."""

    alpha_c: float = constant(1.0, **ALPHA_C)

    @property
    def level(self) -> float:
        return math.log1p(self.alpha_c)


@dataclass(frozen=True, kw_only=True)
class Ratio(Growth):
    """Async-LinUCB: det(A) > gamma_u det(A - buffer). With 1 an agent always uploads, with inf never."""

    gamma_u: float = constant(5.0, symbol="gamma_U", **UPLOAD_RATIO)

    @property
    def level(self) -> float:
        return math.log(self.gamma_u)


@dataclass(frozen=True, kw_only=True)
class SyncBudget(Trigger):
    """DisLinUCB: n ln(det(A) / det(A - buffer)) >= D, with n items examined since the last synchronisation."""

    budget: float = constant(
        1.0,
        meaning="items since the last synchronisation, times growth of the log-determinant, that cause the next one",
        symbol="D",
        range=NONNEGATIVE,
    )

    def cause(self, occasion: Occasion) -> Cause | None:
        spent = occasion.buffer.count * occasion.download.growth(occasion.buffer)
        return Cause.SYNCHRONISATION if spent >= self.budget else None


@jit_inline
def compute_auxiliary_probability(p_scale: float, round_: int) -> float:
    """Return p_t = p_scale ln(t) / t, at most 1."""
    return min(1.0, p_scale * log(float(round_)) / round_)


@dataclass(frozen=True, kw_only=True)
class Auxiliary(Trigger):
    """Algorithm 2, line 13, second half: p < p_t."""

    is_scheduled: ClassVar[bool] = True

    p_scale: float = constant(
        3.0, meaning="scale of the random exchanges: p_t = scale ln(t) / t", symbol="p_t", range=NONNEGATIVE
    )

    def probability(self, round_: int) -> float:
        return float(compute_auxiliary_probability(float(self.p_scale), round_))

    def cause(self, occasion: Occasion) -> Cause | None:
        return Cause.AUXILIARY if occasion.draw < self.probability(occasion.round) else None


@dataclass(frozen=True)
class Doubling(Trigger):
    """ForceComm: the 1st, 2nd, 4th, 8th, ... arrival of the agent's user."""

    is_scheduled: ClassVar[bool] = True

    def cause(self, occasion: Occasion) -> Cause | None:
        return Cause.FORCED if occasion.arrivals & (occasion.arrivals - 1) == 0 else None


@dataclass(frozen=True)
class Always(Trigger):
    """An upload in every round."""

    is_scheduled: ClassVar[bool] = True

    def cause(self, occasion: Occasion) -> Cause | None:  # noqa: ARG002
        return Cause.FORCED


@dataclass(frozen=True, kw_only=True)
class AtLeast(Trigger):
    """A trigger that waits for a number of observations: an upload of a single one would disclose it."""

    trigger: Trigger
    observations: int = constant(meaning="fewest observations in an upload", range=whole_numbers(0))

    @property
    def least(self) -> int:
        return self.observations

    def cause(self, occasion: Occasion) -> Cause | None:
        return self.trigger.cause(occasion) if occasion.buffer.count >= self.observations else None


@dataclass(frozen=True)
class Never(Trigger):
    """No uploads."""

    def cause(self, occasion: Occasion) -> Cause | None:  # noqa: ARG002
        return None
