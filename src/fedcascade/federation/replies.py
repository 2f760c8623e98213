"""Reply rules: which agents get a download, and when.

A ``ReplyRule`` is a frozen part of a policy; ``begin`` starts its state at one server, a ``ReplyState``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import RATIO
from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.partition import Partition
from fedcascade.federation.grouping.phases import PhasePartition
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.learning.ridge import compute_log_det
from fedcascade.learning.statistics import Statistics


class ReplyState:
    """Which agents a server collects from and answers; this one answers whoever uploads, and nobody else."""

    state_names: ClassVar[tuple[str, ...]] = ()  # the attributes that outlive a process

    def __init__(self, groups: Partition) -> None:
        self.groups = groups

    def to_state(self) -> dict[str, Any]:
        """What outlives a process, as arrays that this state goes on changing; nothing where nothing is remembered."""
        return {name: getattr(self, name) for name in self.state_names}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``to_state`` gave."""
        for name in self.state_names:
            setattr(self, name, state[name])

    def agents_due_on_arrival(self, agent: int) -> Sequence[int]:  # noqa: ARG002
        """The agents that get a download before the user of ``agent`` is served."""
        return ()

    def agents_to_collect(self, asker: int) -> Sequence[int]:  # noqa: ARG002
        """The agents that must send their buffers together with an upload of ``asker``."""
        return ()

    def record_upload(self, upload: Upload) -> None:
        """Note that an agent has uploaded."""

    def agents_due_after_upload(self, asker: int) -> Sequence[int]:
        """The agents that get a download after an upload of ``asker``."""
        return (asker,)

    def record_download(self, agent: int, statistics: Statistics) -> None:
        """Note that an agent was sent these statistics."""

    def select_counted(
        self, uploads: tuple[Upload, ...], downloads: tuple[Download, ...]
    ) -> tuple[tuple[Upload, ...], tuple[Download, ...]]:
        """Of the messages of one exchange, those that count; all of them, where agents and server are far apart."""
        return uploads, downloads


class ReplyRule(Part):
    """A part of a policy that says who is answered. It also decides what counts as an exchange.

    ``agents`` is the word of the paper's Table 1. ``download_cause`` is the cause under which a download counts as an
    exchange by itself; None where an upload and its download count as one. ``answers_uploads`` says whether an agent
    that uploads is answered; if not, what it sent stays with what it knows.
    """

    agents: ClassVar[str]
    download_cause: ClassVar[Cause | None] = None
    answers_uploads: ClassVar[bool] = False
    single_learner: ClassVar[bool] = False

    def begin(self, groups: Partition) -> ReplyState:
        """The state before the first upload; one that remembers nothing unless a rule has its own."""
        return ReplyState(groups)

    def keep_unanswered(self, known: Statistics, upload: Statistics) -> Statistics | None:
        """What an agent knows after an upload that nobody answers: all of it stays. None where an answer comes."""
        return None if self.answers_uploads else known + upload


@dataclass(frozen=True)
class Asker(ReplyRule):
    """The agent that uploads, and nobody else: asynchronous, as in the paper."""

    agents: ClassVar[str] = "asynchronous"
    answers_uploads: ClassVar[bool] = True


@dataclass(frozen=True)
class OneLearner(ReplyRule):
    """One learner serves all users, so there is nobody to answer and nothing to count."""

    agents: ClassVar[str] = "single"
    single_learner: ClassVar[bool] = True


@dataclass(frozen=True)
class OnArrival(ReplyRule):
    """An agent asks when its user arrives and uploads when it has served it: up to date, one exchange a round."""

    agents: ClassVar[str] = "synchronous"

    def begin(self, groups: Partition) -> ReplyState:
        return _ArrivalReplies(groups)


