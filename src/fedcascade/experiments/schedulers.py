"""Where jobs are played: in processes of this machine, on its GPU, or on a Ray cluster. The results are the same."""

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for_process
from typing import Any

from fedcascade.checks import require_integer
from fedcascade.experiments.jobs import Job, Record, case, play, play_together
from fedcascade.simulation.exact.precompile import STAGES

Tell = Callable[[int], None]  # is told how many rounds have been played
Scheduler = Callable[[Sequence[Job], Tell], Iterator[tuple[Job, Record]]]

LOOK_EVERY = 0.2  # seconds
DEVICE_PROCESSES = 8  # that share a GPU
SINGLE_THREADED = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_played: Any = None  # in a worker: the counter that it shares with its parent


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local(*, workers: int | None = None) -> Scheduler:
    """Jobs in parallel processes of one thread each, as many as there are cores."""
    workers = cores() if workers is None else workers
    require_integer("jobs", workers)
    return lambda jobs, tell: _local(jobs, tell, min(workers, max(len(jobs), 1)))


def _local(jobs: Sequence[Job], tell: Tell, workers: int) -> Iterator[tuple[Job, Record]]:
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    with _environment(SINGLE_THREADED), _pool(workers, context, counter) as pool:
        for stage in STAGES:
            wait([pool.submit(part) for part in stage])
        pending = {pool.submit(_play_counted, job): job for job in jobs}
        while pending:
            done, _ = wait(pending, LOOK_EVERY, FIRST_COMPLETED)
            tell(counter.value)
            for future in sorted(done, key=_failed):  # a failure must not hide what ended beside it
                yield pending.pop(future), future.result()


def _failed(future: Future[Any]) -> bool:
    return future.exception() is not None


@contextmanager
def _pool(workers: int, context: Any, counter: Any) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, context, _start_worker, (counter,))
    try:
        yield pool
    except BaseException:
        # Nobody waits for runs that nobody will keep; what is finished has been written already.
        for process in list(pool._processes.values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _start_worker(counter: Any) -> None:
    """Leave Ctrl-C to the parent, and end when the parent ends, however that happens."""
    global _played
    _played = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_process([parent.sentinel])
        os._exit(1)


def _play_counted(job: Job) -> Record:
    return play(job, _counted())


def _counted() -> Tell:
    """Adds what this worker plays to the counter that it shares with its parent."""
    told = 0

    def progress(rounds: int) -> None:
        nonlocal told
        with _played.get_lock():
            _played.value += rounds - told
        told = rounds

    return progress


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables that processes started inside inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def on_device(*, workers: int | None = None) -> Scheduler:
    """Jobs many at a time on this machine's GPU, which a few processes share: exchanges keep their hosts busy."""
    from fedcascade.simulation.cuda.device import check_device

    check_device()
    workers = min(DEVICE_PROCESSES, cores()) if workers is None else workers
    require_integer("jobs", workers)
    return lambda jobs, tell: _device(jobs, tell, workers)


def _device(jobs: Sequence[Job], tell: Tell, workers: int) -> Iterator[tuple[Job, Record]]:
    from fedcascade.simulation.cuda.engine import shares

    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    with _environment(SINGLE_THREADED), _pool(workers, context, counter) as pool:
        for batch in shares([case(job) for job in jobs], workers):
            dealt = [[jobs[number] for number in share] for share in batch]
            pending = {pool.submit(_play_share, share): share for share in dealt}
            while pending:
                done, _ = wait(pending, LOOK_EVERY, FIRST_COMPLETED)
                tell(counter.value)
                for future in sorted(done, key=_failed):
                    yield from zip(pending.pop(future), future.result(), strict=True)


def _play_share(jobs: Sequence[Job]) -> list[Record]:
    return play_together(jobs, _counted())


def on_ray(*, address: str | None = None) -> Scheduler:
    """Jobs on a Ray cluster, one core each; a job whose node dies is played again elsewhere.

    Args:
        address: of a running cluster ("auto" finds the one of this machine); None starts one on this machine.
    """
    try:
        import ray  # noqa: F401
    except ImportError:
        raise ValueError("the ray scheduler needs Ray: pip install 'fedcascade[ray]'") from None
    return lambda jobs, tell: _ray(jobs, tell, address)


def _ray(jobs: Sequence[Job], tell: Tell, address: str | None) -> Iterator[tuple[Job, Record]]:
    import ray

    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ValueError(f"no Ray cluster at '{address}': {error}") from None
    try:
        remote = ray.remote(num_cpus=1, max_retries=3)(play)
        pending = {remote.remote(job): job for job in jobs}
        rounds = 0
        while pending:
            done, _ = ray.wait(list(pending))
            for reference in done:
                job = pending.pop(reference)
                rounds += job.rounds
                tell(rounds)
                yield job, ray.get(reference)
    finally:
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Refuse at once an address where nobody listens; Ray itself would go on trying for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster at '{address}': {error}") from None
