"""An agent with its memory on disk: what happens to it is saved in the same step. Nothing here waits for a network."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import SupportsIndex

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import POSITIVE, read_index, require, require_integer
from fedcascade.federation.agent import Agent, ShownList
from fedcascade.federation.messages import Cause, Download, Upload
from fedcascade.federation.own_data import OwnData
from fedcascade.federation.own_data_keeper import make_policy_data
from fedcascade.federation.policies import Policy
from fedcascade.federation.warm_start import sum_history
from fedcascade.learning.cascade import examine
from fedcascade.learning.click_log import ClickLog, concatenate
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.feedback import Positions, read_positions
from fedcascade.service.agent.ledger import Ledger, Settlement, check_standing
from fedcascade.service.agent.local_store import LocalStore, OpenList, RoundEstimate
from fedcascade.service.agent.own_data_codec import decode_own_data, encode_own_data
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.clock import SYSTEM_CLOCK, Clock
from fedcascade.service.protocol.validation import can_factorise, check_upload

KEEP_LISTS, KEEP_SECONDS = 1024, 365 * 86_400.0
HISTORY = "history"  # the setting that says of how many rounds a history was
CHANGE_PENDING = "change_pending"  # the setting that is not empty while a ``CHANGE`` upload is pending


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What an application wants of its agents.

    Attributes:
        follow_terms: the policy to run under the server's terms, and the fewest observations of an upload.
        oracle: chooses lists from scores; the best k items if None.
        problem: the sizes for a beta by formula; what is known of them so far if None.
        keep_lists: a list without feedback is dropped once so many others were shown after it.
        keep_seconds: it is dropped after so long, too.
        record_lists: so many lists are kept with all that was on offer, for ``export_log``; none if 0.
        clock: says when a list was shown.
    """

    follow_terms: Callable[[wire.Terms], tuple[Policy, int]]
    oracle: Oracle | None = None
    problem: ProblemSize | None = None
    keep_lists: int = KEEP_LISTS
    keep_seconds: float = KEEP_SECONDS
    record_lists: int = 0
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        require_integer("keep_lists", self.keep_lists)
        POSITIVE.check("keep_seconds", self.keep_seconds)
        require_integer("record_lists", self.record_lists, 0)


