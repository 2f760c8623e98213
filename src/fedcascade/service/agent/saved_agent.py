"""An agent with its memory on disk: what happens to it is saved in the same step. Nothing here waits for a network."""

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

HISTORY = "history"  # the entry that says of how many rounds a history was
Positions = SupportsIndex | Iterable[SupportsIndex] | None


class SavedAgent:
    """What an application asks of an agent. Each call is saved in the agent's ``memory`` before it returns.

    ``announce`` is called when there is something to send.
    """

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
        """Choose a list. Its ``impression`` is the number to give feedback for, also after a restart.

        It waits for feedback until ``keep_lists`` others were shown, or ``keep_seconds`` have passed.

        Args:
            items: one row of features per item, each of length at most 1. They are rounded to the grid.
            k: how many items to show, another number each time if you like; ``connect(oracle=...)`` has its own.
            categories: a whole number per item, for the oracle ``PerCategory``.
            costs: a number per item, for the oracle ``Budget``.
            ties: a random word per item, by which equal scores are ordered; drawn if None.
        """
        options, memory, terms = self._options, self.memory, self.memory.state.welcome.terms
        offered = read_features(round_to_grid(items), terms.dimension)
        words = np.frombuffer(bytearray(random.randbytes(4 * len(offered))), np.uint32) if ties is None else ties
        attributes = read_attributes(len(offered), categories, costs)

        def show(state: SavedState) -> tuple[SavedState, ShownList]:
            oracle, longest = options.oracle or TopK(length=read_index("k", k)), state.welcome.terms.longest_list
            length = oracle.length
            require(length <= longest, f"a list of this server has at most {longest} items, got k = {length}")
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
            return memory.update(show, is_saved=False)  # the number of the newest list is how often the user came

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

        def learn(state: SavedState) -> tuple[SavedState, Upload | None]:
            shown = self._get_open_list(impression)
            places = read_positions(shown.items.tolist(), clicked, clicked_item)
            seen = examine(
                shown.items.size, places, None if looked_until is None else read_index("looked_until", looked_until)
            )
            later = state._replace(since=state.since + 1)
            t, chance = estimate_round(later) if round_ is None else round_, random.random() if draw is None else draw
            sent = observe(self.memory.policy, state.local, shown, seen, round_=t, draw=chance)
            self.memory.store.close_list(shown.impression)
            if self._options.record_lists:
                self.memory.store.record_feedback(shown.impression, seen)
            return keep_sent(later, sent), sent[1]

        return self._learn(learn)

    def learn_history(self, log: ClickLog, features: ArrayLike | None = None) -> Upload | None:
        """Learn once what this agent's user did before: lists that were logged, whichever policy chose them.

        Returns the upload that will be sent, if there are enough observations for one. A second history is refused,
        also after a restart: it would count what it shares with the first twice.

        Args:
            log: the lists of one user, for instance from ``fedcascade.data.logs:read_history``.
            features: one row per item that the log names by its number; None where the log has features of its own.
        """
        dimension, table = self.memory.state.local.dimension, None if features is None else round_to_grid(features)
        statistics = sum_history(log, table, dimension)
        check_upload(statistics, dimension)  # here, because the server would refuse it for ever

        def learn(state: SavedState) -> tuple[SavedState, Upload | None]:
            store, policy = self.memory.store, self.memory.policy
            is_new = store.get_entry(HISTORY) is None
            require(is_new, f"agent {self.id} has learned a history already: a second one may count lists twice")
            store.put_entry(HISTORY, str(statistics.rounds).encode())
            sent = take_back(policy, learn_before(policy, state.local, statistics), statistics, policy.trigger.least)
            return keep_sent(state, sent), sent[1]

        return self._learn(learn)

    def restart(self) -> None:
        """Start over for another user: nothing that this agent learned so far counts any more.

        Where the policy detects changes, an agent finds them by itself; this is for a caller that knows of one. The
        next upload replaces all earlier ones at the server.
        """

        def start_over(state: SavedState) -> tuple[SavedState, None]:
            local = restart(self.memory.policy, state.local, Statistics.zero(state.local.dimension))
            return state._replace(local=local), None

        with self._hold():
            self.memory.update(start_over)

    def export_log(self) -> ClickLog:
        """Return the last lists that have feedback, with the items on offer and the chance of each chosen item.

        ``connect(record_lists=1000)`` keeps them. Items are the rows that ``recommend`` was given, numbered in each
        list; the user is this agent's number. ``fedcascade.data.logs:write_log`` writes the log to a file.
        """
        with self._hold():
            rows = self.memory.store.load_recorded_lists()
        advice = "connect with record_lists=1000, and give feedback"
        require(len(rows) > 0, f"agent {self.id} has recorded no list: {advice}")
        dimension = self.memory.state.local.dimension
        return concatenate([_read_recorded(self.id, dimension, row) for row in rows])

    def open_lists(self) -> list[OpenList]:
        """The lists that wait for feedback, oldest first."""
        with self._hold():
            oldest = self._options.clock.now() - self._options.keep_seconds
            return [waiting for waiting in self.memory.store.list_open_lists() if waiting.shown_at >= oldest]

    def erase(self) -> None:
        """Delete everything that this device keeps of the agent, whatever the server holds; it cannot be used again."""
        with self._hold():
            self.memory.store.file.erase_agent(self.memory.store.agent)
            self.memory.has_left = True

    @property
    def id(self) -> int:
        """The number under which the server knows this agent; 0 until it has enrolled."""
        return self.memory.state.welcome.agent

    @property
    def unsent(self) -> int:
        """How many uploads wait for an answer."""
        return len(self.memory.state.outbox)

    @property
    def lost(self) -> int:
        """How many rounds the server will never learn from."""
        return self.memory.state.lost

    @property
    def buffered(self) -> int:
        """How many observations wait for an upload."""
        return self.memory.state.local.buffer.count

    @property
    def is_welcomed(self) -> bool:
        """Whether it decides with the server's prior: from enrolment to the first answer."""
        local = self.memory.state.local
        known, has_trust = local.download.statistics, self.memory.policy.trust is not None
        others = local.own.others_gram if has_trust and local.own is not None else known.gram
        return known.count == 0 and bool(others.any())

    @property
    def estimate(self) -> NDArray[np.float64]:
        """Theta, as this agent estimates it now."""
        return self.memory.state.local.decision.theta.copy()

    def _learn(self, learn: Callable[[SavedState], tuple[SavedState, Upload | None]]) -> Upload | None:
        with self._hold():
            upload = self.memory.update(learn)
            if upload is not None:
                self._announce()
            return upload

    def _get_open_list(self, impression: ShownList | SupportsIndex) -> ShownList:
        """The open list of that number; refuse one that has expired, and a list of another agent with this number."""
        number = read_index("impression", impression.impression if isinstance(impression, ShownList) else impression)
        store, dimension = self.memory.store, self.memory.state.local.dimension
        row = store.load_open_list(number, self.id, dimension) if abs(number) < 2**63 else None
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
        file = self.memory.store.file
        file.require_same_process()
        with file.lock:
            require(not (self.memory.has_left or file.is_closed), "this agent is closed: connect again")
            yield


