"""The server: takes an upload, answers with the pooled statistics of the agent's group (Algorithm 3)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require, require_integer
from fedcascade.federation.grouping.partition import KnownPartition, Labels, Partition
from fedcascade.federation.holdings import Holdings
from fedcascade.federation.messages import Download, Upload
from fedcascade.federation.policies import Order, Policy
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

STATE_FORMAT = 1
OWNER, PLACE = 0, 1  # columns of Server.ghosts
MOST_GHOSTS = 4  # of an agent that is told of its changes
MOST_GHOSTS_IN_ALL = 10_000


class Server:
    """Holds what agents uploaded, groups them, and answers those whom the policy names."""

    def __init__(self, *, policy: Policy, agents: int, dimension: int, truth: Labels | None = None) -> None:
        require_integer("agents", agents)
        require_integer("dimension", dimension)
        self.policy = policy
        self.holdings = Holdings(agents, dimension, policy.lambda_)
        self.groups = self._guard(policy.grouping.begin(self.holdings, truth))
        self.reply_state = policy.reply_rule.begin(self.groups)
        self.rounds = 0
        # Earlier selves of agents, whose data stay: the agent and the place of each, the oldest first. A ghost has a
        # place like an agent, and nobody uploads to it.
        self.ghosts = np.zeros((0, 2), np.int64)

    def to_state(self) -> dict[str, Any]:
        """What outlives a process, as values and arrays that this server goes on changing: encode or copy them.

        The policy and the dimension are not part of it.
        """
        return {
            "format": STATE_FORMAT,
            "rounds": self.rounds,
            "holdings": self.holdings.to_state(),
            "groups": self.groups.to_state(),
            "replies": self.reply_state.to_state(),
            **({"ghosts": self.ghosts} if self.policy.takes_resets else {}),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, policy: Policy, dimension: int) -> "Server":
        """The server of that policy and dimension whose ``to_state`` gave ``state``; it may change its arrays."""
        written = state["format"]
        require(written == STATE_FORMAT, f"the state of a server must have format {STATE_FORMAT}, got {written}")
        server = cls(policy=policy, agents=1, dimension=dimension, truth=np.zeros(1, np.int64))
        server.holdings = Holdings.from_state(state["holdings"], policy.lambda_)
        held = server.holdings.dimension
        require(held == dimension, f"the state of a server must have dimension {dimension}, got {held}")
        server.groups = server._guard(Partition.from_state(policy.grouping, server.holdings, state["groups"]))
        server.reply_state = policy.reply_rule.begin(server.groups)
        server.reply_state.load_state(state["replies"])
        server.rounds = state["rounds"]
        server._set_ghosts(state.get("ghosts", server.ghosts))
        return server

    def answer_arrival(self, agent: int) -> tuple[Download, ...]:
        """The downloads before an agent serves its user: none, unless the policy keeps agents up to date."""
        return self._answer_agents(self.reply_state.agents_due_on_arrival(agent))

    def agents_to_collect(self, upload: Upload) -> Sequence[int]:
        """The agents that must hand over their buffers together with this upload: none, or all others."""
        return self.reply_state.agents_to_collect(upload.agent)

    def receive(self, upload: Upload, *collected: Upload) -> tuple[Download, ...]:
        """Algorithm 3, after a check of what came; ``collected`` are the uploads of ``agents_to_collect``."""
        for message in (upload, *collected):
            self._check(message)
        return self.take(upload, *collected)

    def take(self, upload: Upload, *collected: Upload) -> tuple[Download, ...]:
        """Algorithm 3: add the upload, answer over the graph as it stood, then delete refuted edges.

        Nothing is checked: this is for uploads that were, before they were written to a log.
        """
        if upload.kept is not None:
            return self._part(upload, upload.kept)
        uploads = (upload, *collected)
        for message in uploads:
            self.rounds += message.statistics.rounds
        is_answered_first = self.policy.order is Order.AGGREGATE_FIRST
        if is_answered_first:
            downloads = self._answer_agents(self.reply_state.agents_due_after_upload(upload.agent))
        for message in uploads:
            self.holdings.add(message.agent, message.statistics)
            self.groups.add(message.agent, message.statistics)
            self.reply_state.record_upload(message)
        if not is_answered_first:
            downloads = self._answer_agents(self.reply_state.agents_due_after_upload(upload.agent))
        for message in uploads:
            self.groups.revise(message.agent)
        return downloads

    def _part(self, upload: Upload, kept: Statistics) -> tuple[Download, ...]:
        """Let an agent go on as a newcomer that has uploaded ``kept``; the rest of its data are those of a ghost."""
        agent = upload.agent
        old = self.holdings[agent] + upload.statistics - kept
        self.rounds += upload.statistics.rounds
        ghost = self._choose_ghost_place(agent) if old.count else None
        self.groups.begin_part(agent, ghost)
        if ghost is not None:
            self._make_ghost(agent, ghost, old)
        elif old.count:
            self.rounds -= old.rounds
        self.holdings.replace(agent, kept)
        self.groups.part(agent, ghost)
        self.reply_state.record_upload(upload)
        downloads = self._answer_agents(self.reply_state.agents_due_after_upload(agent))
        self.groups.revise(agent)
        return downloads

    def _choose_ghost_place(self, agent: int) -> int | None:
        """The place of one more ghost of an agent: a new one, or that of an older ghost; None if none is kept.

        An agent's oldest one gives way where it has enough. Where all agents together have too many, an agent that has
        some gives up its own: whoever resets often takes nothing from others.
        """
        most, own, is_full = self.most_ghosts, self.find_ghosts(agent), len(self.ghosts) >= MOST_GHOSTS_IN_ALL
        if most == 0:
            return None
        if len(own) >= most or (own and is_full):
            return own[0]
        return int(self.ghosts[0, PLACE]) if is_full else len(self.holdings)

    def _make_ghost(self, agent: int, place: int, old: Statistics) -> None:
        """Hold the data of an earlier self of an agent at a place."""
        if place == len(self.holdings):
            self.holdings.join()
        else:
            self.rounds -= int(self.holdings.rounds[place])
        self._set_ghosts(np.vstack([self.ghosts[self.ghosts[:, PLACE] != place], [agent, place]]))
        self.holdings.replace(place, old)

    def _set_ghosts(self, ghosts: NDArray[np.int64]) -> None:
        self.ghosts, self.groups.ghosts = ghosts, ghosts[:, PLACE]

    @property
    def most_ghosts(self) -> int:
        """How many earlier selves of an agent are kept."""
        return MOST_GHOSTS if self.policy.changes is None else self.policy.changes.ghosts

    def tell_cluster(self, agent: int, cluster: int) -> None:
        """Say to which true cluster an agent belongs from its next reset on, where the policy is told that."""
        if isinstance(self.groups, KnownPartition):
            self.groups.tell(agent, cluster)

    def find_ghosts(self, agent: int) -> list[int]:
        """The places of an agent's earlier selves, the oldest first."""
        places: list[int] = self.ghosts[self.ghosts[:, OWNER] == agent, PLACE].tolist()
        return places

    def _answer_agents(self, agents: Sequence[int]) -> tuple[Download, ...]:
        rounds, known, downloads = self.rounds, len(self.holdings) - len(self.ghosts), []
        trust = self.policy.trust
        for agent in agents:
            statistics = self._build_answer(agent)
            told = None if trust is None else self.groups.describe_groups(agent, trust.components)
            downloads.append(Download(agent=agent, statistics=statistics, rounds=rounds, agents=known, components=told))
        for download in downloads:
            self.reply_state.record_download(download.agent, download.statistics)
        return tuple(downloads)

    def answer(self, agent: int) -> Download:
        """The download of an agent as of now, as after an upload without content."""
        return self._answer_agents([agent])[0]

    def welcome(self, agent: int) -> Download | None:
        """What a newcomer of that number is told before its first list; None where nothing is known of anybody.

        Nothing changes: neither who shares with whom, nor what the next answers are.
        """
        known = self.groups.tell_newcomer()
        if known is None:
            return None
        agents, trust = len(self.holdings) - len(self.ghosts), self.policy.trust
        told = None if trust is None else self.groups.describe_groups(None, trust.components)
        return Download(agent=agent, statistics=known, rounds=self.rounds, agents=agents, components=told)

    def _build_answer(self, agent: int) -> Statistics:
        """The statistics of a download: those of the group, or what the policy's sharing lets in of them."""
        pooled, sharing = self.groups.answer(agent), self.policy.sharing
        return pooled if sharing is None else sharing.limit(self.holdings.view(agent), pooled)

    def _guard(self, groups: Partition) -> Partition:
        """Tell a partition what its answers may hold of others."""
        if self.policy.sharing is not None:
            groups.guard = self.policy.sharing.guard
        return groups

    def join(self) -> int:
        """Add an agent, in a group that the policy's grouping chooses; returns its number."""
        newcomer = self.holdings.join()
        self.groups.join()
        return newcomer

    def forget(self, agent: int) -> list[int]:
        """Remove an agent, its ghosts and all that it uploaded; returns the places that are gone, the last first.

        Each of them, in that order, is taken by whoever has the last place then, so that nobody else moves.
        """
        gone = sorted([agent, *self.find_ghosts(agent)], reverse=True)
        self._set_ghosts(self.ghosts[self.ghosts[:, OWNER] != agent])
        for place in gone:
            self.rounds -= int(self.holdings.rounds[place])
            self.holdings.forget(place)
            self.groups.forget(place)
            self.ghosts[self.ghosts == len(self.holdings)] = place
        return gone

    def _check(self, upload: Upload) -> None:
        """Refuse a bad upload before anything has changed."""
        agents = len(self.holdings)
        require(0 <= upload.agent < agents, f"an upload must come from an agent in 0..{agents - 1}, got {upload.agent}")
        upload.statistics.check(self.holdings.dimension)
        Ridge(upload.statistics, self.policy.lambda_)
        if upload.kept is not None:
            self._check_reset(upload, upload.kept)

    def _check_reset(self, upload: Upload, kept: Statistics) -> None:
        """Refuse a reset that the policy does not take, or that keeps what was never uploaded."""
        require(self.policy.takes_resets, f"{self.policy.name} takes no resets: an upload must be without 'kept'")
        is_agent = upload.agent not in self.ghosts[:, PLACE]
        require(is_agent, f"an upload must come from an agent, and {upload.agent} is the place of an earlier self")
        old = self.holdings[upload.agent] + upload.statistics - kept
        for part in (kept, old):
            part.check(self.holdings.dimension)
            Ridge(part, self.policy.lambda_)
