"""Batches of runs with the same shape: their arrays on the device, and their launches."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import config
from numpy.typing import NDArray

from fedcascade.simulation.trace import Trace
from fedcascade_cuda import layout
from fedcascade_cuda.device import forbid_contraction
from fedcascade_cuda.kernels import make_kernel
from fedcascade_cuda.layout import DeviceArrays, Shape
from fedcascade_cuda.lowering import StopRule
from fedcascade_cuda.runs import NO_UPLOAD, DeviceRun, Positions, split_rounds

ROUNDS_PER_LAUNCH = 128  # per agent, so that an agent without triggers does not hold up the others
ROUNDS_WITHOUT_TRIGGERS = 2_048  # per agent, if no agent ever uploads
NO_LISTS = np.empty((0, 1), np.int32)


class DeviceBatch:
    """Runs of one shape; agent ``a`` of run ``r`` has slot ``r * users + a`` in arrays over agents."""

    def __init__(self, shape: Shape, runs: dict[int, DeviceRun]) -> None:
        self.shape = shape
        self.numbers, self.runs = list(runs), list(runs.values())
        self.stream, self.finished = cuda.stream(), cuda.event()
        has_uploads = any(run.stop_rule != StopRule() for run in self.runs)
        self.rounds_per_launch = ROUNDS_PER_LAUNCH if has_uploads else ROUNDS_WITHOUT_TRIGGERS
        self.users = max(run.environment.users for run in self.runs)
        self.positions = Positions.of(self.users * len(self.runs))
        self.playing = np.empty(0, np.int64)  # the slots of the last launch, one for each block
        self.allocate()
        with forbid_contraction():
            self.kernel = make_kernel(shape).specialize(self.arrays)  # launches need not inspect types
            self.launch_kernel(1)  # plays nothing; compiles before the clocks of the runs start
        self.stream.synchronize()

    def allocate(self) -> None:
        """Allocate the arrays of the host and of the device."""
        runs, shape, d = self.runs, self.shape, self.shape.dimension
        offsets, slots = shape.layout, self.users * len(runs)
        longest = max(count for run in runs for _, count in split_rounds(run.simulation.recorder.stops))
        lists = longest if any(run.scenario.keep_lists for run in runs) else 0
        policies = [(run.stop_rule, run.driver.compiled_policy) for run in runs]
        params = [(rule.level, rule.bound, policy.slack, policy.lambda_) for rule, policy in policies]
        rows = np.zeros((slots, offsets.size))
        for place, run in enumerate(runs):
            rows[place * self.users :][: run.environment.users, offsets.truth :] = run.environment.thetas
        self.firsts = np.zeros(len(runs), np.int64)
        self.order = np.zeros((len(runs), longest), np.int32)
        self.inbox, inbox = _allocate_twins((slots, layout.DOWNLOAD + offsets.own))
        self.outbox, outbox = _allocate_twins((slots, layout.OWN + offsets.own_size))
        self.inbox[:] = 0.0
        self.arrays = DeviceArrays(
            inbox=inbox,
            rows=cuda.to_device(rows),
            factors=cuda.device_array((slots, 2, d, d) if d > layout.NEAR else (1, 2, 1, 1), np.float64),
            seeds=cuda.to_device(np.array([run.environment.seed for run in runs], np.uint64)),
            params=cuda.to_device(np.array(params)),
            order=cuda.to_device(self.order),
            firsts=cuda.to_device(self.firsts),
            regret=cuda.device_array((len(runs), longest), np.float64),
            outcome=cuda.device_array((len(runs), longest), np.uint8),
            lists=cuda.device_array((len(runs), lists, shape.length), np.int32),
            outbox=outbox,
        )

    def start(self) -> None:
        """Start the runs' clocks and begin their first segments."""
        for run in self.runs:
            run.simulation.recorder.start_clock()
        for place in range(len(self.runs)):
            self._begin_segment(place)

    def _begin_segment(self, place: int) -> bool:
        """Begin a run's next segment; return whether there is one."""
        run = self.runs[place]
        agents = slice(place * self.users, place * self.users + run.environment.users)
        segment = run.begin_segment(self.positions.view(agents))
        if segment is None:
            return False
        self.order[place, : segment.order.size] = segment.order
        self.arrays.order[place].copy_to_device(self.order[place], self.stream)
        self.firsts[place] = segment.first
        self.arrays.firsts.copy_to_device(self.firsts, self.stream)
        return True

    def launch(self) -> bool:
        """Play on with all agents that have rounds left; return whether there is any."""
        positions = self.positions
        self.playing = playing = np.flatnonzero(positions.next_upload < NO_UPLOAD)
        inbox, cursor = self.inbox[: playing.size], positions.cursor[playing]
        needs_download = positions.needs_download[playing]
        inbox[:, layout.SLOT], inbox[:, layout.RUN] = playing, playing // self.users
        inbox[:, layout.BEGIN], inbox[:, layout.FRESH] = cursor, needs_download
        inbox[:, layout.END] = np.minimum(positions.stop[playing], cursor + self.rounds_per_launch)
        for block in np.flatnonzero(needs_download).tolist():
            place, agent = divmod(int(playing[block]), self.users)
            self.runs[place].write_download(agent, inbox[block, layout.DOWNLOAD :])
        positions.needs_download[playing] = False
        if playing.size:
            self.launch_kernel(playing.size)
        return playing.size > 0

    def launch_kernel(self, blocks: int) -> None:
        """Copy the inbox to the device, launch the kernel, and copy the outbox back, asynchronously."""
        self.arrays.inbox.copy_to_device(self.inbox, self.stream)
        self.kernel[blocks, self.shape.threads, self.stream](self.arrays)
        self.arrays.outbox.copy_to_host(self.outbox, self.stream)
        self.finished.record(self.stream)

    def has_finished(self) -> bool:
        """Return whether the last launch has ended; always true in the simulator."""
        return config.ENABLE_CUDASIM or bool(self.finished.query())

    def wait(self) -> None:
        self.finished.synchronize()

    def process_launch(self, add_done: Callable[[int], None]) -> Iterator[tuple[int, Trace]]:
        """Wait for a launch, run due exchanges and begin new segments; yield runs that have ended.

        ``add_done`` is called with the number of rounds of each played segment.
        """
        self.wait()
        positions, playing = self.positions, self.playing
        outbox = self.outbox[: playing.size]
        cursor = outbox[:, layout.CURSOR].astype(np.int64)
        positions.cursor[playing] = cursor
        stopped = (outbox[:, layout.FIRED] != 0.0) | (cursor == positions.stop[playing])
        going, places = playing[~stopped], playing[~stopped] // self.users
        positions.next_upload[going] = self.firsts[places] + self.order[places, cursor[~stopped]]
        for block in np.flatnonzero(stopped).tolist():
            place, agent = divmod(int(playing[block]), self.users)
            self.runs[place].check_triggers(agent, outbox[block, layout.OWN :])
        for place, run in enumerate(self.runs):
            while not run.ended and run.run_exchanges():
                add_done(self.end_segment(place))
                if not self._begin_segment(place):
                    yield self.numbers[place], run.build_trace()

    def end_segment(self, place: int) -> int:
        """Fetch and record the results of a run's segment; return its number of rounds."""
        run, arrays = self.runs[place], self.arrays
        size = run.segment.order.size
        regret, outcome = arrays.regret[place].copy_to_host(), arrays.outcome[place].copy_to_host()
        lists = arrays.lists[place].copy_to_host()[:size] if run.scenario.keep_lists else NO_LISTS
        run.record_segment(regret[:size], outcome[:size], lists)
        return size


def _allocate_twins(shape: tuple[int, ...]) -> tuple[NDArray[np.float64], Any]:
    """Return an array of the host in pinned memory, which copies fastest, and one of the device."""
    return cuda.pinned_array(shape, np.float64), cuda.device_array(shape, np.float64)
