"""One run as the CUDA engine's host sees it: who may play on, who wants to speak, and what the server answers.

An agent plays on the device, ahead of all others, until it may want to speak. Whether it does is decided here,
by the same compiled function as in the exact engine, and its exchange takes place when nobody else can speak
before it: every agent that still plays has a round before which its trigger cannot fire.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics.jit import jit
from fedcascade.simulation.cuda import layout as device
from fedcascade.simulation.exact import kernels
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.lowering import CAUSES
from fedcascade.simulation.exact.screening import make_scratch
from fedcascade.simulation.scenario import Scenario, prepare_simulation
from fedcascade.simulation.trace import Trace

LONGEST_SEGMENT = 1 << 17
NOBODY = 1 << 62  # a round that never comes


class Segment(NamedTuple):
    """A stretch of rounds up to the next checkpoint."""

    first: int
    order: NDArray[np.int32]  # the rounds, counted from first, sorted by agent, then by time
    begin: list[int]  # where in order each agent's begin and end
    end: list[int]
    drawn: list[int]  # where in order the rounds of random exchanges are


class Places(NamedTuple):
    """How far the agents of a run are, as arrays over agents that its squad reads and writes too."""

    cursor: NDArray[np.int64]  # where in the order an agent plays on
    until: NDArray[np.int64]  # where it stops at the latest: the segment's end, or after a round in which it may speak
    may_speak: NDArray[np.int64]  # the first round in which it may speak; NOBODY if it has nothing to play
    fresh: NDArray[np.bool_]  # whether the device has not seen its download

    def of(self, own: slice) -> "Places":
        """Those of some agents."""
        return Places(self.cursor[own], self.until[own], self.may_speak[own], self.fresh[own])


class Run:
    """A run that is being played."""

    def __init__(self, case: Scenario, pool: Executor) -> None:
        self.case = case
        self.pool = pool
        self.stage = prepare_simulation(case)
        self.desk = ExchangeDriver(case, self.stage)
        self.scratch = make_scratch(case.environment.dimension, case.environment.most_items, case.oracle.length)
        rules = self.desk.compiled_policy
        kinds = rules.triggers.tolist()
        levels = dict(zip(kinds, rules.levels.tolist(), strict=True))
        bounds = dict(zip(kinds, rules.bounds.tolist(), strict=True))
        self.level = levels.get(kernels.DETERMINANT, math.inf)
        self.bound = bounds.get(kernels.DETERMINANT, math.inf)
        self.p_scale = levels.get(kernels.AUXILIARY)
        self.doubling, self.always = kernels.DOUBLING in kinds, kernels.ALWAYS in kinds
        self.speaks = bool(kinds)
        self.arrivals = [0] * case.environment.users  # before the segment
        self.queue: list[tuple[int, int, int]] = []
        self.ended = False
        self._parts = self._split()
        self._next: Future[Segment] | None = None
        self._fetch()

    @property
    def params(self) -> list[float]:
        """The policy's constants, as the device reads them."""
        rules = self.desk.compiled_policy
        params = [0.0] * 4
        params[device.LEVEL], params[device.BOUND] = self.level, self.bound
        params[device.SLACK], params[device.LAMBDA] = rules.slack, rules.lambda_
        return params

    def _split(self) -> Iterator[tuple[int, int]]:
        first = 1
        for stop in self.stage.recorder.stops:
            while first <= stop:
                count = min(LONGEST_SEGMENT, stop - first + 1)
                yield first, count
                first += count

    def _fetch(self) -> None:
        """Let somebody else look up who arrives in the next segment."""
        part = next(self._parts, None)
        self._next = self.pool.submit(self._segment, *part) if part else None

    def _segment(self, first: int, count: int) -> Segment:
        environment = self.case.clustered
        rounds, begin, end = kernels.sort_rounds(environment.arrivals(first, count), first, environment.users)
        drawn = np.empty(0, np.int64) if self.p_scale is None else lucky(environment.seed, self.p_scale, rounds)
        return Segment(first, (rounds - first).astype(np.int32), begin.tolist(), end.tolist(), drawn.tolist())

    def begin(self, places: Places) -> Segment | None:
        """Begin with the next segment; None when all is played."""
        if self._next is None:
            self.ended = True
            return None
        self.segment, self.places = self._next.result(), places
        self._fetch()
        places.cursor[:] = self.segment.begin
        for agent in range(places.cursor.size):
            self._play_on(agent, 0)
        return self.segment

    def _until(self, agent: int, cursor: int) -> int:
        segment = self.segment
        end = segment.end[agent]
        if self.p_scale is not None:
            found = bisect_left(segment.drawn, cursor)
            if found < len(segment.drawn):
                end = min(end, segment.drawn[found] + 1)
        if self.doubling:
            came = self._came(agent, cursor)
            end = min(end, cursor + (1 << came.bit_length()) - came)
        return min(end, cursor + 1) if self.always else end

    def _came(self, agent: int, cursor: int) -> int:
        """How often the agent's user has come."""
        return self.arrivals[agent] + cursor - self.segment.begin[agent]

    def _play_on(self, agent: int, silent: int) -> None:
        """An agent has nothing to say now; nor will it before it has played ``silent`` more rounds."""
        places, segment = self.places, self.segment
        cursor = int(places.cursor[agent])
        if cursor == segment.end[agent]:
            places.may_speak[agent] = NOBODY
        else:
            until = self._until(agent, cursor)
            places.until[agent] = until
            places.may_speak[agent] = segment.first + int(segment.order[min(cursor + silent, until - 1)])

    def listen(self, agent: int, own: NDArray[np.float64]) -> None:
        """An agent may want to speak in the round it has played last; if so, it waits for its turn."""
        segment, cursor = self.segment, int(self.places.cursor[agent])
        t = segment.first + int(segment.order[cursor - 1])
        kind = self._fires(agent, t, self._came(agent, cursor), own)
        if kind >= 0:
            self.places.may_speak[agent] = NOBODY
            heappush(self.queue, (t, agent, kind))
        else:
            self._play_on(agent, 0)

    def _fires(self, agent: int, t: int, came: int, own: NDArray[np.float64]) -> int:
        """Take what the device has learned over, and decide as the exact engine does."""
        fleet = self.desk.states
        d = fleet.moment.shape[1]
        fleet.buffer_moment[agent] = own[device.BUFFER : device.BUFFER + d]
        fleet.buffer_gram[agent] = own[device.BUFFER + d :].reshape(d, d)
        fleet.numbers[agent, kernels.SQUARED_WIDTHS] = own[device.TAUGHT]
        fleet.counts[agent, : kernels.ARRIVALS] = own[device.EXAMINED : device.BUFFER]
        fleet.counts[agent, kernels.ARRIVALS] = came
        return int(
            kernels.find_trigger_of(
                self.desk.compiled_environment.seed, self.desk.compiled_policy, fleet, agent, self.scratch, t
            )
        )

    def settle(self) -> bool:
        """Let those speak whose turn it is; returns whether the segment has been played."""
        places = self.places
        while self.queue and self.queue[0][0] < places.may_speak.min():
            round_, agent, kind = heappop(self.queue)
            self.desk.run_exchange(round_, agent, CAUSES[kind])
            places.fresh[agent] = True
            self._play_on(agent, self._silent(agent))
        return not self.queue and bool(places.may_speak.min() == NOBODY)

    def _silent(self, agent: int) -> int:
        """For how many rounds after a download the determinant cannot have grown enough.

        An item of length 1 adds at most the largest eigenvalue of Sigma^-1 to the trace, and that is at most the
        fourth root of the Frobenius norm of its fourth power (root root^T has the same eigenvalues).
        """
        if self.level == math.inf:
            return NOBODY
        if not self.queue or self.desk.compiled_policy.every_round:
            return 0
        root = self.desk.states.root[agent]
        power = root @ root.T
        power = power @ power
        power = power @ power
        largest = math.sqrt(math.sqrt(math.sqrt(float(np.vdot(power, power)))))
        return int(self.bound / (self.desk.compiled_policy.length * largest * (1.0 + 1e-5)))

    def download(self, agent: int, row: NDArray[np.float64]) -> None:
        """Write what an agent decides with into ``row``, in the order of ``cuda_layout.Layout``."""
        fleet = self.desk.states
        d = fleet.moment.shape[1]
        layout = device.Layout.of(d)
        row[:d] = fleet.theta[agent]
        row[layout.root : layout.gram] = fleet.root[agent].reshape(-1)
        row[layout.gram : layout.moment] = fleet.gram[agent].reshape(-1)
        row[layout.moment : layout.numbers] = fleet.moment[agent]
        row[layout.numbers : layout.own] = fleet.numbers[agent, :2]

    def end(self, regret: NDArray[np.float64], outcome: NDArray[np.uint8], lists: NDArray[np.int32]) -> None:
        """Take the rounds of a segment into the record."""
        recorder, segment = self.stage.recorder, self.segment
        clicked, examined = (outcome & 1).astype(np.bool_), (outcome >> 1).astype(np.int64)
        recorder.record_rounds(segment.first, regret, clicked, examined, lists)
        recorder.record_checkpoint(segment.first + regret.size - 1, self.stage.server.groups.labels)
        for agent in range(len(self.arrivals)):
            self.arrivals[agent] += segment.end[agent] - segment.begin[agent]

    def trace(self) -> Trace:
        """The finished Trace."""
        return self.stage.recorder.build_trace(self.case.policy.name, "cuda", self.stage.server.groups.labels)


@jit
def lucky(seed: np.uint64, p_scale: float, rounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of some rounds are those of random exchanges, as ``kernels`` decides it."""
    found = np.empty(rounds.size, np.int64)
    count = 0
    for i in range(rounds.size):
        if kernels.is_drawn(seed, p_scale, rounds[i]):
            found[count] = i
            count += 1
    return found[:count].copy()
