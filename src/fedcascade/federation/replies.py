"""Reply rules: which agents get a download, and when.

A ``ReplyRule`` is a frozen part of a policy; ``begin`` creates its state at one server, a ``ReplyState``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcascade.constants import Part, constant
from fedcascade.federation.grouping.partition import Partition
from fedcascade.federation.holdings import Restorable
from fedcascade.federation.messages import PUSH_RATIO, Cause, Downloads, Messages, Upload
from fedcascade.learning.ridge import compute_log_det
from fedcascade.learning.statistics import Statistics


class ReplyRule(Part):
    """A part of a policy that decides which agents are answered, and what counts as an exchange."""

    agents: ClassVar[str]  # the column of the paper's Table 1
    download_cause: ClassVar[Cause | None] = None  # set if a download counts as an exchange of its own
    answers_uploads: ClassVar[bool] = False  # otherwise an agent keeps its uploads in its own statistics
    answers_arrivals: ClassVar[bool] = False  # answers when the user arrives instead of after an upload
    delays_pushes: ClassVar[bool] = False  # an agent uses a push only after it has learned from its next list
    synchronises: ClassVar[bool] = False  # an upload makes all agents upload and download
    single_learner: ClassVar[bool] = False

    def begin(self, groups: Partition) -> "ReplyState":
        """Return the state before the first upload."""
        return ReplyState(self, groups)

    def keep_unanswered(self, known: Statistics, upload: Statistics) -> Statistics | None:
        """Return an agent's statistics after an upload that gets no answer; None if it gets one."""
        return None if self.answers_uploads else known + upload


class ReplyState(Restorable):
    """The state of a reply rule at one server; by default there is none."""

    state_label = "replies"

    def __init__(self, rule: ReplyRule, groups: Partition) -> None:
        self.rule, self.groups = rule, groups

    def agents_due_on_arrival(self, agent: int) -> Sequence[int]:
        """Return the agents that get a download before the user of ``agent`` is served."""
        return (agent,) if self.rule.answers_arrivals else ()

    def agents_to_collect(self, asker: int) -> Sequence[int]:
        """Return the agents that must upload their buffers together with ``asker``."""
        return [agent for agent in range(self.groups.labels.size) if agent != asker] if self.rule.synchronises else ()

    def record_upload(self, agent: int, statistics: Statistics) -> None:
        """Record an upload."""

    def agents_due_after_upload(self, asker: int) -> Sequence[int]:
        """Return the agents that get a download after an upload of ``asker``."""
        if self.rule.synchronises:
            return range(self.groups.labels.size)
        return () if self.rule.answers_arrivals else (asker,)

    def record_download(self, agent: int, statistics: Statistics) -> None:
        """Record a download."""

    def select_counted(self, uploads: tuple[Upload, ...], downloads: Downloads) -> Messages:
        """Return the messages of an exchange that count: those between tiers of servers, or else all."""
        return self.groups.take_tier_messages() or (uploads, downloads)


@dataclass(frozen=True)
class Asker(ReplyRule):
    """Answers to the uploading agent only: asynchronous, as in the paper."""

    agents: ClassVar[str] = "asynchronous"
    answers_uploads: ClassVar[bool] = True


@dataclass(frozen=True)
class OneLearner(ReplyRule):
    """One learner for all users: no exchanges."""

    agents: ClassVar[str] = "single"
    single_learner: ClassVar[bool] = True


@dataclass(frozen=True)
class OnArrival(ReplyRule):
    """A download when the user arrives and an upload after serving it: one exchange per round."""

    agents: ClassVar[str] = "synchronous"
    answers_arrivals: ClassVar[bool] = True


@dataclass(frozen=True)
class LocalServers(ReplyRule):
    """The rule for ``SplitAndMerge``: exchanges with a local server are free, messages between servers count."""

    agents: ClassVar[str] = "partly asynchronous"
    download_cause: ClassVar[Cause | None] = Cause.PUSH
    answers_arrivals: ClassVar[bool] = True


@dataclass(frozen=True)
class AllAgents(ReplyRule):
    """Global synchronisation: all agents upload their buffers, then all download."""

    agents: ClassVar[str] = "synchronous"
    download_cause: ClassVar[Cause | None] = Cause.SYNCHRONISATION
    answers_uploads: ClassVar[bool] = True
    synchronises: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Lagging(ReplyRule):
    """Pushes to agents that are behind: det(pooled) > gamma_d det(known to the agent).

    As in the authors' code, an agent recomputes its estimate when it learns from a list, not when a push arrives.
    """

    agents: ClassVar[str] = "partly asynchronous"
    download_cause: ClassVar[Cause | None] = Cause.PUSH
    delays_pushes: ClassVar[bool] = True
    gamma_d: float = constant(5.0, symbol="gamma_D", **PUSH_RATIO)

    def begin(self, groups: Partition) -> ReplyState:
        return _LaggingReplies(self, groups)


class _LaggingReplies(ReplyState):
    """The gram that each agent knows (its last download and its uploads since), and its ln det."""

    state_names = ("known", "log_det")

    def __init__(self, rule: Lagging, groups: Partition) -> None:
        super().__init__(rule, groups)
        self.level = math.log(rule.gamma_d)
        held = groups.holdings
        self.known = np.zeros_like(held.gram)
        self.log_det = np.full(len(held), compute_log_det(self.known[0], held.lambda_))
        self._last_log_det = self.known[0], float(self.log_det[0])

    def record_upload(self, agent: int, statistics: Statistics) -> None:
        self._record_known(agent, self.known[agent] + statistics.gram)

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
        """Compute ln det(lambda I + gram), cached for the last gram: agents of a group get the same one."""
        if gram is not self._last_log_det[0]:
            self._last_log_det = gram, compute_log_det(gram, self.groups.holdings.lambda_)
        return self._last_log_det[1]
