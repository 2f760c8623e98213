"""The same Trace as the reference, event by event, compiled.

Between two exchanges an agent's rounds depend on nobody else, so a window of rounds is played agent by
agent, on all cores, each agent until it wants to speak. Those moments are events: a queue hands them, in the
order of rounds, to the same ``federation.Server`` that the reference uses, and the agent that was answered
plays on. Nothing is guessed and nothing is thrown away. Where an exchange may reach other agents, or one
learner serves everybody, rounds are played in the order of time instead (``turns``).
"""

import os
import threading
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heapify, heappop, heappush
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedcascade.checks import require_integer
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.environments.ratings import Ratings
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.decisions import DownloadAndBuffer, LastDownload
from fedcascade.federation.grouping.graph import GraphPartition
from fedcascade.federation.messages import Cause, payload_bytes
from fedcascade.federation.personal import AlternatingMinimisation
from fedcascade.federation.policies import Policy
from fedcascade.federation.replies import Asker, Everybody, Lagging, OnArrival, OneLearner
from fedcascade.federation.triggers import (
    Always,
    Auxiliary,
    Determinant,
    Doubling,
    Never,
    Ratio,
    SyncBudget,
)
from fedcascade.learning.confidence import Constant, Oful, Theory
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation.exact import every_round, kernels, sequential
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.lowering import (
    leaves,
    sync_budget,
)
from fedcascade.simulation.exact.screening import Scratch, make_scratch
from fedcascade.simulation.scenario import Simulation, prepare_simulation
from fedcascade.simulation.trace import Exchange, Trace

SHORTEST_WINDOW, LONGEST_WINDOW = 64, 4_096
CAUSES = {
    kernels.DETERMINANT: Cause.DETERMINANT,
    kernels.AUXILIARY: Cause.AUXILIARY,
    kernels.DOUBLING: Cause.FORCED,
    kernels.ALWAYS: Cause.FORCED,
    sequential.SYNCHRONISATION: Cause.SYNCHRONISATION,
}

KNOWN = {
    *(Synthetic, Ratings),
    TopK,
    LastDownload,
    DownloadAndBuffer,
    *(Determinant, Ratio, SyncBudget, Auxiliary, Doubling, Always, Never),
    *(Asker, OneLearner, OnArrival, Everybody, Lagging),
    *(AlternatingMinimisation, type(None)),
    *(Constant, Theory, Oful),
}


def unknown_part(environment: Environment, policy: Policy, oracle: Oracle) -> str | None:
    """The first part that this engine does not know, in words; None if it knows them all."""
    answers, triggers = policy.reply_rule, leaves(policy.trigger)
    parts: list[tuple[str, object]] = [("environment", environment), ("oracle", oracle), ("decision", policy.decision)]
    parts += [("trigger", leaf) for leaf in triggers] + [("answers", answers), ("personal part", policy.personal)]
    if isinstance(policy.decision, DownloadAndBuffer) or isinstance(answers, OnArrival):
        parts += [("confidence", policy.confidence)]
    unknown = [f"{kind} {type(part).__name__}" for kind, part in parts if type(part) not in KNOWN]
    fits = type(answers) in (Lagging, OneLearner) and isinstance(policy.decision, DownloadAndBuffer)
    if policy.personal and not fits:
        unknown.append("personal part beside such answers or decisions")
    if any(isinstance(leaf, SyncBudget) for leaf in (triggers if type(answers) is Asker else triggers[:-1])):
        unknown.append("trigger SyncBudget in such a place")
    return next(iter(unknown), None)


def simulate(
    environment: Clustered,
    policy: Policy,
    *,
    rounds: int,
    oracle: TopK,
    checkpoints: int = 10,
    keep_lists: bool = False,
    progress: Callable[[int], None] | None = None,
    threads: int | None = None,
    window: int | None = None,
) -> Trace:
    """Run a policy; the arguments are those of ``reference.simulate``.

    Args:
        environment: a world of clustered users, synthetic or from ratings.
        policy: a policy of parts that this engine knows (see ``unknown_part``).
        rounds: T.
        oracle: how long lists are.
        checkpoints: at how many evenly spaced rounds totals are kept.
        keep_lists: also keep every list.
        progress: called now and then with the number of rounds that are done; with 0 when all is compiled.
        threads: how many cores to use; all if None. The result does not depend on it.
        window: how many rounds to play at a time; adapts if None. The result does not depend on it.
    """
    threads = (os.cpu_count() or 1) if threads is None else threads
    require_integer("threads", threads)
    stage = prepare_simulation(
        environment, policy, oracle, rounds=rounds, checkpoints=checkpoints, keep_lists=keep_lists
    )
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        Engine(environment, oracle, stage, pool, threads, window).play(progress)
    return stage.recorder.trace(policy.name, "exact", stage.server.groups.labels)


