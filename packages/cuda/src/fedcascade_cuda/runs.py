"""One run on the host of the CUDA engine: positions of agents, pending uploads and exchanges.

An agent plays on the device until a trigger may fire. The host decides whether it does, by the compiled function of the
exact engine. The exchange follows once no other agent can upload before it: for each playing agent, a round is known
before which none of its triggers can fire.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics.jit import jit
from fedcascade.simulation.exact import arrays, kernels
from fedcascade.simulation.exact.driver import ExchangeDriver
from fedcascade.simulation.exact.lowering import CAUSES
from fedcascade.simulation.exact.screening import make_scratch
from fedcascade.simulation.scenario import Scenario, prepare_simulation
from fedcascade.simulation.trace import Trace
from fedcascade_cuda import layout
from fedcascade_cuda.lowering import lower_triggers

LONGEST_SEGMENT = 1 << 17  # rounds
NO_UPLOAD = 1 << 62  # larger than the last round of any run


class Segment(NamedTuple):
    """Consecutive rounds up to the next checkpoint, or fewer."""

    first: int
    users: NDArray[np.int64]  # of each round
    order: NDArray[np.int32]  # rounds relative to first, sorted by agent, then by time
    begin: list[int]  # index in order of each agent's first round
    end: list[int]
    auxiliary: list[int]  # indices in order of rounds with random exchanges


class Positions(NamedTuple):
    """The progress of agents, as arrays over agents; those of a run are views of those of its batch."""

    cursor: NDArray[np.int64]  # index in the order of an agent's next round
    stop: NDArray[np.int64]  # index at which it stops: the segment's end, or after a round in which it may upload
    next_upload: NDArray[np.int64]  # first round in which it may upload; NO_UPLOAD without rounds to play
    needs_download: NDArray[np.bool_]  # True if the device lacks its last download

    @classmethod
    def of(cls, agents: int) -> "Positions":
        """Return the positions of agents without rounds to play, with downloads to send."""
        cursor, stop = np.zeros((2, agents), np.int64)
        return cls(cursor, stop, np.full(agents, NO_UPLOAD), np.ones(agents, np.bool_))

    def view(self, agents: slice) -> "Positions":
        """Return a view of the positions of some agents."""
        return Positions(self.cursor[agents], self.stop[agents], self.next_upload[agents], self.needs_download[agents])


class DeviceRun:
    """A run whose rounds are played on the device."""

    def __init__(self, scenario: Scenario, pool: Executor) -> None:
        self.scenario = scenario
        self.environment = environment = scenario.clustered
        self.simulation = prepare_simulation(scenario)
        self.driver = ExchangeDriver(scenario, self.simulation)
        self.scratch = make_scratch(environment.dimension, environment.most_items, scenario.oracle.length)
        self.stop_rule = lower_triggers(self.driver.compiled_policy)
        self.arrivals = [0] * environment.users  # of each user, before the segment
        self.uploads: list[tuple[int, int, int]] = []  # a heap: round, agent, and the kind of trigger that fired
        self.ended = False
        self._pool = pool
        self._stretches = split_rounds(self.simulation.recorder.stops)
        self._next = self._prefetch_segment()

    def _prefetch_segment(self) -> Future[Segment] | None:
        """Draw the arrivals of the next segment in another thread, if there is one."""
        stretch = next(self._stretches, None)
        return self._pool.submit(self._make_segment, *stretch) if stretch else None

    def _make_segment(self, first: int, count: int) -> Segment:
        environment = self.environment
        users = environment.arrivals(first, count)
        rounds, begin, end = arrays.sort_rounds(users, first, environment.users)
        p_scale = self.stop_rule.p_scale
        auxiliary = find_auxiliary_rounds(environment.seed, p_scale, rounds if p_scale > 0.0 else rounds[:0])
        order = (rounds - first).astype(np.int32)
        return Segment(first, users, order, begin.tolist(), end.tolist(), auxiliary.tolist())

    def begin_segment(self, positions: Positions) -> Segment | None:
        """Begin the next segment, and set the agents' ``positions`` in it; return None after the last one."""
        if self._next is None:
            self.ended = True
            return None
        self.segment, self.positions = self._next.result(), positions
        self._next = self._prefetch_segment()
        positions.cursor[:] = self.segment.begin
        for agent in range(positions.cursor.size):
            self._resume(agent, 0)
        return self.segment

    def _find_stop(self, agent: int, cursor: int) -> int:
        """Return the index in the order at which an agent has to stop for the host."""
        segment, rule = self.segment, self.stop_rule
        stop = segment.end[agent]
        draw = bisect_left(segment.auxiliary, cursor)
        if draw < len(segment.auxiliary):
            stop = min(stop, segment.auxiliary[draw] + 1)
        if rule.at_doublings:
            arrivals = self._count_arrivals(agent, cursor)
            stop = min(stop, cursor + (1 << arrivals.bit_length()) - arrivals)
        return min(stop, cursor + 1) if rule.always else stop

    def _count_arrivals(self, agent: int, cursor: int) -> int:
        return self.arrivals[agent] + cursor - self.segment.begin[agent]

    def _resume(self, agent: int, silent: int) -> None:
        """Let an agent play on; its determinant cannot trigger an upload in the next ``silent`` rounds."""
        positions, segment = self.positions, self.segment
        cursor = int(positions.cursor[agent])
        if cursor == segment.end[agent]:
            positions.next_upload[agent] = NO_UPLOAD
        else:
            stop = self._find_stop(agent, cursor)
            positions.stop[agent] = stop
            positions.next_upload[agent] = segment.first + int(segment.order[min(cursor + silent, stop - 1)])

    def check_triggers(self, agent: int, own: NDArray[np.float64]) -> None:
        """Decide whether an agent uploads after its last round; ``own`` is its own part from the device."""
        segment, driver = self.segment, self.driver
        cursor = int(self.positions.cursor[agent])
        t = segment.first + int(segment.order[cursor - 1])
        arrivals = self._count_arrivals(agent, cursor)
        self._load_buffer(agent, own, arrivals)
        seed, policy = driver.compiled_environment.seed, driver.compiled_policy
        state = arrays.select_agent(driver.states, agent)
        kind = int(kernels.find_trigger(seed, policy, state, self.scratch, t, t, arrivals))
        if kind >= 0:
            self.positions.next_upload[agent] = NO_UPLOAD
            heappush(self.uploads, (t, agent, kind))
        else:
            self._resume(agent, 0)

    def _load_buffer(self, agent: int, own: NDArray[np.float64], arrivals: int) -> None:
        """Copy an agent's buffer from the device to the exact engine's state."""
        states, d = self.driver.states, self.environment.dimension
        states.buffer_moment[agent] = own[layout.BUFFER : layout.BUFFER + d]
        states.buffer_gram[agent] = own[layout.BUFFER + d :].reshape(d, d)
        states.numbers[agent, arrays.SQUARED_WIDTHS] = own[layout.WIDTHS]
        states.counts[agent, : arrays.ARRIVALS] = own[layout.EXAMINED : layout.BUFFER]
        states.counts[agent, arrays.ARRIVALS] = arrivals

    def run_exchanges(self) -> bool:
        """Run the exchanges that no other agent can precede; return whether the segment is complete."""
        positions = self.positions
        while self.uploads and self.uploads[0][0] < positions.next_upload.min():
            round_, agent, kind = heappop(self.uploads)
            self.driver.run_exchange(round_, agent, CAUSES[kind])
            positions.needs_download[agent] = True
            self._resume(agent, self.count_silent_rounds(agent))
        return not self.uploads and bool(positions.next_upload.min() == NO_UPLOAD)

    def count_silent_rounds(self, agent: int) -> int:
        """Return the number of rounds after a download in which the determinant cannot grow enough.

        An item of length 1 adds at most the largest eigenvalue of Sigma^-1 to the trace, and that is at most the
        fourth root of the Frobenius norm of its fourth power (root root^T has the same eigenvalues).
        """
        if self.stop_rule.level == math.inf:
            return NO_UPLOAD
        policy = self.driver.compiled_policy
        if not self.uploads or policy.every_round:
            return 0
        root = self.driver.states.root[agent]
        power = root @ root.T
        power = power @ power
        power = power @ power
        largest = math.sqrt(math.sqrt(math.sqrt(float(np.vdot(power, power)))))
        return int(self.stop_rule.bound / (policy.length * largest * (1.0 + 1e-5)))

    def write_download(self, agent: int, row: NDArray[np.float64]) -> None:
        """Write an agent's download and decision into ``row``, in the order of ``Layout``."""
        states = self.driver.states
        root, gram = states.root[agent].reshape(-1), states.gram[agent].reshape(-1)
        np.concatenate((states.theta[agent], root, gram, states.moment[agent], states.numbers[agent, :2]), out=row)

    def record_segment(self, regret: NDArray[np.float64], outcome: NDArray[np.uint8], lists: NDArray[np.int32]) -> None:
        recorder, segment = self.simulation.recorder, self.segment
        clicked, examined = (outcome & 1).astype(np.bool_), (outcome >> 1).astype(np.int64)
        recorder.record_rounds(segment.first, segment.users, regret, clicked, examined, lists)
        recorder.record_checkpoint(segment.first + regret.size - 1, self.simulation.server.groups.labels)
        for agent in range(len(self.arrivals)):
            self.arrivals[agent] += segment.end[agent] - segment.begin[agent]

    def build_trace(self) -> Trace:
        labels = self.simulation.server.groups.labels
        return self.simulation.recorder.build_trace(self.scenario.policy.name, "cuda", labels)


def split_rounds(stops: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first round and the length of each segment between checkpoints."""
    first = 1
    for stop in stops:
        while first <= stop:
            count = min(LONGEST_SEGMENT, stop - first + 1)
            yield first, count
            first += count


@jit
def find_auxiliary_rounds(seed: np.uint64, p_scale: float, rounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of ``rounds`` with random exchanges (``kernels.is_drawn``)."""
    drawn = np.empty(rounds.size, np.bool_)
    for i in range(rounds.size):
        drawn[i] = kernels.is_drawn(seed, p_scale, rounds[i], rounds[i])
    return np.flatnonzero(drawn)
