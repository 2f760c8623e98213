"""The sequential engine: rounds in order of time, for policies in which an exchange may reach other agents."""

from typing import cast

import numpy as np

from fedcascade.federation.grouping.graph.complete import GraphPartition
from fedcascade.federation.messages import Cause, Downloads, count_payload_bytes
from fedcascade.simulation.exact import sequential_kernels as loops
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.lowering import CAUSES, REPLY_RULES, RoundOrder, lower
from fedcascade.simulation.exact.screening import Indices
from fedcascade.simulation.exact.windows import LONGEST_WINDOW, Batch, make_batch, make_driver_scratch, record_batch
from fedcascade.simulation.ledger import LedgerEntry
from fedcascade.simulation.scenario import Progress, Scenario, list_news


class SequentialEngine:
    """An engine that plays rounds one after another, in compiled code between exchanges."""

    def __init__(self, scenario: Scenario, driver: ExchangeDriver, window: int | None) -> None:
        self.scenario, self.driver = scenario, driver
        self.window = window or LONGEST_WINDOW
        self._asks = lower(REPLY_RULES, driver.policy.reply_rule) is RoundOrder.ON_ARRIVAL
        is_compiled = self._asks and not scenario.is_late and type(driver.server.groups) is GraphPartition
        self._play = self._play_every_round if is_compiled else self._play_by_time
        due = [scenario.find_due_round(t) for t in range(1, scenario.rounds + 1)] if scenario.is_late else []
        self._lists = self._open_lists(1, np.array(due, np.int64))
        self._fetched: dict[int, Downloads] = {}  # before the rounds whose feedback is to come
        self._scratch = make_driver_scratch(driver)

    def play(self, progress: Progress) -> None:
        """Play all rounds, window by window; ``progress`` is called between windows."""
        recorder, done = self.driver.recorder, 0
        self._advance(make_batch(self.driver, 1, 0), 0, 0)  # compiles, so that compilation is not timed
        recorder.start_clock()
        progress(done)
        while done < recorder.rounds:
            batch = make_batch(self.driver, done + 1, self.window)
            self._play(batch)
            record_batch(self.driver, batch)
            done = batch.last
            progress(done)

    def _play_by_time(self, batch: Batch) -> None:
        """Play until the next upload, run its exchange, and play on; let agents ask the server before their rounds."""
        driver, first, done = self.driver, batch.window.first, 0
        if not self.scenario.is_late:
            self._lists = self._open_lists(first, np.arange(first, first + batch.arrivals.size))
        lists = self._lists
        driver.start_round(first, *list_news(self.scenario, driver.server, first))
        while done < batch.arrivals.size:
            if self._asks and lists.progress[loops.SHOWN] < first + done:
                self._fetched[first + done] = fetched = driver.server.answer_arrival(int(batch.arrivals[done]))
                driver.receive(fetched)
            done, fired = self._advance(batch, done, done + 1 if self._asks else batch.arrivals.size)
            if fired >= 0:
                last = lists.progress[loops.LEARNED] - 1
                shown, learned = int(lists.rounds[last]), int(lists.due[last])
                agent = int(lists.agents[shown % lists.agents.size])
                driver.run_exchange(learned, agent, CAUSES[fired], self._fetched.pop(shown, ()))

    def _open_lists(self, first: int, due: Indices) -> loops.OpenLists:
        return loops.make_open_lists(first, due, self.scenario.oracle.length, self.driver.problem.dimension)

    def _advance(self, batch: Batch, begin: int, end: int) -> tuple[int, int]:
        users = batch.arrivals
        agents = np.zeros_like(users) if self.driver.policy.reply_rule.single_learner else users
        played = batch.simulation, batch.window, users, agents
        return loops.advance_by_time(*played, self._lists, begin, end, self._scratch)

    def _play_every_round(self, batch: Batch) -> None:
        """Play rounds with an exchange each, in compiled code until the heterogeneity graph may change."""
        driver, users, done = self.driver, batch.arrivals, 0
        groups = cast(GraphPartition, driver.server.groups)
        before = int(groups.holdings.rounds.sum())
        while done < users.size:
            graph = loops.copy_graph(groups)
            done = loops.advance_every_round(batch.simulation, graph, batch.window, users, done, self._scratch)
            loops.write_back(graph, groups)
            groups.revise(int(users[done - 1]))
        driver.server.rounds += int(groups.holdings.rounds.sum()) - before
        size = count_payload_bytes(driver.problem.dimension)
        driver.recorder.ledger.extend(
            LedgerEntry(batch.window.first + i, agent, Cause.FORCED, size, size)
            for i, agent in enumerate(users.tolist())
        )