class SavedAgent:
    """A ``federation.Agent`` with its ledger and the server's welcome, in a local store.

    Several threads use it: the user's, and those that exchange. Each method holds ``lock``, which all agents of a file
    share. ``announce`` is called when there is something to send.
    """

    def __init__(
        self, store: LocalStore, welcome: wire.Welcome, *, options: AgentOptions, announce: Callable[[], None]
    ) -> None:
        self.lock = store.file.lock
        self.has_left = False
        self.dimension = welcome.terms.dimension
        self.welcome = welcome
        self.ledger = Ledger(store, welcome.agent, self.dimension)
        self.store, self._options, self._announce = store, options, announce
        policy, self.floor = options.follow_terms(welcome.terms)
        self._closed_blocks: bytes | None = None  # of the agent's own data, as they are in the store
        self._saved_download: Ridge | None = None
        self._change_pending = False  # as it is in the store
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
        """Choose a list. Its ``impression`` is the number to give feedback for, also after a restart.

        It waits for feedback until ``keep_lists`` others were shown, or ``keep_seconds`` have passed.

        Args:
            items: one row of features per item, each of length at most 1. They are rounded to the grid.
            k: how many items to show, another number each time if you like; ``connect(oracle=...)`` has its own.
            categories: a whole number per item, for the oracle ``PerCategory``.
            costs: a number per item, for the oracle ``Budget``.
            ties: a random word per item, by which equal scores are ordered; drawn if None.
        """
        offered = round_to_grid(items)
        words = np.frombuffer(bytearray(random.randbytes(4 * len(offered))), np.uint32) if ties is None else ties
        with self._hold():
            options, longest = self._options, self.welcome.terms.longest_list
            self.agent.oracle = options.oracle or TopK(length=read_index("k", k))
            length = self.agent.oracle.length
            require(length <= longest, f"a list of this server has at most {longest} items, got k = {length}")
            self.agent.set_problem_size(options.problem or self._estimate_problem_size(length))
            with self._saving():
                shown = self.agent.choose(offered, words, categories=categories, costs=costs)
                self.store.add_open_list(
                    shown, options.clock.now(), keep=options.keep_lists, keep_seconds=options.keep_seconds
                )
                if options.record_lists:
                    self.store.record_list(shown, options.clock.now(), offered, options.record_lists)
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
        with self._hold():
            shown = self._get_open_list(impression)
            places = read_positions(shown.items.tolist(), clicked, clicked_item)
            until = None if looked_until is None else read_index("looked_until", looked_until)
            seen = examine(shown.items.size, places, until)
            estimate = replace(self._round_estimate, arrivals_since=self._round_estimate.arrivals_since + 1)
            t = estimate.estimate_round(self.agent.arrivals) if round_ is None else round_
            upload = self.agent.learn(shown, seen, round_=t, draw=random.random() if draw is None else draw)
            self._round_estimate = estimate
            with self._saving():
                self.store.delete_open_list(shown.impression)
                self.store.record_feedback(shown.impression, seen)
                self.store.save_statistics("buffer", self.agent.buffer)
                self._save_progress()
                if upload is not None:
                    self.ledger.add(upload)
            if upload is not None:
                self._announce()
            return upload

    def learn_history(self, log: ClickLog, features: ArrayLike | None = None) -> Upload | None:
        """Learn once what this agent's user did before: lists that were logged, whoever chose them.

        Returns the upload that will be sent, if there are enough observations for one. A second history is refused,
        also after a restart: it would count what it shares with the first twice.

        Args:
            log: the lists of one user, for instance from ``fedcascade.data.logs:read_history``.
            features: one row per item that the log names by its number; None where the log has features of its own.
        """
        table = None if features is None else round_to_grid(features)
        statistics = sum_history(log, table, self.dimension)
        check_upload(statistics, self.dimension)  # here, because the server would refuse it for ever
        with self._hold():
            is_new = self.store.get_setting(HISTORY) is None
            require(is_new, f"agent {self.id} has learned a history already: a second one may count lists twice")
            with self._saving():
                self.store.set_setting(HISTORY, str(statistics.rounds).encode())
                self.agent.learn_before(statistics)
                upload = self._take_back(statistics)
                self._save_progress()
            if upload is not None:
                self._announce()
            return upload

    def restart(self) -> None:
        """Start over for another user: nothing that this agent learned so far counts any more.

        Where the policy detects changes, an agent finds them by itself; this is for a caller that knows of one. The
        next upload replaces all earlier ones at the server.
        """
        with self._hold(), self._saving():
            self.agent.restart(Statistics.zero(self.dimension))
            self.store.save_statistics("buffer", self.agent.buffer)
            self._save_progress()

    def export_log(self) -> ClickLog:
        """The last lists that have feedback, with what was on offer and with which chance each item was chosen.

        ``connect(record_lists=1000)`` keeps them. Items are the rows that ``recommend`` was given, anew in each list;
        the user is this agent's number. ``fedcascade.data.logs:write_log`` writes the log to a file.
        """
        with self._hold():
            rows = self.store.load_recorded_lists()
        advice = "connect with record_lists=1000, and give feedback"
        require(len(rows) > 0, f"agent {self.id} has recorded no list: {advice}")
        return concatenate([_read_recorded(self.id, self.dimension, *row) for row in rows])

    def open_lists(self) -> list[OpenList]:
        """The lists that wait for feedback, oldest first."""
        with self._hold():
            oldest = self._options.clock.now() - self._options.keep_seconds
            return [waiting for waiting in self.store.list_open_lists() if waiting.shown_at >= oldest]

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
    def is_welcomed(self) -> bool:
        """Whether it decides with what the server knows of anybody: from enrolment to the first answer."""
        known, keeper = self.agent.download.statistics, self.agent.own_data
        others = known.gram if keeper is None or self.agent.policy.trust is None else keeper.data.others_gram
        return known.count == 0 and bool(others.any())

    @property
    def estimate(self) -> NDArray[np.float64]:
        """Theta, as this agent estimates it now."""
        return self.agent.decision.theta.copy()

    def skip_answer(self, upload: Upload, answer: wire.AnswerMessage | None) -> None:
        """Go on with what was known before and with the upload itself: the server has it, and its answer is broken."""
        with self.lock:
            keeper, estimate = self.agent.own_data, self._round_estimate
            if keeper is None:
                known = self.agent.download.statistics + upload.statistics
            else:
                known = keeper.restate(self.ledger.sum_outbox(skip=1) + self.agent.buffer)
            number = self.welcome.agent
            download = Download(agent=number, statistics=known, rounds=estimate.rounds, agents=estimate.agents)
            self.receive(upload, download, answer)

    def receive(self, upload: Upload, download: Download, answer: wire.AnswerMessage | None) -> None:
        """Decide with a download from now on, and keep it in the place of the upload.

        A download for the user before a change is of no use.
        """
        with self.lock:
            if not self._is_obsolete:
                unanswered = self.ledger.sum_outbox(skip=1)
                self.agent.receive(self._trim(download, unanswered), unanswered=unanswered)
            self._round_estimate = RoundEstimate(download.rounds, download.agents, 0)
            with self._saving():
                self.ledger.confirm(upload, answer)
                self._save_progress()

    @property
    def _is_obsolete(self) -> bool:
        """Whether a later upload will replace the first one of the outbox."""
        return self.agent.change_pending or self.ledger.has_change(skip=1)

    def _trim(self, download: Download, unanswered: Statistics) -> Download:
        """The part of a download that an agent can use that weighs others' data.

        It is the agent's own data alone, where the rest cannot be others' data: the server holds other data of this
        agent than it has sent, and both will compare.
        """
        keeper, trust = self.agent.own_data, self.agent.policy.trust
        if keeper is None or trust is None:
            return download
        nothing, own = Statistics.zero(self.dimension), keeper.total - (unanswered + self.agent.buffer)
        if can_factorise(download.statistics.gram - own.gram, nothing.gram, self.agent.policy.lambda_):
            return download
        return replace(download, statistics=own if own.count >= 0 else nothing)

    def settle(self, standing: wire.Standing) -> str | None:
        """Go on from what the server holds of this agent, and send again what it has lost; returns what happened.

        Nothing happens while uploads wait: they come first, so that both sides count the same.
        """
        held = check_standing(standing, self.dimension)
        with self.lock:
            if self.ledger.outbox:
                return None
            with self._saving():
                settlement = self.ledger.settle(held, standing.last_change)
                self.agent.uploads = max(self.agent.uploads, standing.last_sequence)
                self._save_welcome(msgspec.structs.replace(self.welcome, credential=standing.credential))
                if self.agent.change_pending:
                    settlement = Settlement()  # the next upload replaces what the server holds
                if settlement.is_foreign:
                    self.agent.restart_own_data(held)
                if settlement.missing is not None:
                    (self._replace if settlement.lost_change else self._take_back)(settlement.missing)
                self._save_progress()
            return settlement.note

    def renumber(self, upload: Upload, standing: wire.Standing) -> None:
        """Give an upload that was not counted a number that the server does not know.

        Where a ``CHANGE`` upload waits, all that waits becomes one: the order of uploads matters then.
        """
        with self.lock, self._saving():
            self.agent.uploads = max(standing.last_sequence, self.agent.uploads) + 1
            if self.ledger.has_change():
                upload = replace(upload, cause=Cause.CHANGE, statistics=self.ledger.clear())
            else:
                self.ledger.remove(upload)
            if not self.agent.change_pending:
                self.ledger.add(replace(upload, sequence=self.agent.uploads))
            self._save_progress()

    def withdraw(self, upload: Upload, *, is_lost: bool) -> None:
        """Send an upload no more: the server will never take it. What is not lost goes back into the buffer."""
        with self.lock, self._saving():
            is_obsolete = self._is_obsolete
            self.ledger.remove(upload)
            if is_lost:
                self.ledger.count_lost(upload.statistics.rounds)
            if is_obsolete:
                pass  # a later upload replaces it
            elif upload.cause is Cause.CHANGE:
                left = self.ledger.clear()
                self._replace(left if is_lost else upload.statistics + left)
            else:
                self.agent.set_unanswered(self.ledger.sum_outbox())
                if is_lost:
                    self.agent.restart_own_data(self._get_confirmed())
                else:
                    self._take_back(upload.statistics)
            self._save_progress()

    def _replace(self, statistics: Statistics) -> None:
        """Replace what the server holds by statistics and the buffer, once these are enough for an upload."""
        self.agent.restart(statistics + self.agent.buffer)
        self._take_back(Statistics.zero(self.dimension))

    def _take_back(self, statistics: Statistics) -> Upload | None:
        """Put statistics back into the buffer, and send it if it is large enough; the caller holds a transaction."""
        upload = self.agent.take_back(statistics, self.floor)
        self.store.save_statistics("buffer", self.agent.buffer)
        if upload is not None:
            self.ledger.add(upload)
        return upload

    def load_ledger(self) -> None:
        """Read again what was sent and confirmed: the agent has enrolled under another key."""
        with self.lock:
            self.ledger = Ledger(self.store, self.id, self.dimension)
            with self._saving():
                self.store.delete_own_data()

    def erase(self) -> None:
        """Delete everything that this device keeps of the agent, whatever the server holds; it cannot be used again."""
        with self._hold():
            self.store.file.erase_agent(self.store.agent)
            self.has_left = True

    def follow(self, welcome: wire.Welcome) -> None:
        """Keep the server's words, and go on as the agent that they describe, from what is on the disk."""
        d = welcome.terms.dimension
        require(d == self.dimension, f"the server has dimension {d}, this agent {self.dimension}: enrol a new one")
        policy, floor = self._options.follow_terms(welcome.terms)
        with self.lock:
            with self._saving():
                self._save_welcome(welcome)
                if not policy.keeps_own_data:
                    self.store.delete_own_data()
            self.floor = floor
            self.agent, self._round_estimate = self._load_agent(policy)

    def _get_open_list(self, impression: ShownList | SupportsIndex) -> ShownList:
        """The open list of that number; refuse one that has expired, and a list of another agent with this number."""
        number = read_index("impression", impression.impression if isinstance(impression, ShownList) else impression)
        row = self.store.load_open_list(number, self.id, self.dimension) if abs(number) < 2**63 else None
        options, now = self._options, self._options.clock.now()
        if row is None or row[1] < now - options.keep_seconds:
            kept = f"a list waits until {options.keep_lists} others were shown, {options.keep_seconds / 86_400:g} days"
            raise ValueError(f"agent {self.id} has no open list {number}: {kept} at most, and has one feedback")
        if isinstance(impression, ShownList) and not np.array_equal(row[0].features, impression.features):
            raise ValueError(f"list {number} of agent {self.id} is another one: this one was shown by another agent")
        return row[0]

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Hold the lock, in the process that opened the file, while the agent can be used."""
        self.store.file.require_same_process()
        with self.lock:
            require(not (self.has_left or self.store.file.is_closed), "this agent is closed: connect again")
            yield

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Save all or nothing; where the disk takes nothing, the agent is again what the disk says that it is."""
        try:
            with self.store.transaction():
                yield
        except sqlite3.Error as error:
            self.ledger = Ledger(self.store, self.id, self.dimension)
            self.agent, self._round_estimate = self._load_agent(self.agent.policy)
            raise OSError(f"the agent's store takes nothing ({error}): nothing has changed, try again later") from None

    def _load_agent(self, policy: Policy) -> tuple[Agent, RoundEstimate]:
        """Load the agent as it was when the last process ended, and what it then knew of the system's rounds."""
        oracle = self._options.oracle or TopK()
        size = ProblemSize(users=1, dimension=self.dimension, list_length=oracle.length, rounds=1)
        agent = Agent(id=self.welcome.agent, policy=policy, problem=self._options.problem or size, oracle=oracle)
        arrivals, uploads, round_estimate = self.store.load_counters()
        own_data, change_pending = self._load_own_data(policy), bool(self.store.get_setting(CHANGE_PENDING))
        unanswered = Statistics.zero(self.dimension) if change_pending else self.ledger.sum_outbox()
        agent.resume(
            arrivals=arrivals,
            uploads=uploads,
            buffer=self.store.load_statistics("buffer", self.dimension),
            unanswered=unanswered,
            download=self._load_download(policy.lambda_),
            shown=(),
            own_data=own_data,
            change_pending=change_pending,
        )
        self._change_pending = change_pending
        if own_data is None:
            agent.restart_own_data(self._get_confirmed())
        return agent, round_estimate

    def _load_download(self, lambda_: float) -> Statistics:
        """The last download; the agent's own data where a ridge with the lambda of today can make nothing of it."""
        download, own = self.store.load_statistics("download", self.dimension), self.ledger.confirmed
        try:
            Ridge(download, lambda_)
        except ValueError:
            return Statistics.zero(self.dimension) if own is None else own
        return download

    def _load_own_data(self, policy: Policy) -> OwnData | None:
        """Load own data; None where there are none, those of another kind of policy, or of a larger lambda."""
        parts = self.store.load_own_data() if policy.keeps_own_data else {}
        self._closed_blocks = self._saved_download = None
        if not parts:
            return None
        data = make_policy_data(policy, (), self.dimension)
        is_known = decode_own_data(parts["recent"], parts["closed"], data)
        is_prior = can_factorise(data.others_gram, np.zeros_like(data.others_gram), policy.lambda_)
        return data if is_known and (is_prior or policy.trust is None) else None

    def _get_confirmed(self) -> Statistics:
        """What the server holds of the agent's current user; nothing where an upload will replace that."""
        confirmed, is_replaced = self.ledger.confirmed, self._change_pending or self.ledger.has_change()
        return Statistics.zero(self.dimension) if confirmed is None or is_replaced else confirmed

    def _estimate_problem_size(self, list_length: int) -> ProblemSize:
        """The sizes of the problem, as far as this agent knows: nobody knows how many rounds there will be."""
        rounds, users = self._round_estimate.estimate_round(self.agent.arrivals), self._round_estimate.agents
        return ProblemSize(users=users, dimension=self.dimension, list_length=list_length, rounds=rounds)

    def _save_progress(self) -> None:
        """Save how far the agent is, with what it decides with and its own data, where these are kept apart."""
        agent = self.agent
        self.store.save_counters(agent.arrivals, agent.uploads, self._round_estimate)
        if agent.change_pending != self._change_pending:
            self._change_pending = agent.change_pending
            self.store.set_setting(CHANGE_PENDING, b"1" if agent.change_pending else b"")
        if agent.download is not self._saved_download:
            self.store.save_statistics("download", agent.download.statistics)
            self._saved_download = agent.download
        if agent.own_data is not None:
            recent, closed = encode_own_data(agent.own_data.data)
            self.store.save_own_data("recent", recent)
            if closed != self._closed_blocks:
                self.store.save_own_data("closed", closed)
                self._closed_blocks = closed

    def _save_welcome(self, welcome: wire.Welcome) -> None:
        self.welcome = welcome
        self.store.set_setting("welcome", msgspec.json.encode(welcome))


def _read_recorded(
    agent: int,
    dimension: int,
    at: float,
    items: bytes,
    chances: bytes | None,
    offered: bytes,
    clicks: bytes,
    looked: int,
) -> ClickLog:
    """One recorded list as a log."""
    shown = np.frombuffer(items, "<i8").astype(np.int64)
    features = np.frombuffer(offered, "<f4").astype(np.float32).reshape(1, -1, dimension)
    clicked = np.zeros((1, shown.size), bool)
    clicked[0, np.frombuffer(clicks, "<i8")] = True
    return ClickLog(users=np.array([agent]), items=shown[None], clicks=clicked, times=np.array([at]),
                    looked=np.array([looked]), offered=np.arange(features.shape[1])[None], features=features,
                    propensities=None if chances is None else np.frombuffer(chances, "<f8")[None])  # fmt: skip
