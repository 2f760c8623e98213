"""Run the jobs of plans, save each result, and resume interrupted work.

Jobs run in processes of this machine, on its GPU, or on a Ray cluster, with the same results.
"""

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import wait as wait_for_process
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fedcascade.checks import require_extra, require_integer
from fedcascade.experiments import results
from fedcascade.experiments.jobs import (
    Job,
    PlannedJob,
    Record,
    build_scenario,
    check_environments,
    list_planned_jobs,
    run_job,
    run_jobs_on_gpu,
)
from fedcascade.experiments.own_policies import add_policies, find_policy, given
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.plan_reader import load_plan
from fedcascade.federation.policies import Policy
from fedcascade.numerics.code_cache import CacheNotWritable
from fedcascade.platforms import count_cores, write_atomically
from fedcascade.simulation.engines import load_gpu_engine
from fedcascade.simulation.exact.precompile import list_steps

ReportRounds = Callable[[int], None]  # called with the number of finished rounds
Scheduler = Callable[[Sequence[Job], ReportRounds], Iterator[tuple[Job, Record]]]
Task = TypeVar("Task")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
GPU_PROCESSES = 8  # processes per GPU
SINGLE_THREADED = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_rounds_done: Any = None  # in a worker: the counter shared with its parent


class Progress(NamedTuple):
    """The numbers of finished runs and rounds, and their totals."""

    runs: int
    all_runs: int
    rounds: int
    all_rounds: int


def run_plan(
    plan: Plan | Path | str, folder: Path | str | None = None, *,
    policies: Iterable[Policy] | Mapping[str, Policy] = (), workers: int | None = None,
    progress: Callable[["Progress"], None] = lambda _: None,
) -> results.Results:  # fmt: skip
    """Run a plan in processes of this machine, and return the tables of its runs.

    Args:
        plan: a plan, the path of its file, or the name of one that comes with the package.
        folder: where results are stored, ``results/NAME`` if None. Runs that are there are not repeated.
        policies: further policies as objects, by label or under their own names; they run in this process.
        workers: number of processes, one per core if None.
        progress: called with the progress of the runs.
    """
    chosen = add_policies(plan if isinstance(plan, Plan) else load_plan(Path(plan)), policies)
    place = Path("results") / chosen.name if folder is None else Path(folder)
    execute([chosen], place, make_local_scheduler(workers=workers), progress)
    return results.read_results(place)


def execute(
    plans: Sequence[Plan], folder: Path, scheduler: Scheduler, progress: Callable[[Progress], None]
) -> list[PlannedJob]:
    """Run the jobs that ``folder`` lacks, write its tables, and return all jobs."""
    started = time.perf_counter()
    planned_jobs = list_planned_jobs(plans)
    jobs = {planned.job.key: planned.job for planned in planned_jobs}
    check_environments(planned_jobs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"'{folder}' cannot hold results: {error.strerror}; give another folder with --out") from None
    missing = [job for job in jobs.values() if results.load_record(folder, job) is None]
    done, all_rounds = len(jobs) - len(missing), sum(job.rounds for job in jobs.values())
    before = all_rounds - sum(job.rounds for job in missing)

    def report(rounds: int) -> None:
        progress(Progress(done, len(jobs), before + rounds, all_rounds))

    if missing:
        write_atomically(folder / results.UNFINISHED, msgspec.json.encode(list(plans)))  # for a report meanwhile
    try:
        report(0)
        for job, record in scheduler(missing, report) if missing else ():
            results.save_record(folder, job, record)
            done += 1
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{done} of {len(jobs)} runs saved; run the same command again to resume") from None
    results.write_tables(folder, plans, planned_jobs, time.perf_counter() - started)
    return planned_jobs


def make_local_scheduler(*, workers: int | None = None) -> Scheduler:
    """Run jobs in parallel single-threaded processes, by default one per core."""
    workers = count_cores() if workers is None else workers
    require_integer("jobs", workers)
    return lambda jobs, report: _run_in_processes(jobs, report, min(workers, max(len(jobs), 1)))


def _run_in_processes(jobs: Sequence[Job], report: ReportRounds, workers: int) -> Iterator[tuple[Job, Record]]:
    objects = [job for job in jobs if job.source in given]  # another process may not be able to import their parts
    yield from ((job, run_job(job)) for job in objects)
    if len(objects) == len(jobs):
        return
    with defer_interrupts() as check_interrupt, _open_pool(workers) as (pool, counter):
        policies = [find_policy(name) for name in dict.fromkeys(job.policy for job in jobs if not job.source)]
        compiling = [pool.submit(step) for step in list_steps(policies)]
        while wait(compiling, POLL_SECONDS).not_done:
            check_interrupt()
        left = sorted((job for job in jobs if job.source not in given), key=lambda job: job.rounds, reverse=True)
        pending = {pool.submit(_run_counted, run_job, job): job for job in left}
        yield from collect(pending, lambda: report(counter.value), check_interrupt)


