"""An agent with a store on disk: each call is saved before it returns, and none waits for the network."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import EllipsisType
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import read_index, require
from fedcascade.federation.agent import ShownList, choose_list, learn_before, observe, read_features, restart, take_back
from fedcascade.federation.messages import Upload
from fedcascade.federation.warm_start import sum_history
from fedcascade.learning.cascade import examine
from fedcascade.learning.click_log import ClickLog, concatenate
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK, read_attributes
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.ledger import SavedState, estimate_round, keep_sent
from fedcascade.service.agent.local_store import LocalMemory, OpenList, RecordedList
from fedcascade.service.agent.options import AgentOptions
from fedcascade.service.protocol.validation import check_upload

HISTORY = "history"  # entry with the rounds of the user's history
Positions = SupportsIndex | Iterable[SupportsIndex] | None


class SavedAgent:
    """An agent whose state is saved in its ``memory``; ``announce`` is called when an upload waits."""

    def __init__(self, memory: LocalMemory, options: AgentOptions, announce: Callable[[], None]) -> None:
        self.memory = memory
        self._options, self._announce = options, announce

    def recommend(
        self,
        items: ArrayLike,
        k: int = 4,
        *,
        categories: ArrayLike | None = None,
        costs: ArrayLike | None = None,
        ties: NDArray[np.uint32] | None = None,
    ) -> ShownList:
        """Choose a list. Its ``impression`` is the number for feedback, also after a restart.

        The list expires after ``keep_lists`` newer ones or ``keep_seconds``.

        Args:
            items: one row of features per item, of norm at most 1; they are rounded to the grid.
            k: the length of the list, unless ``connect(oracle=...)`` sets it.
            categories: an integer per item, for the oracle ``PerCategory``.
            costs: a number per item, for the oracle ``Budget``.
            ties: a random word per item that breaks ties; drawn if None.
        """
        options, memory = self._options, self.memory
        terms = memory.state.enrolment.terms
        offered = read_features(round_to_grid(items), terms.dimension)
        words = np.frombuffer(bytearray(random.randbytes(4 * len(offered))), np.uint32) if ties is None else ties
        attributes = read_attributes(len(offered), categories, costs)

        def show(state: SavedState) -> tuple[SavedState, ShownList]:
            oracle = options.oracle or TopK(length=read_index("k", k))
            length, longest = oracle.length, state.enrolment.terms.longest_list
            require(length <= longest, f"k must be <= {longest}, the longest list of this server, got {length}")
            problem = options.problem or ProblemSize(
                users=state.agents, dimension=terms.dimension, list_length=length, rounds=estimate_round(state)
            )
            shown = choose_list(memory.policy, state.local, offered, words, attributes, oracle=oracle, problem=problem)
            now = options.clock.now()
            memory.store.add_open_list(shown, now, keep=options.keep_lists, keep_seconds=options.keep_seconds)
            if options.record_lists:
                memory.store.record_list(shown, now, offered, options.record_lists)
            return state._replace(local=state.local._replace(arrivals=shown.impression)), shown

        with self._hold():
            return memory.update(show, is_saved=False)  # the newest list has the number of arrivals

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
        """Learn from a list and return the upload that will be sent, if this round triggers one.

        Examined positions count: up to the last click, up to ``looked_until`` if given, or the whole list.

        Args:
            impression: the list, or its number.
            clicked: the clicked position, counted from 0, or several; None without a click.
            clicked_item: rows of the items of ``recommend``, instead of ``clicked``.
            looked_until: the last position that the user looked at, if known.
            round_: t; extrapolated from the last download if None.
            draw: the round's uniform number; drawn if None.
        """

        def learn(state: SavedState) -> tuple[SavedState, Upload | None]:
            shown = self._get_open_list(impression)
            places = read_positions(shown.items.tolist(), clicked, clicked_item)
            last = None if looked_until is None else read_index("looked_until", looked_until)
            seen = examine(shown.items.size, places, last)
            later = state._replace(since=state.since + 1)
            t = estimate_round(later) if round_ is None else round_
            number = random.random() if draw is None else draw
            sent = observe(self.memory.policy, state.local, shown, seen, round_=t, draw=number)
            self.memory.store.close_list(shown.impression)
            if self._options.record_lists:
                self.memory.store.record_feedback(shown.impression, seen)
            return keep_sent(later, sent), sent[1]

        return self._learn(learn)

    def learn_history(self, log: ClickLog, features: ArrayLike | None = None) -> Upload | None:
        """Learn the user's history, lists that any policy chose, and return the upload that will be sent, if any.

        An agent learns one history: a second one could count lists twice.

        Args:
            log: the lists of one user, for instance from ``fedcascade.data.logs:read_history``.
            features: one row per item number of the log; None if the log has features.
        """
        dimension = self.memory.state.local.dimension
        statistics = sum_history(log, None if features is None else round_to_grid(features), dimension)
        check_upload(statistics, dimension)  # the server would refuse it every time

        def learn(state: SavedState) -> tuple[SavedState, Upload | None]:
            store, policy = self.memory.store, self.memory.policy
            is_new = store.get_entry(HISTORY) is None
            require(is_new, f"agent {self.id} has learned a history already: a second one could count lists twice")
            store.put_entry(HISTORY, str(statistics.rounds).encode())
            sent = take_back(policy, learn_before(policy, state.local, statistics), statistics, policy.trigger.least)
            return keep_sent(state, sent), sent[1]

        return self._learn(learn)

    def restart(self) -> None:
        """Start over for another user, without earlier data. The next upload replaces all earlier ones at the server.

        A policy with drift detection does this by itself; this is for a caller that knows of a change.
        """

        def start_over(state: SavedState) -> tuple[SavedState, None]:
            local = restart(self.memory.policy, state.local, Statistics.zero(state.local.dimension))
            return state._replace(local=local), None

        with self._hold():
            self.memory.update(start_over)

    def export_log(self) -> ClickLog:
        """Return the recorded lists with feedback, with all items on offer and the propensities.

        ``connect(record_lists=1000)`` records lists. Items are row numbers of ``recommend``; the user is this agent's
        number. ``fedcascade.data.logs:write_log`` writes the log to a file.
        """
        with self._hold():
            rows = self.memory.store.load_recorded_lists()
        require(
            len(rows) > 0, f"agent {self.id} has no recorded list: connect with record_lists=1000, and give feedback"
        )
        dimension = self.memory.state.local.dimension
        return concatenate([_read_recorded(self.id, dimension, row) for row in rows])

    def open_lists(self) -> list[OpenList]:
        """List the lists without feedback, oldest first."""
        with self._hold():
            oldest = self._options.clock.now() - self._options.keep_seconds
            return [waiting for waiting in self.memory.store.list_open_lists() if waiting.shown_at >= oldest]

    def erase(self) -> None:
        """Delete this agent from its file, not from the server; it cannot be used again."""
        with self._hold():
            self.memory.store.file.erase_agent(self.memory.store.agent)
            self.memory.has_left = True

    @property
    def id(self) -> int:
        """The agent's number at the server; 0 before enrolment."""
        return self.memory.state.enrolment.agent

    @property
    def unsent(self) -> int:
        """The number of unanswered uploads."""
        return len(self.memory.state.outbox)

    @property
    def lost(self) -> int:
        """The number of rounds that the server will never get."""
        return self.memory.state.lost

    @property
    def buffered(self) -> int:
        """The number of observations in the buffer."""
        return self.memory.state.local.buffer.count

    @property
    def has_prior(self) -> bool:
        """True from enrolment to the first answer, if the server sent a prior."""
        local = self.memory.state.local
        known, has_trust = local.download.statistics, self.memory.policy.trust is not None
        others = local.own.others_gram if has_trust and local.own is not None else known.gram
        return known.count == 0 and bool(others.any())

    @property
    def estimate(self) -> NDArray[np.float64]:
        """The current estimate of theta."""
        return self.memory.state.local.decision.theta.copy()

    def _learn(self, learn: Callable[[SavedState], tuple[SavedState, Upload | None]]) -> Upload | None:
        with self._hold():
            upload = self.memory.update(learn)
            if upload is not None:
                self._announce()
            return upload

    def _get_open_list(self, impression: ShownList | SupportsIndex) -> ShownList:
        """Return an open list by its number; reject an expired one, and another agent's list of this number."""
        number = read_index("impression", impression.impression if isinstance(impression, ShownList) else impression)
        store, dimension = self.memory.store, self.memory.state.local.dimension
        row = store.load_open_list(number, self.id, dimension) if abs(number) < 2**63 else None
        options = self._options
        if row is None or row[1] < options.clock.now() - options.keep_seconds:
            kept = f"a list expires after {options.keep_lists} newer ones or {options.keep_seconds / 86_400:g} days"
            raise ValueError(f"agent {self.id} has no open list {number}: {kept}, and takes feedback once")
        if isinstance(impression, ShownList) and not np.array_equal(row[0].features, impression.features):
            raise ValueError(f"agent {self.id} has not shown this list {number}: give it to the agent that did")
        return row[0]

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Hold the lock; reject a closed agent, and another process than the one that opened the file."""
        file = self.memory.store.file
        file.require_same_process()
        with file.lock:
            require(not (self.memory.has_left or file.is_closed), "this agent is closed: connect again")
            yield


def read_positions(
    items: list[int], clicked: Positions | EllipsisType, clicked_item: Positions | EllipsisType
) -> list[int]:
    """Return the clicked positions, from positions or from items; ``...`` stands for a missing argument.

    >>> read_positions([7, 5, 9], 1, ...), read_positions([7, 5, 9], ..., [9, 7]), read_positions([7, 5, 9], None, ...)
    ([1], [2, 0], [])
    """
    is_one = isinstance(clicked, EllipsisType) != isinstance(clicked_item, EllipsisType)
    require(is_one, "give either clicked=... or clicked_item=..., with None if nothing was clicked")
    if not isinstance(clicked, EllipsisType):
        return _read_all("clicked", clicked)
    assert not isinstance(clicked_item, EllipsisType)
    chosen = _read_all("clicked_item", clicked_item)
    for item in chosen:
        require(item in items, f"clicked_item must be on the list, which shows items {items}, got {item}")
    return [items.index(item) for item in chosen]


def _read_all(name: str, given: Positions) -> list[int]:
    """Return one integer or several as a list."""
    if given is None:
        return []
    is_several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0 and not isinstance(given, str | bytes)
    return [read_index(name, value) for value in (given if is_several else [given])]  # type: ignore[union-attr]


def _read_recorded(agent: int, dimension: int, row: RecordedList) -> ClickLog:
    at, items, chances, offered, clicks, looked = row
    shown = np.frombuffer(items, "<i8").astype(np.int64)
    features = np.frombuffer(offered, "<f4").astype(np.float32).reshape(1, -1, dimension)
    clicked = np.zeros((1, shown.size), bool)
    clicked[0, np.frombuffer(clicks, "<i8")] = True
    return ClickLog(
        users=np.array([agent]),
        items=shown[None],
        clicks=clicked,
        times=np.array([at]),
        looked=np.array([looked]),
        offered=np.arange(features.shape[1])[None],
        features=features,
        propensities=None if chances is None else np.frombuffer(chances, "<f8")[None],
    )