class _ArrivalReplies(ReplyState):
    """Answers an agent when its user arrives, and nobody after an upload."""

    def agents_due_on_arrival(self, agent: int) -> Sequence[int]:
        return (agent,)

    def agents_due_after_upload(self, asker: int) -> Sequence[int]:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class LocalServers(ReplyRule):
    """Agents ask and tell a local server in every round, for free; what it and a global server exchange counts.

    It goes with ``SplitAndMerge``, which knows the local servers.
    """

    agents: ClassVar[str] = "partly asynchronous"
    download_cause: ClassVar[Cause | None] = Cause.PUSH

    def begin(self, groups: Partition) -> ReplyState:
        return _LocalReplies(groups)


class _LocalReplies(_ArrivalReplies):
    """Answers an agent when its user arrives; counts what crossed between local servers and the global one."""

    def select_counted(
        self, uploads: tuple[Upload, ...], downloads: tuple[Download, ...]
    ) -> tuple[tuple[Upload, ...], tuple[Download, ...]]:
        return self.groups.take_crossings() if isinstance(self.groups, PhasePartition) else (uploads, downloads)


@dataclass(frozen=True)
class Everybody(ReplyRule):
    """A global synchronisation: every agent hands over its buffer, then every agent is told."""

    agents: ClassVar[str] = "synchronous"
    download_cause: ClassVar[Cause | None] = Cause.SYNCHRONISATION
    answers_uploads: ClassVar[bool] = True

    def begin(self, groups: Partition) -> ReplyState:
        return _SynchronisedReplies(groups)


class _SynchronisedReplies(ReplyState):
    """Collects from all agents and answers all of them."""

    def agents_to_collect(self, asker: int) -> Sequence[int]:
        return [agent for agent in self.agents_due_after_upload(asker) if agent != asker]

    def agents_due_after_upload(self, asker: int) -> Sequence[int]:  # noqa: ARG002
        return range(self.groups.labels.size)


@dataclass(frozen=True, kw_only=True)
class Lagging(ReplyRule):
    """The server pushes to every agent that misses too much: det(pooled) > gamma_d det(what the agent knows)."""

    agents: ClassVar[str] = "partly asynchronous"
    download_cause: ClassVar[Cause | None] = Cause.PUSH
    gamma_d: float = constant(
        5.0,
        meaning="the server pushes to whose determinant is behind by more than this ratio",
        symbol="gamma_D",
        range=RATIO,
    )

    def begin(self, groups: Partition) -> ReplyState:
        return _LaggingReplies(groups, math.log(self.gamma_d))


class _LaggingReplies(ReplyState):
    """The gram that each agent knows, its last download and its uploads since, and ln det of it."""

    state_names = ("known", "log_det")

    def __init__(self, groups: Partition, level: float) -> None:
        super().__init__(groups)
        self.level = level
        held = groups.holdings
        self.known = np.zeros_like(held.gram)
        self.log_det = np.full(len(held), compute_log_det(self.known[0], held.lambda_))
        self._last_log_det = self.known[0], float(self.log_det[0])

    def record_upload(self, upload: Upload) -> None:
        self._record_known(upload.agent, self.known[upload.agent] + upload.statistics.gram)

    def agents_due_after_upload(self, asker: int) -> Sequence[int]:
        groups = self.groups
        behind = self._log_det(groups.pooled(asker).gram) - self.log_det > self.level
        in_group = groups.labels == groups.labels[asker]
        due: list[int] = np.flatnonzero((behind & in_group) | groups.regrouped).tolist()
        return due

    def record_download(self, agent: int, statistics: Statistics) -> None:
        self.groups.regrouped[agent] = False
        self._record_known(agent, statistics.gram)

    def _record_known(self, agent: int, gram: NDArray[np.float64]) -> None:
        self.known[agent] = gram
        self.log_det[agent] = self._log_det(gram)

    def _log_det(self, gram: NDArray[np.float64]) -> float:
        """ln det(lambda I + gram); that of the last gram is remembered, because agents of a group get the same one."""
        if gram is not self._last_log_det[0]:
            self._last_log_det = gram, compute_log_det(gram, self.groups.holdings.lambda_)
        return self._last_log_det[1]
