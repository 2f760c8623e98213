"""The server: answers an upload with the pooled statistics of the agent's group (Algorithm 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcascade.checks import require, require_integer
from fedcascade.federation.grouping.partition import Labels
from fedcascade.federation.holdings import Holdings, require_alike, require_places
from fedcascade.federation.messages import Cause, Downloads, Upload
from fedcascade.federation.policies import Order, Policy
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

STATE_FORMAT = 1
LARGEST_LABEL = 1 << 24  # of restored groups, beside four per agent


class Server:
    """The uploads of all agents, their groups, and the answers of a policy."""

    def __init__(self, *, policy: Policy, agents: int, dimension: int, truth: Labels | None = None) -> None:
        require_integer("agents", agents)
        require_integer("dimension", dimension)
        self.policy = policy
        self.holdings = Holdings(agents, dimension, policy.lambda_)
        self.groups = policy.grouping.begin(self.holdings, truth)
        if policy.sharing is not None:
            self.groups.guard = policy.sharing
        self.reply_state = policy.reply_rule.begin(self.groups)
        self.rounds = 0

    def to_state(self) -> dict[str, Any]:
        """Return the state as values and live arrays, without policy and dimension: encode or copy it at once."""
        return {
            "format": STATE_FORMAT,
            "rounds": self.rounds,
            "holdings": self.holdings.to_state(),
            "groups": self.groups.to_state(),
            "replies": self.reply_state.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, policy: Policy, dimension: int) -> "Server":
        """Restore a server from ``to_state``; it takes over the arrays.

        Raise ValueError for an invalid state: compiled code trusts shapes, places and numbers.
        """
        written = state["format"]
        require(written == STATE_FORMAT, f"the state of a server must have format {STATE_FORMAT}, got {written}")
        agents, held = state["holdings"]["moment"].shape
        require(held == dimension, f"its dimension must be {held}, got {dimension}")
        require_integer("agents", agents)
        require_integer("rounds", state["rounds"], 0)
        labels = state["groups"]["labels"]
        require_alike("groups.labels", labels, np.zeros(agents, np.int64))
        require_places("groups.labels", labels, LARGEST_LABEL + 4 * agents)
        server = cls(policy=policy, agents=agents, dimension=dimension, truth=labels)
        server.holdings.load_state(state["holdings"])
        server.groups.load_state(state["groups"])
        server.groups.check_state()
        server.reply_state.load_state(state["replies"])
        server.rounds = state["rounds"]
        return server

    def answer_arrival(self, agent: int) -> Downloads:
        """Return the downloads that the policy sends before an agent serves its user."""
        return self._answer_agents(self.reply_state.agents_due_on_arrival(agent))

    def agents_to_collect(self, upload: Upload) -> Sequence[int]:
        """Return the agents that must upload their buffers together with this upload: none, or all others."""
        return self.reply_state.agents_to_collect(upload.agent)

    def receive(self, upload: Upload, *collected: Upload) -> Downloads:
        """Check uploads and run Algorithm 3; ``collected`` are the uploads of ``agents_to_collect``."""
        for message in (upload, *collected):
            self._check(message)
        return self.take(upload, *collected)

    def take(self, upload: Upload, *collected: Upload) -> Downloads:
        """Run Algorithm 3 on checked uploads: add them, answer by the present groups, then revise the groups."""
        if upload.cause is Cause.CHANGE:  # drop all uploads of the agent, and treat it as a newcomer
            self.rounds -= int(self.holdings.rounds[upload.agent])
            self.holdings.clear(upload.agent)
            self.groups.restart(upload.agent)
        uploads = (upload, *collected)
        if self.policy.privacy is not None:
            uploads = (replace(upload, statistics=self.policy.privacy.discount(upload.statistics)),)
        for message in uploads:
            self.rounds += message.statistics.rounds
        is_answered_first = self.policy.order is Order.AGGREGATE_FIRST
        if is_answered_first:
            downloads = self._answer_agents(self.reply_state.agents_due_after_upload(upload.agent))
        for message in uploads:
            self.holdings.add(message.agent, message.statistics)
            self.groups.add(message.agent, message.statistics)
            self.reply_state.record_upload(message.agent, message.statistics)
        if not is_answered_first:
            downloads = self._answer_agents(self.reply_state.agents_due_after_upload(upload.agent))
        for message in uploads:
            self.groups.revise(message.agent)
        return downloads

    def _answer_agents(self, agents: Sequence[int]) -> Downloads:
        downloads = tuple((agent, self._build_answer(agent)) for agent in agents)
        for agent, statistics in downloads:
            self.reply_state.record_download(agent, statistics)
        return downloads

    def answer(self, agent: int) -> Statistics:
        """Return the download that an empty upload of ``agent`` would get now."""
        return self._answer_agents([agent])[0][1]

    def _build_answer(self, agent: int) -> Statistics:
        """Return the statistics of a download, limited by the policy's sharing."""
        pooled, sharing = self.groups.answer(agent), self.policy.sharing
        if self.policy.privacy is not None:  # the agent has its own data without noise
            own = self.holdings.view(agent)
            return replace(pooled, gram=pooled.gram - own.gram, moment=pooled.moment - own.moment)
        if sharing is None or self.policy.trust is not None:
            return pooled
        return sharing.limit(self.holdings.view(agent), pooled)

    def join(self) -> int:
        """Add an agent to a group that the grouping chooses, and return its number."""
        newcomer = self.holdings.join()
        self.groups.join()
        return newcomer

    def forget(self, agent: int) -> None:
        """Remove an agent and all its uploads; the last agent takes its place."""
        self.rounds -= int(self.holdings.rounds[agent])
        self.holdings.forget(agent)
        self.groups.forget(agent)

    def _check(self, upload: Upload) -> None:
        """Reject a bad upload before the state changes."""
        agents = len(self.holdings)
        require(0 <= upload.agent < agents, f"an upload must come from an agent in 0..{agents - 1}, got {upload.agent}")
        upload.statistics.check(self.holdings.dimension)
        if self.policy.privacy is not None:
            self.policy.privacy.check(upload.statistics, self.holdings.dimension)
        else:
            Ridge(upload.statistics, self.policy.lambda_)
