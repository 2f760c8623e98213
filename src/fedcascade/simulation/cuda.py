"""The same Trace as the reference, with the rounds of many runs played at once on a GPU.

Between two exchanges an agent's rounds depend on nobody else. A launch lets every agent that may play on, of all
runs, play until it may want to speak (``cuda_kernels``). The host then decides who speaks, hands uploads to the same
``federation.Server`` as every engine (``cuda_runs``), and launches again. Runs are dealt into squads, so that the
device plays for one squad while the host listens to another.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from fedcascade.federation.answers import Asker
from fedcascade.federation.decisions import DownloadAndBuffer
from fedcascade.federation.policies import Policy
from fedcascade.learning.confidence import Oful
from fedcascade.simulation import cuda_kernels as device
from fedcascade.simulation import exact
from fedcascade.simulation.cuda_device import check_device, uncontracted
from fedcascade.simulation.cuda_runs import LONGEST_SEGMENT, Case, Run
from fedcascade.simulation.trace import Trace

THREADS = 256  # of a block
ROUNDS_PER_LAUNCH = 4_096  # of an agent, so that one agent that never speaks does not hold up the others
SHARED_BYTES = 46_000  # what a block may use, less some for small things
SQUADS = 3  # of runs of one shape
TOGETHER = 64  # runs at a time

Tell = Callable[[int], None]


def unknown_part(case: Case) -> str | None:
    """The first part that this engine does not know, in words; None if it knows them all."""
    environment, policy = case.environment, case.policy
    unknown = exact.unknown_part(environment, policy, case.oracle)
    if unknown is not None:
        return unknown
    if type(policy.answers) is not Asker:
        return f"answers {type(policy.answers).__name__}"
    if environment.catalogue.shape[1] > 0:
        return f"catalogue of {type(environment).__name__}"
    if isinstance(policy.decision, DownloadAndBuffer) and isinstance(policy.confidence, Oful):
        return f"confidence {type(policy.confidence).__name__} in every round"
    if _teams(environment.most_items, case.oracle.length, environment.dimension) == 0:
        return "number of items: too many for a multiprocessor"
    return None


def simulate(case: Case, progress: Tell | None = None) -> Trace:
    """Run one case."""
    return next(simulate_all([case], progress))[1]


def simulate_all(cases: Sequence[Case], tell: Tell | None = None) -> Iterator[tuple[int, Trace]]:
    """Run many cases together.

    Args:
        cases: what to run, of parts that this engine knows (see ``unknown_part``).
        tell: called now and then with the number of rounds that are done, of all cases together; with 0 when all is
            compiled.

    Yields:
        The number of a case and its Trace, as each ends.
    """
    check_device()
    done = 0

    def count(rounds: int) -> None:
        nonlocal done
        done += rounds
        if tell is not None:
            tell(done)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for first in range(0, len(cases), TOGETHER):
            chosen = range(first, min(first + TOGETHER, len(cases)))
            squads = deque(_squads({number: Run(cases[number], pool) for number in chosen}, pool))
            count(0)
            for squad in squads:
                squad.start()
                squad.launch()
            while squads:
                squad = squads.popleft()
                yield from squad.listen(count)
                if squad.launch():
                    squads.append(squad)


def _squads(runs: dict[int, Run], pool: Executor) -> "list[_Squad]":
    """Runs of one shape in a few squads; everything is compiled here."""
    shapes: dict[device.Shape, list[int]] = {}
    for number, run in runs.items():
        shapes.setdefault(_shape(run.case), []).append(number)
    return [
        _Squad(shape, {number: runs[number] for number in numbers[part::SQUADS]}, pool)
        for shape, numbers in shapes.items()
        for part in range(min(SQUADS, len(numbers)))
    ]


def _shape(case: Case) -> device.Shape:
    environment, every_round = case.environment, isinstance(case.policy.decision, DownloadAndBuffer)
    d, most = environment.dimension, environment.most_items
    teams = 1 if every_round else min(THREADS // device.LANES, _teams(most, case.oracle.length, d))
    return device.Shape(
        dimension=d,
        fewest_items=environment.fewest_items,
        most_items=most,
        length=case.oracle.length,
        lifted=environment.lifted,
        every_round=every_round,
        teams=teams,
        width=THREADS if every_round else device.LANES,
    )


def _teams(items: int, length: int, d: int) -> int:
    """How many teams have room in the shared memory of a block."""
    factors = 16 * d * d if d <= device.NEAR else 16
    of_a_team = 12 * items + 20 * device.LANES + length * (4 * d + 28) + 32
    return max(0, (SHARED_BYTES - factors - 4 * d * d - 40 * d) // of_a_team)


class _Squad:
    """Some runs of one shape: their arrays on the device, and a stream of launches."""

    def __init__(self, shape: device.Shape, runs: dict[int, Run], pool: Executor) -> None:
        self.shape = shape
        self.pool = pool
        self.numbers, self.runs = list(runs), list(runs.values())
        self.stream = cuda.stream()
        with uncontracted():
            self.kernel = device.kernel(shape)
            self._allocate()
            self._launch(0)  # nothing is played, but everything is compiled now, and that is not timed
        self.stream.synchronize()

    def _allocate(self) -> None:
        layout, runs = device.Layout(self.shape.dimension), self.runs
        users = max(run.case.environment.users for run in runs)
        slots, d = users * len(runs), self.shape.dimension
        longest = max(min(LONGEST_SEGMENT, _longest(run.stage.recorder.stops)) for run in runs)
        kept = longest if any(run.case.keep_lists for run in runs) else 0
        rows = np.zeros((slots, layout.size))
        for number, run in enumerate(runs):
            thetas = run.case.environment.thetas
            rows[number * users : number * users + len(thetas), layout.truth :] = thetas
        self.users = users
        self.rows = cuda.to_device(rows, self.stream)
        self.factors = cuda.device_array((slots, 2, d, d) if d > device.NEAR else (1, 2, 1, 1), np.float64)
        self.seeds = cuda.to_device(np.array([run.case.environment.seed for run in runs], np.uint64), self.stream)
        self.params = cuda.to_device(np.array([run.params for run in runs]), self.stream)
        self.order = cuda.device_array((len(runs), longest), np.int32)
        self.firsts = np.zeros(len(runs), np.int64)
        self.device_firsts = cuda.to_device(self.firsts, self.stream)
        self.regret = cuda.device_array((len(runs), longest), np.float64)
        self.outcome = cuda.device_array((len(runs), longest), np.uint8)
        self.lists = cuda.device_array((len(runs), kept, self.shape.length), np.int32)
        self.active, self.device_active = _both((slots, 5), np.int64)
        self.staged, self.device_staged = _both((slots, layout.own), np.float64)
        self.results, self.device_results = _both((slots, device.OWN + layout.own_size), np.float64)
        self.players: list[tuple[Run, int]] = []

    def start(self) -> None:
        """Begin every run's first segment."""
        for run in self.runs:
            run.stage.recorder.start_clock()
        for place, run in enumerate(self.runs):
            self._begin(place, run)

    def _begin(self, place: int, run: Run) -> bool:
        """Begin a run's next segment; returns whether there is one."""
        segment = run.begin()
        if segment is None:
            return False
        count = segment.order.size
        self.order[place, :count].copy_to_device(segment.order, self.stream)
        self.firsts[place] = segment.first
        self.device_firsts.copy_to_device(self.firsts, self.stream)
        return True

    def launch(self) -> bool:
        """Let everybody play on who may; returns whether there is anybody."""
        self.players = [(run, agent) for run in self.runs for agent in run.playing()]
        places = {id(run): place for place, run in enumerate(self.runs)}
        staged = 0
        for block, (run, agent) in enumerate(self.players):
            place, cursor, stage = places[id(run)], run.cursor[agent], -1
            if agent in run.fresh:
                run.fresh.remove(agent)
                run.download(agent, self.staged[staged])
                stage, staged = staged, staged + 1
            end = min(run.until(agent), cursor + ROUNDS_PER_LAUNCH)
            self.active[block] = place * self.users + agent, place, cursor, end, stage
        if self.players:
            self._launch(staged)
        return bool(self.players)

    def _launch(self, staged: int) -> None:
        blocks, stream = len(self.players), self.stream
        if blocks:
            self.device_active[:blocks].copy_to_device(self.active[:blocks], stream)
        if staged:
            self.device_staged[:staged].copy_to_device(self.staged[:staged], stream)
        if not blocks:
            self.active[0] = 0, 0, 0, 0, -1
            self.device_active[:1].copy_to_device(self.active[:1], stream)
        self.kernel[max(blocks, 1), self.shape.teams * self.shape.width, stream](
            self.device_active,
            self.device_staged,
            self.rows,
            self.factors,
            self.seeds,
            self.params,
            self.order,
            self.device_firsts,
            self.regret,
            self.outcome,
            self.lists,
            self.device_results,
        )
        if blocks:
            self.device_results[:blocks].copy_to_host(self.results[:blocks], stream)

    def listen(self, count: Callable[[int], None]) -> Iterator[tuple[int, Trace]]:
        """Wait for a launch, let agents speak, and begin new segments; yields the runs that have ended."""
        self.stream.synchronize()
        for block, (run, agent) in enumerate(self.players):
            result = self.results[block]
            fired, cursor = result[device.FIRED] != 0.0, int(result[device.CURSOR])
            run.played(agent, fired, cursor, result[device.OWN :])
        for place, run in enumerate(self.runs):
            if run.playing() or run.queue or run.cursor:
                yield from self._settle(place, run, count)

    def _settle(self, place: int, run: Run, count: Callable[[int], None]) -> Iterator[tuple[int, Trace]]:
        while run.cursor and run.settle():
            size = run.segment.order.size
            kept = size if run.case.keep_lists else 0
            run.end(
                self.regret[place, :size].copy_to_host(stream=self.stream),
                self.outcome[place, :size].copy_to_host(stream=self.stream),
                self.lists[place, :kept].copy_to_host(stream=self.stream) if kept else _NO_LISTS,
            )
            count(size)
            if not self._begin(place, run):
                run.cursor = []
                yield self.numbers[place], run.trace()


_NO_LISTS = np.empty((0, 1), np.int32)


def _longest(stops: Sequence[int]) -> int:
    """The longest stretch between two checkpoints."""
    return int(np.diff([0, *stops]).max())


def _both(shape: tuple[int, ...], dtype: Any) -> tuple[NDArray[Any], Any]:
    """An array on the host that the device can copy from at full speed, and its twin there."""
    return cuda.pinned_array(shape, dtype), cuda.device_array(shape, dtype)
