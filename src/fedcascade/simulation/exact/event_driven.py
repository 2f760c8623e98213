"""The event-driven engine, for policies in which an exchange reaches only the uploading agent.

Between two exchanges an agent's rounds depend on no other agent. So a window of rounds is played agent by agent, on
all cores, each agent until its next upload. A queue passes the uploads, in order of rounds, to the same
``federation.Server`` as in the reference, and the answered agent plays on.
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
from fedcascade.simulation.scenario import Scenario, list_news

SHORTEST_WINDOW = 64


@dataclass(frozen=True, eq=False)
class Task:
    """Agents whose rounds of a window are to be played, and the number of agents that threads have taken."""

    batch: Batch
    agents: Indices
    taken: Indices = field(default_factory=lambda: np.zeros(1, np.int64))


class EventDrivenEngine:
    """An engine that plays agents ahead, window by window, and answers their uploads in order of rounds.

    The driver has packed states, ``pool`` one thread less than ``threads``. A ``window`` of None is adaptive.
    """

    def __init__(
        self, scenario: Scenario, driver: ExchangeDriver, pool: ThreadPoolExecutor, threads: int, window: int | None
    ) -> None:
        self.scenario, self.driver = scenario, driver
        self.pool, self.threads = pool, threads
        self.window, self.length = window, SHORTEST_WINDOW
        self._workspace = threading.local()

    def play(self) -> Iterator[int]:
        """Play all rounds, window by window; yield the number of rounds done, between windows."""
        recorder = self.driver.recorder
        before = make_batch(self.driver, 1, 0)
        # An empty window compiles everything, so that compilation is not timed.
        now = self.play_window(before, before)
        recorder.start_clock()
        while before.last < recorder.rounds:
            yield before.last
            before, now = now, self.play_window(now, before)
        self.settle(before)
        yield before.last

    def play_window(self, now: Batch, before: Batch) -> Batch:
        """Play a window agent by agent, settle the previous one, and return the next one.

        Other threads play the agents without an upload in the previous window while this thread settles it.
        """
        rounds = now.window.stop - now.window.cursor
        # Agents with the most rounds come first, so that no thread starts a long task last.
        present = np.argsort(-rounds, kind="stable")[: np.count_nonzero(rounds)]
        first = now.window.first
        news = list_news(self.scenario, self.driver.server, first)
        if has_news := any(news):  # apply these before any agent plays on
            self.settle(before)
            self.driver.start_round(first, *news)
            before = now
        waiting = before.window.upload_round[present] > 0
        free, late = Task(now, present[~waiting]), Task(now, present[waiting])
        helpers = self._start_helpers(free)
        if not has_news:
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
        """Answer all uploads of a window in order of rounds, then record its totals.

        An answered agent plays on until its next upload or the end of the window.
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
        # After an exchange only one thread plays on, on average half of an agent's rounds in a window.
        alone = events * batch.arrivals.size / (2 * self.driver.environment.users)
        self.length = adapt_length(self.length, alone, self.threads, self.driver.environment.users)
        record_batch(self.driver, batch)

    def _advance(self, task: Task) -> None:
        if not hasattr(self._workspace, "memory"):  # of this thread
            state = select_agent(make_states(1, self.driver.problem.dimension), 0)
            self._workspace.memory = make_driver_scratch(self.driver), state
        advance_agents(task.batch.simulation, task.batch.window, task.agents, task.taken, *self._workspace.memory)


def adapt_length(length: int, alone: float, threads: int, users: int) -> int:
    """Double a window's length if one thread plays few of its rounds ``alone``; halve it if it plays many."""
    if threads == 1 or 4 * alone * threads < length:
        return min(2 * length, max(LONGEST_WINDOW, ROUNDS_PER_USER * users))
    return max(length // 2, SHORTEST_WINDOW) if alone * threads > length else length