class Batch(NamedTuple):
    """A window of rounds, who arrives in them, and the world as it is then."""

    world: kernels.World
    window: kernels.Window
    arrivals: NDArray[np.int64]

    @property
    def last(self) -> int:
        """The round with which it ends."""
        return self.window.first + self.arrivals.size - 1

    @property
    def present(self) -> NDArray[np.int64]:
        """Who has rounds in it, those with the most first, so that no thread begins a long task at the end."""
        rounds = self.window.stop - self.window.cursor
        return np.argsort(-rounds, kind="stable")[: np.count_nonzero(rounds)]


class Task(NamedTuple):
    """Agents whose rounds of a window are to be played, and how many of them some thread has taken up."""

    batch: Batch
    agents: NDArray[np.int64]
    taken: NDArray[np.int64]


class Engine(ExchangeDriver):
    """One run: the fleet of agents as arrays, and the queue of those who want to speak."""

    def __init__(
        self,
        environment: Clustered,
        oracle: TopK,
        stage: Simulation,
        pool: ThreadPoolExecutor,
        threads: int,
        window: int | None = None,
    ) -> None:
        super().__init__(environment, oracle, stage)
        self.pool = pool
        self.threads = threads
        self.window = window
        self.rooms = threading.local()
        self.ahead = type(self.policy.reply_rule) is Asker
        self.length = SHORTEST_WINDOW

    def play(self, progress: Callable[[int], None] | None) -> None:
        """All rounds, window by window; ``progress`` is called while nothing is being played."""
        before = self.batch(1, 0)
        now = self.play_ahead(before, before)  # plays nothing, but everything is compiled now, and that is not timed
        self.recorder.start_clock()
        while before.last < self.recorder.rounds:
            if progress is not None:
                progress(before.last)
            before, now = now, self.play_ahead(now, before)
        self.settle(before)
        if progress is not None:
            progress(before.last)

    def batch(self, first: int, most: int) -> Batch:
        """The next window; it ends where a checkpoint is, and where users begin to want something else."""
        stops = self.recorder.stops
        stop = stops[bisect_left(stops, first)] if first <= stops[-1] else first - 1
        count = self.environment.steady(first, min(most, stop - first + 1))
        arrivals = self.environment.arrivals(first, count)
        world = self.world._replace(thetas=self.environment.thetas_in(first))
        return Batch(world, self._window(first, arrivals), arrivals)

    def play_ahead(self, now: Batch, before: Batch) -> Batch:
        """Play a window agent by agent, each until it wants to speak; settle the one before, and prepare the next.

        Who had nothing to say in the one before need not wait: other threads play on with them, and this one joins
        in when it is through.
        """
        present = now.present if self.ahead else now.present[:0]
        waiting = before.window.spoke[present] > 0
        free, late = (Task(now, agents, np.zeros(1, np.int64)) for agents in (present[~waiting], present[waiting]))
        helpers = self._helped(free)
        self.settle(before)
        helpers += self._helped(late)
        following = self.batch(now.last + 1, self.window or self.length)
        self._advance(free)
        self._advance(late)
        for helper in helpers:
            helper.result()
        return following

    def _helped(self, task: Task) -> list[Future[None]]:
        """Let other threads take part in a task."""
        others = min(self.threads, task.agents.size) - 1
        return [self.pool.submit(self._advance, task) for _ in range(others)]

    def settle(self, batch: Batch) -> None:
        """Whatever the agents have to say in a window, in the order of time; then its totals."""
        window, events = batch.window, 0
        if self.ahead:
            events = self._events(batch)
        else:
            self.world = batch.world
            self._play_in_turn(window, batch.arrivals)
        alone = events * batch.arrivals.size / (2 * self.environment.users)
        self.length = next_length(self.length, alone, self.threads)
        self.recorder.record_rounds(window.first, window.regret, window.clicked, window.examined, window.lists)
        self.recorder.record_checkpoint(batch.last, self.server.groups.labels)

    def _events(self, batch: Batch) -> int:
        """Answer the agents that spoke in a window; each plays on until it speaks again or the window ends."""
        window = batch.window
        queue = [(int(window.spoke[agent]), int(agent)) for agent in np.flatnonzero(window.spoke)]
        heapify(queue)
        events = 0
        while queue:
            round_, agent = heappop(queue)
            events += 1
            self.exchange(round_, agent, CAUSES[int(window.trigger[agent])])
            self._advance(Task(batch, np.array([agent]), np.zeros(1, np.int64)))
            if window.spoke[agent]:
                heappush(queue, (int(window.spoke[agent]), agent))
        return events

    def _window(self, first: int, arrivals: NDArray[np.int64]) -> kernels.Window:
        users, count = self.environment.users, arrivals.size
        rounds, cursor, stop = kernels.sort_rounds(arrivals, first, users)
        kept = count if self.recorder.lists is not None else 0
        return kernels.Window(
            first=first,
            rounds=rounds,
            cursor=cursor,
            stop=stop,
            spoke=np.zeros(users, np.int64),
            trigger=np.zeros(users, np.int64),
            regret=np.empty(count),
            clicked=np.empty(count, np.bool_),
            examined=np.empty(count, np.int64),
            lists=np.full((kept, self.rules.length), -1, np.int32),
        )

    def _advance(self, task: Task) -> None:
        batch = task.batch
        kernels.advance(batch.world, self.rules, self.fleet, batch.window, task.agents, task.taken, self._scratch())

    def _scratch(self) -> Scratch:
        """The room of this thread."""
        if not hasattr(self.rooms, "scratch"):
            self.rooms.scratch = make_scratch(self.problem.dimension, self.environment.most_items, self.rules.length)
        return cast(Scratch, self.rooms.scratch)

    def _play_in_turn(self, window: kernels.Window, arrivals: NDArray[np.int64]) -> None:
        """The rounds of a window one after another: each exchange may change what the next agent knows."""
        answers, groups = self.policy.reply_rule, self.server.groups
        if isinstance(answers, OnArrival):
            serve = self._serve if type(groups) is GraphPartition else self._fetch
            serve(window, arrivals)
            return
        agents = np.zeros_like(arrivals) if answers.single_learner else arrivals
        now = sequential.Turns(users=arrivals, agents=agents, budget=sync_budget(self.policy.trigger))
        done = 0
        while done < arrivals.size:
            done, fired = self._take_turns(window, now, done, arrivals.size)
            if fired >= 0:
                self.exchange(window.first + done - 1, int(agents[done - 1]), CAUSES[fired])

    def _take_turns(self, window: kernels.Window, now: sequential.Turns, begin: int, end: int) -> tuple[int, int]:
        return sequential.advance(self.world, self.rules, self.fleet, self.own, window, now, begin, end)

    def _fetch(self, window: kernels.Window, arrivals: NDArray[np.int64]) -> None:
        """Agents that ask their server in every round, whatever it does with its groups."""
        now = sequential.Turns(users=arrivals, agents=arrivals, budget=np.inf)
        for done, agent in enumerate(arrivals.tolist()):
            fetched = self.server.answer_arrival(agent)
            for download in fetched:
                self._receive(download)
            _, fired = self._take_turns(window, now, done, done + 1)
            self.exchange(window.first + done, agent, CAUSES[fired], fetched)

    def _serve(self, window: kernels.Window, arrivals: NDArray[np.int64]) -> None:
        """The same with a heterogeneity graph, compiled until the graph changes."""
        groups = cast(GraphPartition, self.server.groups)
        done = 0
        while done < arrivals.size:
            graph = every_round.borrow(groups)
            done = every_round.advance(self.world, self.rules, self.fleet, graph, window, arrivals, done)
            every_round.give_back(graph, groups)
            groups.revise(int(arrivals[done - 1]))
        self.server.rounds += arrivals.size
        weight = payload_bytes(self.problem.dimension)
        for i, agent in enumerate(arrivals.tolist()):
            self.recorder.ledger.append(Exchange(window.first + i, agent, Cause.FORCED, weight, weight))


def next_length(length: int, alone: float, threads: int) -> int:
    """Windows double while few rounds in them are played alone, after their agent spoke, and halve while many are."""
    if threads == 1 or 4 * alone * threads < length:
        return min(2 * length, LONGEST_WINDOW)
    return max(length // 2, SHORTEST_WINDOW) if alone * threads > length else length
