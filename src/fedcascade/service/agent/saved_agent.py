"""An agent with its memory on disk: what happens to it is saved in the same step. Nothing here waits for a network."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from types import EllipsisType
from typing import SupportsIndex

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import read_index, require
from fedcascade.federation.agent import OPEN_LISTS, Agent, ShownList
from fedcascade.federation.messages import Download, Upload
from fedcascade.federation.policies import Policy
from fedcascade.learning.cascade import examine
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.feedback import Positions, read_positions
from fedcascade.service.agent.ledger import Ledger, check_standing
from fedcascade.service.agent.local_store import LocalStore, RoundEstimate
from fedcascade.service.protocol import wire

FollowTerms = Callable[[wire.Terms], tuple[Policy, int]]


class SavedAgent:
    """A ``federation.Agent`` with its ledger and the server's welcome, in a local store.

    Two threads use it: the user's, and the one that exchanges. Each method holds ``changed``, and notifies who waits.
    """

    def __init__(
        self, store: LocalStore, welcome: wire.Welcome, *, follow_terms: FollowTerms, oracle: Oracle | None,
        problem: ProblemSize | None,
    ) -> None:  # fmt: skip
        self.changed = threading.Condition()
        self.is_closed = False
        self.dimension = welcome.terms.dimension
        self.welcome = welcome
        self.ledger = Ledger(store, welcome.agent, self.dimension)
        self.store, self._follow_terms, self._oracle, self._problem = store, follow_terms, oracle, problem
        policy, self.floor = follow_terms(welcome.terms)
        self.agent, self._round_estimate = self._load_agent(policy)

    def recommend(
        self,
        items: ArrayLike,
        k: int = 4,
        *,
        categories: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        ties: NDArray[np.uint32] | None = None,
    ) -> ShownList:
        """Choose a list. Its ``impression`` is the number to give feedback for, and stays valid for long.

        Args:
            items: one row of features per item, each of length at most 1. They are rounded to the grid.
            k: how many items to show, another number each time if you like; ``connect(oracle=...)`` has its own.
            categories: a whole number per item, for the oracle ``PerCategory``.
            costs: a number per item, for the oracle ``Budget``.
            ties: a random word per item, by which equal scores are ordered; drawn if None.
        """
        offered = round_to_grid(items)
        words = np.frombuffer(random.randbytes(4 * len(offered)), np.uint32) if ties is None else ties
        with self.changed:
            self._require_open()
            self.agent.oracle = self._oracle or TopK(length=read_index("k", k))
            length, longest = self.agent.oracle.length, self.welcome.terms.longest_list
            require(length <= longest, f"a list of this server has at most {longest} items, got k = {length}")
            self.agent.set_problem_size(self._problem or self._estimate_problem_size(self.agent.oracle.length))
            shown = self.agent.recommend(offered, words, categories=categories, costs=costs)
            with self.store.transaction():
                self.store.add_open_list(shown, shown.impression - OPEN_LISTS)
                self._save_counters()
            return shown

    def feedback(
        self,
        impression: ShownList | SupportsIndex,
        clicked: Positions | EllipsisType = ...,
        *,
        clicked_item: Positions | EllipsisType = ...,
        looked_until: int | None = None,
        round_: int | None = None,
        draw: float | None = None,
    ) -> Upload | None:
        """Learn from a list. Returns the upload that will be sent, if this round triggers one.

        What the user looked at counts, and what was clicked of it counts as liked: all positions up to the last
        click, up to ``looked_until`` where that is given, and the whole list where there is neither.

        Args:
            impression: the list, or its number.
            clicked: the position that was clicked, counted from 0, or several; None if nothing was.
            clicked_item: instead of ``clicked``, rows of the items that ``recommend`` was given.
            looked_until: the last position that the user looked at, where you know it.
            round_: t, where the caller knows it; extrapolated from the last download if None.
            draw: the round's uniform number; drawn if None.
        """
        with self.changed:
            self._require_open()
            shown = self._get_open_list(impression)
            places = read_positions(shown.items.tolist(), clicked, clicked_item)
            until = None if looked_until is None else read_index("looked_until", looked_until)
            estimate = replace(self._round_estimate, arrivals_since=self._round_estimate.arrivals_since + 1)
            upload = self.agent.observe(
                shown,
                examine(shown.items.size, places, until),
                round_=estimate.estimate_round(self.agent.arrivals) if round_ is None else round_,
                draw=random.random() if draw is None else draw,
            )
            self._round_estimate = estimate
            with self.store.transaction():
                self.store.delete_open_list(shown.impression)
                self.store.save_statistics("buffer", self.agent.buffer)
                self._save_counters()
                if upload is not None:
                    self.ledger.add(upload)
            self.changed.notify_all()
            return upload

    @property
    def id(self) -> int:
        """The number under which the server knows this agent."""
        return self.welcome.agent

    @property
    def unsent(self) -> int:
        return len(self.ledger.outbox)

    @property
    def lost(self) -> int:
        return self.ledger.lost

    @property
    def buffered(self) -> int:
        """How many observations wait for an upload."""
        return self.agent.buffer.count

    @property
    def estimate(self) -> NDArray[np.float64]:
        """Theta, as this agent estimates it now."""
        return self.agent.decision.theta.copy()

    def skip_answer(self, upload: Upload, answer: wire.AnswerMessage | None) -> None:
        """Go on with what was known before and with the upload itself: the server has it, and its answer is broken."""
        known, estimate = self.agent.download.statistics + upload.statistics, self._round_estimate
        download = Download(agent=self.welcome.agent, statistics=known, rounds=estimate.rounds, agents=estimate.agents)
        self.receive(upload, download, answer)

    def receive(self, upload: Upload, download: Download, answer: wire.AnswerMessage | None) -> None:
        """Decide with a download from now on, and keep it in the place of the upload."""
        with self.changed:
            self.agent.receive(download, unanswered=self.ledger.sum_outbox(skip=1))
            self._round_estimate = RoundEstimate(download.rounds, download.agents, 0)
            with self.store.transaction():
                self.ledger.confirm(upload, answer)
                self.store.save_statistics("download", download.statistics)
                self._save_counters()
            self.changed.notify_all()

    def settle(self, standing: wire.Standing) -> str | None:
        """Go on from what the server holds of this agent, and send again what it has lost; returns what happened.

        Nothing happens while uploads wait: they come first, so that both sides count the same.
        """
        held = check_standing(standing, self.dimension)
        with self.changed:
            if self.ledger.outbox:
                return None
            with self.store.transaction():
                missing, note = self.ledger.settle(held)
                self.agent.uploads = max(self.agent.uploads, standing.last_sequence)
                self._save_welcome(msgspec.structs.replace(self.welcome, credential=standing.credential))
                if missing is not None:
                    self._take_back(missing)
                self._save_counters()
            self.changed.notify_all()
            return note

    def renumber(self, upload: Upload, standing: wire.Standing) -> None:
        """Give an upload that was not counted a number that the server does not know."""
        with self.changed, self.store.transaction():
            self.agent.uploads = max(standing.last_sequence, self.agent.uploads) + 1
            self.ledger.remove(upload)
            self.ledger.add(replace(upload, sequence=self.agent.uploads))
            self._save_counters()

    def withdraw(self, upload: Upload, *, is_lost: bool) -> None:
        """Send an upload no more: the server will never take it. What is not lost goes back into the buffer."""
        with self.changed, self.store.transaction():
            self.ledger.remove(upload)
            self.agent.set_unanswered(self.ledger.sum_outbox())
            if is_lost:
                self.ledger.count_lost(upload.statistics.rounds)
            else:
                self._take_back(upload.statistics)
            self._save_counters()
            self.changed.notify_all()

    def _take_back(self, statistics: Statistics) -> None:
        """Put statistics back into the buffer, and send it if it is large enough; the caller holds a transaction."""
        upload = self.agent.take_back(statistics, self.floor)
        self.store.save_statistics("buffer", self.agent.buffer)
        if upload is not None:
            self.ledger.add(upload)

    def follow(self, welcome: wire.Welcome) -> None:
        """Keep the server's words, and go on as the agent that they describe, from what is on the disk."""
        d = welcome.terms.dimension
        require(d == self.dimension, f"the server has dimension {d}, this agent {self.dimension}: enrol a new one")
        policy, floor = self._follow_terms(welcome.terms)
        with self.changed:
            with self.store.transaction():
                self._save_welcome(welcome)
            self.floor = floor
            self.agent, self._round_estimate = self._load_agent(policy)

    def _get_open_list(self, impression: ShownList | SupportsIndex) -> ShownList:
        """The open list of that number; refuse a list of another agent that has the same number."""
        if not isinstance(impression, ShownList):
            return self.agent.get_open_list(read_index("impression", impression))
        shown = self.agent.get_open_list(impression.impression)
        is_same = np.array_equal(shown.features, impression.features)
        require(is_same, f"list {shown.impression} of agent {self.id} is another one: it was shown by another agent")
        return shown

    def _require_open(self) -> None:
        require(not self.is_closed, "this agent is closed: connect again")

    def _load_agent(self, policy: Policy) -> tuple[Agent, RoundEstimate]:
        """Load the agent as it was when the last process ended, and what it then knew of the system's rounds."""
        oracle = self._oracle or TopK()
        problem = self._problem or ProblemSize(users=1, dimension=self.dimension, list_length=oracle.length, rounds=1)
        agent = Agent(id=self.welcome.agent, policy=policy, problem=problem, oracle=oracle)
        arrivals, uploads, round_estimate = self.store.load_counters()
        agent.resume(
            arrivals=arrivals,
            uploads=uploads,
            buffer=self.store.load_statistics("buffer", self.dimension),
            unanswered=self.ledger.sum_outbox(),
            download=self.store.load_statistics("download", self.dimension),
            shown=self.store.load_open_lists(self.welcome.agent, self.dimension),
        )
        return agent, round_estimate

    def _estimate_problem_size(self, list_length: int) -> ProblemSize:
        """The sizes of the problem, as far as this agent knows: nobody knows how many rounds there will be."""
        rounds, users = self._round_estimate.estimate_round(self.agent.arrivals), self._round_estimate.agents
        return ProblemSize(users=users, dimension=self.dimension, list_length=list_length, rounds=rounds)

    def _save_counters(self) -> None:
        self.store.save_counters(self.agent.arrivals, self.agent.uploads, self._round_estimate)

    def _save_welcome(self, welcome: wire.Welcome) -> None:
        self.welcome = welcome
        self.store.set_setting("welcome", msgspec.json.encode(welcome))
