"""An agent with a store: each call is saved before it returns, and none waits for the server."""

import math
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import EllipsisType
from typing import Literal, SupportsIndex, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcascade.checks import read_index, require
from fedcascade.federation.agent import LocalState, ShownList, choose_list, learn_before, read_features, restart
from fedcascade.federation.messages import Upload
from fedcascade.federation.privacy import PrivacyBudget
from fedcascade.federation.warm_start import sum_history
from fedcascade.learning.cascade import Examination, examine, split_reward
from fedcascade.learning.click_log import ClickLog, concatenate
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK, read_attributes
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.agent.entries import HISTORY
from fedcascade.service.agent.ledger import SavedState, correct, estimate_round, expect_reward, learn_list, take_back
from fedcascade.service.agent.memory import GONE, LocalMemory
from fedcascade.service.agent.options import AgentOptions
from fedcascade.service.agent.saved_lists import OPEN, RECORDED, UNREWARDED, OpenList, SavedList, SavedLists
from fedcascade.service.protocol.validation import check_upload

IMPRESSION_BITS = 53  # of a random number that names a list; JSON keeps it in every language
LATER = "later"  # a reward that is not known yet
Positions = SupportsIndex | Iterable[SupportsIndex] | None
Reward = float | Sequence[float] | Literal["later"] | None


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
        """Choose a list. Its ``impression`` is a random number for feedback, also in another process.

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
        attributes, kept = read_attributes(len(offered), categories, costs), offered if options.record_lists else None

        def show(state: SavedState) -> tuple[SavedState, ShownList]:
            oracle = options.oracle or TopK(length=read_index("k", k))
            length, longest = oracle.length, state.enrolment.terms.longest_list
            require(length <= longest, f"k must be <= {longest}, the longest list of this server, got {length}")
            problem = options.problem or ProblemSize(
                users=state.agents, dimension=terms.dimension, list_length=length, rounds=estimate_round(state)
            )
            shown = choose_list(memory.policy, state.local, offered, words, attributes, oracle=oracle, problem=problem)
            saved = SavedList.pack(shown, 1 + secrets.randbits(IMPRESSION_BITS), options.clock.now(), kept)
            memory.lists.insert(saved)
            oldest = -math.inf if options.record_lists else saved.shown_at - options.keep_seconds
            arrival = saved.arrival
            memory.lists.drop_expired(arrival - options.keep_lists, arrival - options.record_lists, oldest)
            later = state._replace(local=state.local._replace(arrivals=shown.impression))
            return later, replace(shown, impression=saved.impression)

        with self._hold():
            return memory.update(show, is_saved=False)  # the newest list has the number of arrivals

    def feedback(
        self,
        impression: ShownList | SupportsIndex,
        clicked: Positions | EllipsisType = ...,
        *,
        clicked_item: Positions | EllipsisType = ...,
        looked_until: int | None = None,
        reward: Reward = None,
        round_: int | None = None,
        draw: float | None = None,
    ) -> Upload | None:
        """Learn from a list and return the upload that will be sent, if this round triggers one.

        Examined positions count: up to the last click, up to ``looked_until`` if given, or the whole list. Until
        ``reward`` is called, a click whose reward comes later counts with the mean reward of this user's clicks so far.

        Args:
            impression: the list, or its number.
            clicked: the clicked position, counted from 0, or several; None without a click.
            clicked_item: rows of the items of ``recommend``, instead of ``clicked``.
            looked_until: the last position that the user looked at, if known.
            reward: the value of the click in [0, 1], 1 if None; several clicks share it equally, or have one each, in
                the order given. "later" if it is not known yet.
            round_: t; extrapolated from the last download if None.
            draw: the round's uniform number; drawn if None.
        """

        def learn(state: SavedState) -> tuple[SavedState, Upload | None]:
            saved, is_late = self._read_list(impression, OPEN), isinstance(reward, str) and reward == LATER
            value = None if is_late else cast("float | Sequence[float] | None", reward)
            seen = read_outcome(saved.items, clicked, clicked_item, looked_until, value)
            if is_late and seen.clicks:
                expected = [expect_reward(state)] * len(seen.clicks)
                seen = replace(seen, rewards=split_reward(expected, len(expected)))
            shown = saved.unpack(self.id, state.local.dimension)
            learned, upload = learn_list(self.memory.policy, state, shown, seen, round_=round_, draw=draw)
            self._follow_user(state.local, learned.local, seen)
            self._close_list(learned.local, saved, seen, is_rewarded=not (is_late and seen.clicks))
            return learned, upload

        with self._hold():
            return self.memory.update(learn)

    def reward(self, impression: ShownList | SupportsIndex, value: float | Sequence[float]) -> None:
        """Give a list its reward, once, after ``feedback`` with the reward "later".

        What was learned is corrected by the difference to the expected reward; the next upload carries the correction.

        Args:
            impression: the list, or its number. It expires as it does for feedback, and when the user changes.
            value: the value of the click in [0, 1]; several clicks share it equally, or have one each, from the top.
        """
        require(value is not None, "a reward must be a number in [0, 1], got None")

        def learn(state: SavedState) -> tuple[SavedState, None]:
            saved = self._read_list(impression, UNREWARDED)
            seen = saved.seen
            after = replace(seen, rewards=split_reward(value, len(seen.clicks)))
            self._close_list(state.local, saved, after, is_rewarded=True)
            shown = saved.unpack(self.id, state.local.dimension)
            return correct(self.memory.policy, state, shown, seen, after.values, saved.round), None

        with self._hold():
            self.memory.update(learn)

    def _close_list(self, local: LocalState, saved: SavedList, seen: Examination, *, is_rewarded: bool) -> None:
        """Delete a list with feedback, record it, or keep it for its reward."""
        is_recorded = saved.arrival > local.arrivals - self._options.record_lists
        kept = UNREWARDED if not is_rewarded else RECORDED if is_recorded else None
        round_ = 0 if local.own is None else local.own_total.rounds
        self.memory.lists.close(saved, seen, kept, round_)

    def _follow_user(self, before: LocalState, after: LocalState, seen: Examination) -> None:
        """Drop the lists that wait for a reward if the user has changed at this list."""
        is_followed = self.memory.policy.changes is not None
        if is_followed and after.own_total.count < before.own_total.count + seen.examined:
            self.memory.lists.drop_unrewarded()

    def learn(
        self,
        shown: ArrayLike,
        clicked: Positions,
        *,
        looked_until: int | None = None,
        reward: float | Sequence[float] | None = None,
    ) -> Upload | None:
        """Learn from a list that another ranking chose, and return the upload that will be sent, if any.

        Each call counts. The outcome is that of ``feedback``.

        Args:
            shown: one row of features per item of the list, first position first.
            clicked: the clicked position, counted from 0, or several; None without a click.
            looked_until: the last position that the user looked at, if known.
            reward: the value of the click in [0, 1], as in ``feedback``, where it may not come later.
        """
        features = read_features(round_to_grid(shown), self.memory.state.local.dimension)
        items = np.arange(len(features), dtype=np.intp)
        seen = read_outcome(tuple(range(len(items))), clicked, ..., looked_until, reward)

        def learn(state: SavedState) -> tuple[SavedState, Upload | None]:
            longest, arrivals = state.enrolment.terms.longest_list, state.local.arrivals + 1
            require(len(items) <= longest, f"a list of this server has <= {longest} items, got {len(items)}")
            counted = state._replace(local=state.local._replace(arrivals=arrivals))
            listed = ShownList(self.id, arrivals, items, features)
            learned, upload = learn_list(self.memory.policy, counted, listed, seen)
            self._follow_user(state.local, learned.local, seen)
            return learned, upload

        with self._hold():
            return self.memory.update(learn)

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
            memory, policy = self.memory, self.memory.policy
            is_new = memory.get(HISTORY) is None
            require(is_new, f"{memory.title} has learned a history already: a second one could count lists twice")
            memory.puts[HISTORY] = str(statistics.rounds).encode()
            return take_back(policy, state._replace(local=learn_before(policy, state.local, statistics)), statistics)

        with self._hold():
            return self.memory.update(learn)

    def restart(self) -> None:
        """Start over for another user, without earlier data. The next upload replaces all earlier ones at the server.

        A policy with drift detection does this by itself; this is for a caller that knows of a change.
        """

        def start_over(state: SavedState) -> tuple[SavedState, None]:
            local = restart(self.memory.policy, state.local, Statistics.zero(state.local.dimension))
            self.memory.lists.drop_unrewarded()
            return state._replace(local=local), None

        with self._hold():
            self.memory.update(start_over)

    def export_log(self) -> ClickLog:
        """Return the recorded lists with feedback, with all items on offer and the propensities.

        ``connect(record_lists=1000)`` records lists. Items are row numbers of ``recommend``; the user is this agent's
        number. ``fedcascade.data.logs:write_log`` writes the log to a file.
        """
        rows, advice = self._read_lists(RECORDED), "connect with record_lists=1000, and give feedback"
        require(len(rows) > 0, f"{self.memory.title} has no recorded list: {advice}")
        dimension = self.memory.state.local.dimension
        log = concatenate([row.to_log(self.id, dimension) for row in rows])
        return log if np.any(log.rewards != log.clicks) else replace(log, rewards=None)

    def open_lists(self) -> list[OpenList]:
        """List the lists without feedback, oldest first."""
        oldest, lists = self._options.clock.now() - self._options.keep_seconds, self._read_lists(OPEN)
        return [OpenList(each.impression, each.items, each.shown_at) for each in lists if each.shown_at >= oldest]

    def _read_lists(self, is_open: int) -> list[SavedList]:
        with self._hold(), self.memory.database.transaction() as run:
            return SavedLists(run, self.memory.database.title, self.memory.number).read(is_open)

    def erase(self) -> None:
        """Delete this agent from its store, not from the server; it cannot be used again."""
        with self._hold():
            self.memory.database.erase_agent(self.memory.number)
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
    def privacy(self) -> PrivacyBudget | None:
        """The privacy that uploads have spent; None if they are not private."""
        mechanism = self.memory.policy.privacy
        return None if mechanism is None else mechanism.measure_budget(self.memory.state.local.uploads)

    @property
    def estimate(self) -> NDArray[np.float64]:
        """The current estimate of theta."""
        return self.memory.state.local.decision.theta.copy()

    def _read_list(self, impression: ShownList | SupportsIndex, is_open: int) -> SavedList:
        """Read a list by its number; reject an expired one, and a list of another agent, process or life."""
        number = read_index("impression", impression.impression if isinstance(impression, ShownList) else impression)
        memory, options = self.memory, self._options
        found = memory.lists.read(is_open, number) if abs(number) < 2**63 else []
        if not found or found[0].shown_at < options.clock.now() - options.keep_seconds:
            kept = f"a list expires after {options.keep_lists} newer ones or {options.keep_seconds / 86_400:g} days"
            state, what = ("open list", "feedback") if is_open == OPEN else ("list without its reward", "it")
            raise ValueError(f"{memory.title} has no {state} {number}: {kept}, and takes {what} once")
        return found[0]

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Hold the lock, then announce uploads that wait; reject a closed agent, and a process that was forked."""
        memory = self.memory
        memory.database.require_same_process()
        with memory.lock:
            require(not (memory.has_left or memory.database.is_closed), GONE)
            yield
            if memory.state.outbox and not memory.has_left:
                self._announce()


def read_outcome(
    items: tuple[int, ...],
    clicked: Positions | EllipsisType,
    clicked_item: Positions | EllipsisType,
    looked_until: int | None,
    reward: float | Sequence[float] | None = None,
) -> Examination:
    """Return what a user has seen of a list, and clicked."""
    places = read_positions(list(items), clicked, clicked_item)
    last = None if looked_until is None else read_index("looked_until", looked_until)
    return examine(len(items), places, last, reward)


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
    if given is None:
        return []
    is_several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0 and not isinstance(given, str | bytes)
    return [read_index(name, value) for value in (given if is_several else [given])]  # type: ignore[union-attr]
