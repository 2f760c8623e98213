"""Runs the jobs of plans, saves each result as it comes, and goes on where an earlier attempt stopped."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedcascade.experiments import results
from fedcascade.experiments.jobs import Job, PlannedJob, check_environments, list_planned_jobs
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.schedulers import Scheduler


class Progress(NamedTuple):
    """How many runs and rounds are done, and how many there are in all."""

    runs: int
    all_runs: int
    rounds: int
    all_rounds: int


def execute(
    plans: Sequence[Plan], folder: Path, scheduler: Scheduler, progress: Callable[[Progress], None]
) -> list[PlannedJob]:
    """Run the jobs that are missing in ``folder``, then write its tables; returns all jobs."""
    started = time.perf_counter()
    planned_jobs = list_planned_jobs(plans)
    jobs = {planned.job.key: planned.job for planned in planned_jobs}
    check_environments(planned_jobs)
    _make_folder(folder)
    missing = [job for job in jobs.values() if results.load_record(folder, job) is None]
    if missing:
        results.mark_unfinished(folder, plans)
    try:
        _run_jobs(
            missing, folder, scheduler, lambda done, rounds: progress(_make_progress(jobs, missing, done, rounds))
        )
    except KeyboardInterrupt:
        kept = sum(results.load_record(folder, job) is not None for job in jobs.values())
        raise KeyboardInterrupt(f"{kept} of {len(jobs)} runs kept; the same command goes on") from None
    results.write_tables(folder, plans, planned_jobs, time.perf_counter() - started)
    return planned_jobs


def _run_jobs(jobs: Sequence[Job], folder: Path, scheduler: Scheduler, report: Callable[[int, int], None]) -> None:
    finished: list[Job] = []
    report(0, 0)
    for job, record in scheduler(jobs, lambda rounds: report(len(finished), rounds)) if jobs else ():
        results.save_record(folder, job, record)
        finished.append(job)


def _make_progress(jobs: dict[str, Job], missing: Sequence[Job], done: int, rounds: int) -> Progress:
    all_rounds, missing_rounds = sum(job.rounds for job in jobs.values()), sum(job.rounds for job in missing)
    return Progress(len(jobs) - len(missing) + done, len(jobs), all_rounds - missing_rounds + rounds, all_rounds)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"'{folder}' cannot hold results: {error.strerror}; name another folder with --out") from None
