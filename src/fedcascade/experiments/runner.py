"""Plays the runs of plans, keeps each as it ends, and goes on where an earlier attempt stopped."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedcascade.experiments import results
from fedcascade.experiments.jobs import Job, Run, check, runs_of
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.schedulers import Scheduler


class Progress(NamedTuple):
    """How far the work is."""

    runs: int
    all_runs: int
    rounds: int
    all_rounds: int


def execute(
    plans: Sequence[Plan], folder: Path, scheduler: Scheduler, progress: Callable[[Progress], None]
) -> list[Run]:
    """Play what is missing in ``folder``, then write its tables; returns all runs."""
    started = time.perf_counter()
    runs = runs_of(plans)
    check(runs)
    _make(folder)
    jobs = {run.job.key: run.job for run in runs}
    missing = [job for job in jobs.values() if results.saved(folder, job) is None]
    _play(missing, folder, scheduler, lambda done, rounds: progress(_so_far(jobs, missing, done, rounds)))
    results.write_tables(folder, plans, runs, time.perf_counter() - started)
    return runs


def _play(jobs: Sequence[Job], folder: Path, scheduler: Scheduler, tell: Callable[[int, int], None]) -> None:
    finished: list[Job] = []
    tell(0, 0)
    for job, record in scheduler(jobs, lambda rounds: tell(len(finished), rounds)) if jobs else ():
        results.save(folder, job, record)
        finished.append(job)


def _so_far(jobs: dict[str, Job], missing: Sequence[Job], done: int, rounds: int) -> Progress:
    all_rounds, to_play = sum(job.rounds for job in jobs.values()), sum(job.rounds for job in missing)
    return Progress(len(jobs) - len(missing) + done, len(jobs), all_rounds - to_play + rounds, all_rounds)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"'{folder}' cannot hold results: {error.strerror}; name another folder with --out") from None