@contextmanager
def defer_interrupts() -> Iterator[Callable[[], None]]:
    """Hold back Ctrl-C until the yielded function is called.

    Ctrl-C inside ``wait`` or ``submit`` can leave the lock of a future taken, and a pool that never ends.
    """
    handle = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handle):
        yield lambda: None
        return
    received: list[int] = []

    def check() -> None:
        if received:
            handle(received.pop(), None)

    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, handle)


def collect(
    pending: dict[Future[Result], Task], report: Callable[[], None], check_interrupt: Callable[[], None]
) -> Iterator[tuple[Task, Result]]:
    """Yield tasks with their results as they finish, and report in between."""
    while pending:
        done, _ = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
        report()
        # Yield failures last, so that results which arrived with them are saved.
        for future in sorted(done, key=lambda future: future.exception() is not None):
            yield pending.pop(future), future.result()
        check_interrupt()


@contextmanager
def _open_pool(workers: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Open a pool of single-threaded processes, and a counter of rounds that they share."""
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, _start_worker, (counter,))
    try:
        with _set_variables(SINGLE_THREADED):
            yield pool, counter
    except BaseException:
        # Unfinished runs are discarded, so there is nothing to wait for; finished runs are on disk.
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _start_worker(counter: Any) -> None:
    """Ignore Ctrl-C, exit with the parent, and print each warning once, in one line."""
    global _rounds_done
    _rounds_done = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore", CacheNotWritable)  # the parent warns
    warnings.showwarning = lambda message, *_, **__: _print_once(f"fedcascade: {message}")
    threading.Thread(target=_end_with_parent, daemon=True).start()


@cache
def _print_once(line: str) -> None:
    print(line, file=sys.stderr)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_process([parent.sentinel])
        os._exit(1)


def _run_counted(run: Callable[[Task, ReportRounds], Result], task: Task) -> Result:
    """Run a task and add its rounds to the shared counter."""
    counted = 0

    def progress(rounds: int) -> None:
        nonlocal counted
        with _rounds_done.get_lock():
            _rounds_done.value += rounds - counted
        counted = rounds

    return run(task, progress)


@contextmanager
def _set_variables(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def make_gpu_scheduler(*, workers: int | None = None) -> Scheduler:
    """Run jobs on this machine's GPU, shared by a few processes because exchanges run on the CPU."""
    load_gpu_engine().check_device()
    workers = min(GPU_PROCESSES, count_cores()) if workers is None else workers
    require_integer("jobs", workers)
    return lambda jobs, report: _run_on_gpu(jobs, report, workers)


def _run_on_gpu(jobs: Sequence[Job], report: ReportRounds, workers: int) -> Iterator[tuple[Job, Record]]:
    with defer_interrupts() as check_interrupt, _open_pool(workers) as (pool, counter):
        for batch in load_gpu_engine().split_scenarios([build_scenario(job) for job in jobs], workers):
            shares = [[jobs[number] for number in share] for share in batch]
            pending = {pool.submit(_run_counted, run_jobs_on_gpu, share): share for share in shares}
            for share, records in collect(pending, lambda: report(counter.value), check_interrupt):
                yield from zip(share, records, strict=True)


def make_ray_scheduler(*, address: str | None = None) -> Scheduler:
    """Run jobs on a Ray cluster, one core each; a job is retried if its node dies.

    Without an address, Ray starts on this machine; "auto" finds a running cluster.
    """
    require_extra("ray", "--scheduler ray")
    return lambda jobs, report: _run_on_ray(jobs, report, address)


def _run_on_ray(jobs: Sequence[Job], report: ReportRounds, address: str | None) -> Iterator[tuple[Job, Record]]:
    import ray

    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ValueError(f"no Ray cluster at '{address}': {error}") from None
    try:
        remote = ray.remote(num_cpus=1, max_retries=3)(run_job)
        pending = {remote.remote(job): job for job in jobs}
        rounds = 0
        while pending:
            done, _ = ray.wait(list(pending))
            for reference in done:
                job = pending.pop(reference)
                rounds += job.rounds
                report(rounds)
                yield job, ray.get(reference)
    finally:
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Refuse an address that does not answer; Ray itself would retry for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster at '{address}': {error}") from None