def read_positions(
    items: list[int], clicked: Positions | EllipsisType, clicked_item: Positions | EllipsisType
) -> list[int]:
    """Return the positions that were clicked, from positions or from items; ``...`` is what was not given.

    >>> read_positions([7, 5, 9], 1, ...), read_positions([7, 5, 9], ..., [9, 7]), read_positions([7, 5, 9], None, ...)
    ([1], [2, 0], [])
    """
    is_one = isinstance(clicked, EllipsisType) != isinstance(clicked_item, EllipsisType)
    require(is_one, "say either clicked=... or clicked_item=..., with None if nothing was clicked")
    if not isinstance(clicked, EllipsisType):
        return _read_all("clicked", clicked)
    assert not isinstance(clicked_item, EllipsisType)
    chosen = _read_all("clicked_item", clicked_item)
    for item in chosen:
        require(item in items, f"clicked_item must be on the list, which shows items {items}, got {item}")
    return [items.index(item) for item in chosen]


def _read_all(name: str, given: Positions) -> list[int]:
    """One whole number or several as a list; an array of truth values is refused as each of its elements is."""
    if given is None:
        return []
    is_several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0 and not isinstance(given, str | bytes)
    return [read_index(name, value) for value in (given if is_several else [given])]  # type: ignore[union-attr]


def _read_recorded(agent: int, dimension: int, row: RecordedList) -> ClickLog:
    """Return one recorded list as a log."""
    at, items, chances, offered, clicks, looked = row
    shown = np.frombuffer(items, "<i8").astype(np.int64)
    features = np.frombuffer(offered, "<f4").astype(np.float32).reshape(1, -1, dimension)
    clicked = np.zeros((1, shown.size), bool)
    clicked[0, np.frombuffer(clicks, "<i8")] = True
    return ClickLog(users=np.array([agent]), items=shown[None], clicks=clicked, times=np.array([at]),
                    looked=np.array([looked]), offered=np.arange(features.shape[1])[None], features=features,
                    propensities=None if chances is None else np.frombuffer(chances, "<f8")[None])  # fmt: skip
