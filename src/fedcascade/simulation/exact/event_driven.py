"""The event-driven engine, for systems in which an exchange reaches the agent that uploads alone.

Between two exchanges an agent's rounds depend on no other agent, so a window of rounds is played agent by agent, on
all cores, each agent until it wants to upload. Those moments are events: a queue hands them, in the order of rounds,
to the same ``federation.Server`` that the reference uses, and the agent that was answered plays on. Nothing is guessed
and nothing is thrown away.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from fedcascade.simulation.exact.arrays import select_agent
from fedcascade.simulation.exact.driver import ExchangeDriver, make_states
from fedcascade.simulation.exact.kernels import advance_agents
from fedcascade.simulation.exact.lowering import CAUSES
from fedcascade.simulation.exact.screening import Indices
from fedcascade.simulation.exact.windows import (
    LONGEST_WINDOW,
    ROUNDS_PER_USER,
    Batch,
    make_batch,
    make_driver_scratch,
    record_batch,
)
from fedcascade.simulation.scenario import Scenario, list_cluster_changes, list_newcomers

SHORTEST_WINDOW = 64


@dataclass(frozen=True, eq=False)
class Task:
    """Agents whose rounds of a window are to be played, and how many of them some thread has begun with."""

    batch: Batch
    agents: Indices
    taken: Indices = field(default_factory=lambda: np.zeros(1, np.int64))


class EventDrivenEngine:
    """Plays agents ahead, window by window, and answers their uploads in the order of rounds.

    The driver has packed states. ``pool`` has one thread less than ``threads``; a ``window`` of None adapts. The result
    depends on none of them.
    """

    def __init__(
        self, scenario: Scenario, driver: ExchangeDriver, pool: ThreadPoolExecutor, threads: int, window: int | None
    ) -> None:
        self.scenario, self.driver, self.pool, self.threads = scenario, driver, pool, threads
        self.window, self.length = window, SHORTEST_WINDOW
        self._workspace = threading.local()

    def play(self) -> Iterator[int]:
        """Play all rounds, window by window; yields how many are done, while nothing is being played."""
        recorder = self.driver.recorder
        before = make_batch(self.driver, 1, 0)
        # Plays nothing, but compiles everything, and compilation is not timed.
        now = self.play_window(before, before)
        recorder.start_clock()
        while before.last < recorder.rounds:
            yield before.last
            before, now = now, self.play_window(now, before)
        self.settle(before)
        yield before.last

    def play_window(self, now: Batch, before: Batch) -> Batch:
        """Play a window agent by agent, settle the one before, and prepare the next, which is returned.

        Agents without an upload in the window before need not wait: other threads play on with them while this one
        settles, and it joins them afterwards.
        """
        rounds = now.window.stop - now.window.cursor
        # Agents with the most rounds come first, so that no thread begins a long task last.
        present = np.argsort(-rounds, kind="stable")[: np.count_nonzero(rounds)]
        first = now.window.first
        news = list_cluster_changes(self.driver.server, self.driver.environment, first)
        newcomers = list_newcomers(self.scenario, first)
        is_told = bool(news or newcomers)
        if is_told:  # nobody may play on before all know
            self.settle(before)
            self.driver.tell_changes(first, news)
            self.driver.receive(tuple(map(self.driver.server.answer, newcomers)))
            before = now
        waiting = before.window.upload_round[present] > 0
        free, late = Task(now, present[~waiting]), Task(now, present[waiting])
        helpers = self._start_helpers(free)
        if not is_told:
            self.settle(before)
        helpers += self._start_helpers(late)
        following = make_batch(self.driver, now.last + 1, self.window or self.length)
        self._advance(free)
        self._advance(late)
        for helper in helpers:
            helper.result()
        return following

    def _start_helpers(self, task: Task) -> list[Future[None]]:
        return [self.pool.submit(self._advance, task) for _ in range(min(self.threads, task.agents.size) - 1)]

    def settle(self, batch: Batch) -> None:
        """Answer every upload of a window in the order of rounds; then record its totals.

        An agent that was answered plays on until it uploads again or the window ends.
        """
        window, events = batch.window, 0
        queue = [(int(window.upload_round[agent]), int(agent)) for agent in np.flatnonzero(window.upload_round)]
        heapify(queue)
        while queue:
            round_, agent = heappop(queue)
            events += 1
            self.driver.run_exchange(round_, agent, CAUSES[int(window.trigger[agent])])
            self._advance(Task(batch, np.array([agent])))
            if window.upload_round[agent]:
                heappush(queue, (int(window.upload_round[agent]), agent))
        # After an exchange one thread alone plays on, for half of the rounds that an agent has in a window.
        alone = events * batch.arrivals.size / (2 * self.driver.environment.users)
        self.length = adapt_length(self.length, alone, self.threads, self.driver.environment.users)
        record_batch(self.driver, batch)

    def _advance(self, task: Task) -> None:
        if not hasattr(self._workspace, "memory"):  # of this thread
            room = select_agent(make_states(1, self.driver.problem.dimension), 0)
            self._workspace.memory = make_driver_scratch(self.driver), room
        advance_agents(task.batch.simulation, task.batch.window, task.agents, task.taken, *self._workspace.memory)


def adapt_length(length: int, alone: float, threads: int, users: int) -> int:
    """Double a window's length while one thread plays few of its rounds ``alone``, and halve it while it plays many."""
    if threads == 1 or 4 * alone * threads < length:
        return min(2 * length, max(LONGEST_WINDOW, ROUNDS_PER_USER * users))
    return max(length // 2, SHORTEST_WINDOW) if alone * threads > length else length
