"""The same Trace as the reference, with the rounds of many runs played at once on a GPU.

Between two exchanges an agent's rounds depend on nobody else. A launch lets every agent that may play on, of all
runs, play until it may want to speak (``cuda_kernels``). The host then decides who speaks, hands uploads to the same
``federation.Server`` as every engine (``cuda_runs``), and launches again. Runs are dealt into squads, so that the
device plays for one squad while the host listens to another.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import config
from numpy.typing import NDArray

from fedcascade.federation.decisions import DownloadAndBuffer
from fedcascade.federation.replies import Asker
from fedcascade.learning.confidence import Oful
from fedcascade.simulation.cuda import layout as device
from fedcascade.simulation.cuda.device import check_arithmetic, check_device, uncontracted
from fedcascade.simulation.cuda.kernels import make_kernel
from fedcascade.simulation.cuda.runs import LONGEST_SEGMENT, NOBODY, Places, Run
from fedcascade.simulation.exact import lowering
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import Trace

THREADS = 512  # of a block whose teams play different rounds
THREADS_ANEW = 256  # of a block whose threads play one round together
ROUNDS_PER_LAUNCH = 128  # of an agent, so that one that has nothing to say does not hold up those that have
ROUNDS_OF_THE_SILENT = 2_048  # where nobody ever speaks
SHARED_BYTES = 46_000  # what a block may use, less some for small things
SQUADS = 3  # of runs of one shape
TOGETHER = 64  # runs at a time

Tell = Callable[[int], None]


def find_unsupported(case: Scenario) -> str | None:
    """The first part that this engine does not know, in words; None if it knows them all."""
    unsupported = lowering.find_unsupported(case)
    if unsupported is not None:
        return unsupported
    environment, policy = case.clustered, case.policy
    if environment.drifts:
        return "environment whose users drift apart"
    if type(policy.reply_rule) is not Asker:
        return f"reply rule {type(policy.reply_rule).__name__}"
    if environment.catalogue.shape[1] > 0:
        return f"catalogue of {type(environment).__name__}"
    if isinstance(policy.decision, DownloadAndBuffer) and isinstance(policy.confidence, Oful):
        return f"confidence {type(policy.confidence).__name__} in every round"
    if _teams(environment.most_items, case.oracle.length, environment.dimension) == 0:
        return "number of items: too many for a multiprocessor"
    return None


def simulate_all(cases: Sequence[Scenario], tell: Tell | None = None) -> Iterator[tuple[int, Trace]]:
    """Run many cases together.

    Args:
        cases: what to run, of parts that this engine knows (see ``find_unsupported``).
        tell: called now and then with the number of rounds that are done, of all cases together; with 0 when all is
            compiled.

    Yields:
        The number of a case and its Trace, as each ends.
    """
    check_device()
    check_arithmetic()
    done = 0

    def count(rounds: int) -> None:
        nonlocal done
        done += rounds
        if tell is not None:
            tell(done)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for first in range(0, len(cases), TOGETHER):
            chosen = range(first, min(first + TOGETHER, len(cases)))
            squads = _squads({number: Run(cases[number], pool) for number in chosen})
            count(0)
            for squad in squads:
                squad.start()
                squad.launch()
            while squads:
                squad = next((one for one in squads if one.has_landed()), squads[0])
                squads.remove(squad)
                yield from squad.listen(count)
                if squad.launch():
                    squads.append(squad)


def shares(cases: Sequence[Scenario], processes: int) -> list[list[list[int]]]:
    """The numbers of cases, dealt to processes that share the device: a share for each, one batch after another.

    Agents that speak keep the host busy with exchanges, and there processes help. Agents that decide anew in every
    round keep the device busy, and their runs fill it only together. Processes take turns on a device, so such runs
    would hold up those of other processes: they come last, in one share.
    """
    anew = [number for number, case in enumerate(cases) if isinstance(case.policy.decision, DownloadAndBuffer)]
    others = sorted(set(range(len(cases))) - set(anew))
    batches = [[others[first::processes] for first in range(min(processes, len(others)))], [anew] if anew else []]
    return [batch for batch in batches if batch]


def _squads(runs: dict[int, Run]) -> "list[_Squad]":
    """Runs of one shape in a few squads; everything is compiled here."""
    shapes: dict[device.Shape, list[int]] = {}
    for number, run in runs.items():
        shapes.setdefault(_shape(run.case), []).append(number)
    return [
        _Squad(shape, {number: runs[number] for number in numbers[part::SQUADS]})
        for shape, numbers in shapes.items()
        for part in range(min(SQUADS, len(numbers)))
    ]


def _shape(case: Scenario) -> device.Shape:
    environment, every_round = case.clustered, isinstance(case.policy.decision, DownloadAndBuffer)
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
        width=THREADS_ANEW if every_round else device.LANES,
        layout=device.Layout.of(d),
    )


def _teams(items: int, length: int, d: int) -> int:
    """How many teams have room in the shared memory of a block."""
    factors = 16 * d * d if d <= device.NEAR else 16
    of_a_team = 8 * items + 20 * device.LANES + length * (4 * d + 32) + 36
    return max(0, (SHARED_BYTES - factors - 4 * d * d - 32 * d) // of_a_team)


class _Squad:
    """Some runs of one shape: their arrays on the device, and a stream of launches."""

    def __init__(self, shape: device.Shape, runs: dict[int, Run]) -> None:
        self.shape = shape
        self.numbers, self.runs = list(runs), list(runs.values())
        self.stream, self.landed = cuda.stream(), cuda.event()
        self.longest = ROUNDS_PER_LAUNCH if any(run.speaks for run in self.runs) else ROUNDS_OF_THE_SILENT
        self._allocate()
        with uncontracted():
            self.kernel = make_kernel(shape).specialize(self.arrays)  # a launch need not look at types then
            self._launch(1)  # nothing is played, but everything is compiled now, and that is not timed
        self.stream.synchronize()

    def _allocate(self) -> None:
        runs, d, length = self.runs, self.shape.dimension, self.shape.length
        layout = self.shape.layout
        self.users = users = max(run.case.environment.users for run in runs)
        slots = users * len(runs)
        longest = max(_longest(run.stage.recorder.stops) for run in runs)
        kept = longest if any(run.case.keep_lists for run in runs) else 0
        rows = np.zeros((slots, layout.size))
        for place, run in enumerate(runs):
            rows[place * users :][: run.case.environment.users, layout.truth :] = run.case.clustered.thetas
        self.places = Places(
            cursor=np.zeros(slots, np.int64),
            until=np.zeros(slots, np.int64),
            may_speak=np.full(slots, NOBODY),
            fresh=np.ones(slots, np.bool_),
        )
        self.firsts = np.zeros(len(runs), np.int64)
        self.order = np.zeros((len(runs), longest), np.int32)
        self.playing = np.empty(0, np.int64)
        self.inbox, device_inbox = _both((slots, device.DOWNLOAD + layout.own))
        self.outbox, device_outbox = _both((slots, device.OWN + layout.own_size))
        self.inbox[:] = 0.0
        self.arrays = device.DeviceArrays(
            inbox=device_inbox,
            rows=cuda.to_device(rows),
            factors=cuda.device_array((slots, 2, d, d) if d > device.NEAR else (1, 2, 1, 1), np.float64),
            seeds=cuda.to_device(np.array([run.case.clustered.seed for run in runs], np.uint64)),
            params=cuda.to_device(np.array([run.params for run in runs])),
            order=cuda.to_device(self.order),
            firsts=cuda.to_device(self.firsts),
            regret=cuda.device_array((len(runs), longest), np.float64),
            outcome=cuda.device_array((len(runs), longest), np.uint8),
            lists=cuda.device_array((len(runs), kept, length), np.int32),
            outbox=device_outbox,
        )

    def start(self) -> None:
        """Begin every run's first segment."""
        for run in self.runs:
            run.stage.recorder.start_clock()
        for place in range(len(self.runs)):
            self._begin(place)

    def _begin(self, place: int) -> bool:
        """Begin a run's next segment; returns whether there is one."""
        run = self.runs[place]
        own = slice(place * self.users, place * self.users + run.case.environment.users)
        segment = run.begin(self.places.of(own))
        if segment is None:
            return False
        self.order[place, : segment.order.size] = segment.order
        self.arrays.order[place].copy_to_device(self.order[place], self.stream)
        self.firsts[place] = segment.first
        self.arrays.firsts.copy_to_device(self.firsts, self.stream)
        return True

    def launch(self) -> bool:
        """Let everybody play on who may; returns whether there is anybody."""
        places = self.places
        self.playing = playing = np.flatnonzero(places.may_speak < NOBODY)
        inbox, cursor, fresh = self.inbox[: playing.size], places.cursor[playing], places.fresh[playing]
        inbox[:, device.SLOT] = playing
        inbox[:, device.RUN] = playing // self.users
        inbox[:, device.BEGIN] = cursor
        inbox[:, device.END] = np.minimum(places.until[playing], cursor + self.longest)
        inbox[:, device.FRESH] = fresh
        for block in np.flatnonzero(fresh).tolist():
            place, agent = divmod(int(playing[block]), self.users)
            self.runs[place].download(agent, inbox[block, device.DOWNLOAD :])
        places.fresh[playing] = False
        if playing.size:
            self._launch(playing.size)
        return playing.size > 0

    def _launch(self, blocks: int) -> None:
        stream = self.stream
        self.arrays.inbox.copy_to_device(self.inbox, stream)
        self.kernel[blocks, self.shape.threads, stream](self.arrays)
        self.arrays.outbox.copy_to_host(self.outbox, stream)
        self.landed.record(stream)

    def has_landed(self) -> bool:
        """Whether the launch is over; in the simulator it always is."""
        return config.ENABLE_CUDASIM or bool(self.landed.query())

    def wait(self) -> None:
        """Until the launch is over."""
        self.landed.synchronize()

    def listen(self, count: Tell) -> Iterator[tuple[int, Trace]]:
        """Wait for a launch, let agents speak, and begin new segments; yields the runs that have ended."""
        self.wait()
        places, playing = self.places, self.playing
        outbox = self.outbox[: playing.size]
        cursor = outbox[:, device.CURSOR].astype(np.int64)
        places.cursor[playing] = cursor
        stopped = (outbox[:, device.FIRED] != 0.0) | (cursor == places.until[playing])
        going, place = playing[~stopped], playing[~stopped] // self.users
        places.may_speak[going] = self.firsts[place] + self.order[place, cursor[~stopped]]
        for block in np.flatnonzero(stopped).tolist():
            place, agent = divmod(int(playing[block]), self.users)
            self.runs[place].listen(agent, outbox[block, device.OWN :])
        for place, run in enumerate(self.runs):
            while not run.ended and run.settle():
                self._end(place, count)
                if not self._begin(place):
                    yield self.numbers[place], run.trace()

    def _end(self, place: int, count: Tell) -> None:
        """Fetch what came out of a run's segment."""
        run = self.runs[place]
        size = run.segment.order.size
        regret, outcome = self.arrays.regret[place].copy_to_host(), self.arrays.outcome[place].copy_to_host()
        lists = self.arrays.lists[place].copy_to_host()[:size] if run.case.keep_lists else _NO_LISTS
        run.end(regret[:size], outcome[:size], lists)
        count(size)


_NO_LISTS = np.empty((0, 1), np.int32)


def _longest(stops: Sequence[int]) -> int:
    """The longest segment between two checkpoints."""
    return min(LONGEST_SEGMENT, int(np.diff([0, *stops]).max()))


def _both(shape: tuple[int, ...]) -> tuple[NDArray[np.float64], Any]:
    """An array on the host that the device can copy from at full speed, and its twin there."""
    return cuda.pinned_array(shape, np.float64), cuda.device_array(shape, np.float64)
