"""Answers: who is told what the server knows, and when.

An ``Answers`` is a frozen part of a policy; ``begin`` starts its state at one server, an ``Audience``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import ratio
from fedcascade.federation.grouping.partition import Groups
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.ridge import log_det
from fedcascade.learning.statistics import Statistics


class Audience:
    """Whom a server turns to; this one answers whoever uploads, and nobody else."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def greeted(self, agent: int) -> Sequence[int]:  # noqa: ARG002
        """Who is told before the user of ``agent`` is served."""
        return ()

    def called(self, asker: int) -> Sequence[int]:  # noqa: ARG002
        """Who has to hand over a buffer before an upload of ``asker`` is taken in."""
        return ()

    def heard(self, upload: Upload) -> None:
        """Note that an agent has told what it learned."""

    def due(self, asker: int) -> Sequence[int]:
        """Who is told after an upload of ``asker``."""
        return (asker,)

    def told(self, agent: int, statistics: Statistics) -> None:
        """Note that an agent was told."""


class Answers(ABC):
    """A part of a policy that says who is answered. It also decides what counts as an exchange.

    ``agents`` is the word of the paper's Table 1. ``alone`` is the cause under which a download counts as an
    exchange by itself; None where an upload and its download count as one. ``replies`` says whether an agent
    that uploads is answered; if not, what it sent stays with what it knows.
    """

    agents: ClassVar[str]
    alone: ClassVar[Cause | None] = None
    replies: ClassVar[bool] = False
    one_learner: ClassVar[bool] = False

    @abstractmethod
    def begin(self, groups: Groups) -> Audience:
        """The state before the first upload."""


@dataclass(frozen=True)
class Asker(Answers):
    """The agent that uploads, and nobody else: asynchronous, as in the paper."""

    agents: ClassVar[str] = "asynchronous"
    replies: ClassVar[bool] = True

    def begin(self, groups: Groups) -> Audience:
        """Nothing to remember."""
        return Audience(groups)


@dataclass(frozen=True)
class OneLearner(Answers):
    """One learner serves all users, so there is nobody to answer and nothing to count."""

    agents: ClassVar[str] = "single"
    one_learner: ClassVar[bool] = True

    def begin(self, groups: Groups) -> Audience:
        """Nothing to remember."""
        return Audience(groups)


@dataclass(frozen=True)
class OnArrival(Answers):
    """An agent asks when its user arrives and uploads when it has served it: up to date, one exchange a round."""

    agents: ClassVar[str] = "synchronous"

    def begin(self, groups: Groups) -> Audience:
        """Nothing to remember."""
        return _Fetched(groups)


class _Fetched(Audience):
    def greeted(self, agent: int) -> Sequence[int]:
        return (agent,)

    def due(self, asker: int) -> Sequence[int]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class Everybody(Answers):
    """A global synchronisation: every agent hands over its buffer, then every agent is told."""

    agents: ClassVar[str] = "synchronous"
    alone: ClassVar[Cause | None] = Cause.SYNCHRONISATION
    replies: ClassVar[bool] = True

    def begin(self, groups: Groups) -> Audience:
        """Nothing to remember."""
        return _All(groups)


class _All(Audience):
    def called(self, asker: int) -> Sequence[int]:
        return [agent for agent in self.due(asker) if agent != asker]

    def due(self, asker: int) -> Sequence[int]:  # noqa: ARG002
        return range(self.groups.labels.size)


@dataclass(frozen=True, kw_only=True)
class Lagging(Answers):
    """The server pushes to every agent that misses too much: det(pooled) > gamma_d det(what the agent knows)."""

    agents: ClassVar[str] = "partly asynchronous"
    alone: ClassVar[Cause | None] = Cause.PUSH
    gamma_d: float = 5.0

    def __post_init__(self) -> None:
        ratio("gamma_d", self.gamma_d)

    def begin(self, groups: Groups) -> Audience:
        """Nobody knows anything."""
        return _Behind(groups, math.log(self.gamma_d))


class _Behind(Audience):
    """What each agent knows: its last push and what it uploaded since."""

    def __init__(self, groups: Groups, level: float) -> None:
        super().__init__(groups)
        self.level = level
        held = groups.holdings
        self.known = np.zeros_like(held.gram)
        self.log_det = np.full(len(held), log_det(self.known[0], held.lambda_))
        self._looked_at = self.known[0], float(self.log_det[0])

    def heard(self, upload: Upload) -> None:
        self._knows(upload.agent, self.known[upload.agent] + upload.statistics.gram)

    def due(self, asker: int) -> Sequence[int]:
        groups = self.groups
        label = groups.labels[asker]
        behind = self._log_det(groups.pooled(asker).gram) - self.log_det > self.level
        due: list[int] = np.flatnonzero((behind & (groups.labels == label)) | groups.regrouped).tolist()
        return due

    def told(self, agent: int, statistics: Statistics) -> None:
        self.groups.regrouped[agent] = False
        self._knows(agent, statistics.gram)

    def _knows(self, agent: int, gram: NDArray[np.float64]) -> None:
        self.known[agent] = gram
        self.log_det[agent] = self._log_det(gram)

    def _log_det(self, gram: NDArray[np.float64]) -> float:
        """Of the matrix that was looked at last, from memory: all agents of a group are told the same one."""
        if gram is not self._looked_at[0]:
            self._looked_at = gram, log_det(gram, self.groups.holdings.lambda_)
        return self._looked_at[1]
