"""The sequential engine: rounds in order of time, for policies in which an exchange may reach other agents."""

from collections.abc import Callable
from typing import cast

import numpy as np

from fedcascade.federation.grouping.graph.complete import GraphPartition
from fedcascade.federation.messages import Cause, count_payload_bytes
from fedcascade.simulation.exact import sequential_kernels as loops
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.lowering import CAUSES, REPLY_RULES, RoundOrder, lower
from fedcascade.simulation.exact.windows import LONGEST_WINDOW, Batch, make_batch, make_driver_scratch, record_batch
from fedcascade.simulation.ledger import LedgerEntry
from fedcascade.simulation.scenario import Progress


class SequentialEngine:
    """An engine that plays rounds one after another, in compiled code between exchanges."""

    def __init__(self, driver: ExchangeDriver, window: int | None) -> None:
        self.driver = driver
        self.window = window or LONGEST_WINDOW
        self._play = self._choose_loop()
        self._scratch = make_driver_scratch(driver)

    def _choose_loop(self) -> Callable[[Batch], None]:
        if lower(REPLY_RULES, self.driver.policy.reply_rule) is not RoundOrder.ON_ARRIVAL:
            return self._play_by_time
        return self._play_every_round if type(self.driver.server.groups) is GraphPartition else self._play_on_arrival

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
        """Play until the next upload, run its exchange, and play on."""
        driver, first = self.driver, batch.window.first
        single = driver.policy.reply_rule.single_learner
        done = 0
        while done < batch.arrivals.size:
            done, fired = self._advance(batch, done, batch.arrivals.size)
            if fired >= 0:
                agent = 0 if single else int(batch.arrivals[done - 1])
                driver.run_exchange(first + done - 1, agent, CAUSES[fired])

    def _play_on_arrival(self, batch: Batch) -> None:
        """Let each agent ask the server before its round."""
        driver = self.driver
        for done, agent in enumerate(batch.arrivals.tolist()):
            fetched = driver.server.answer_arrival(agent)
            driver.receive(fetched)
            _, fired = self._advance(batch, done, done + 1)
            driver.run_exchange(batch.window.first + done, agent, CAUSES[fired], fetched)  # always uploads

    def _advance(self, batch: Batch, begin: int, end: int) -> tuple[int, int]:
        users = batch.arrivals
        agents = np.zeros_like(users) if self.driver.policy.reply_rule.single_learner else users
        schedule = loops.Schedule(users, agents)
        return loops.advance_by_time(batch.simulation, batch.window, schedule, begin, end, self._scratch)

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
