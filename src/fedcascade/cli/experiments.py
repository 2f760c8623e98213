"""``fedcascade reproduce``, ``fedcascade experiment`` and ``fedcascade report``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fedcascade.checks import require
from fedcascade.cli import terminal
from fedcascade.cli.options import Whole, option

if TYPE_CHECKING:
    from fedcascade.experiments.jobs import PlannedJob
    from fedcascade.experiments.plan import Plan
    from fedcascade.experiments.results import Results
    from fedcascade.experiments.runner import Progress
    from fedcascade.experiments.schedulers import Scheduler

Jobs = Annotated[Whole | None, option("How many processes compute runs, each on one core. [default: one per core]")]
SchedulerName = Annotated[
    Literal["local", "ray"], option("local: processes of this machine; ray: a Ray cluster (extra 'ray').")
]
EngineName = Annotated[
    Literal["exact", "cuda"],
    option("exact: on the cores of this machine or a cluster; cuda: on its GPU, many runs at once (extra 'gpu')."),
]
PAPER_FOLDER = Path("results/paper")
BUILTIN_PLANS = "auxiliary, beyond-paper, figure-1a, figure-1bc, figure-1d"  # a constant, so that --help reads no files
PLAN_HELP = f"TOML file: environments x policies x grids x seeds. Or one that comes with the package: {BUILTIN_PLANS}."
Address = Annotated[str | None, option("Address of a running Ray cluster. [default: start one on this machine]")]


def reproduce(
    *,
    quick: Annotated[
        bool, option("300,000 rounds and 2 runs instead of 1,000,000 and 3: the gaps already show.", show_default=False)
    ] = False,
    runs: Annotated[Whole | None, option("How many runs of each system. [default: 3, with --quick 2]")] = None,
    ratings: Annotated[
        Path | None, option("Ratings file of the experiment on real data. [default: generated ratings]")
    ] = None,
    out: Annotated[Path, option("Folder for results and report; a stopped run goes on where it was.")] = PAPER_FOLDER,
    jobs: Jobs = None,
    scheduler: SchedulerName = "local",
    engine: EngineName = "exact",
    address: Address = None,
) -> None:
    """Run the paper's whole evaluation and write a report that sets its figures beside ours.

    Example: fedcascade reproduce --quick
    """
    from fedcascade.experiments import paper_claims
    from fedcascade.experiments.reports import paper_report
    from fedcascade.experiments.results import read_results

    plans = paper_claims.load_paper_plans(quick=quick, runs=runs, ratings=ratings)
    _execute(plans, out, _make_scheduler(scheduler, engine, jobs, address))
    path, claims = paper_report.write_report(read_results(out))
    terminal.show(terminal.make_claims_table(claims))
    print(f"report: {path}")


def experiment(
    plan: Annotated[Path, Parameter(help=PLAN_HELP)],
    /,
    *,
    ratings: Annotated[
        Path | None, option("Ratings file of environments that name none. [default: generated ratings]")
    ] = None,
    out: Annotated[
        Path | None, option("Folder for the results. [default: results/NAME, after the plan's name]")
    ] = None,
    jobs: Jobs = None,
    scheduler: SchedulerName = "local",
    engine: EngineName = "exact",
    address: Address = None,
    format_: Annotated[
        Literal["table", "json"],
        option("table, or json: one object per run and line, and nothing else.", name="--format"),
    ] = "table",
    mlflow: Annotated[
        str | None, option("Also log the runs to the MLflow tracking server or folder at this URI (extra 'mlflow').")
    ] = None,
) -> None:
    """Run a whole plan, in parallel; the same command goes on where a stopped one was.

    Example: fedcascade experiment plan.toml --out results/mine
    """
    from fedcascade.experiments import results, sinks
    from fedcascade.experiments.builtin_plans import can_take_ratings, find_plan, set_ratings_file

    chosen = find_plan(plan)
    is_wanted = ratings is None or can_take_ratings(chosen)
    require(is_wanted, f"--ratings: plan '{plan}' has no environment of kind ratings that names no file")
    chosen = set_ratings_file(chosen, ratings)
    folder = Path("results") / chosen.name if out is None else out
    if mlflow is not None:
        sinks.check_mlflow()
    planned_jobs = _execute([chosen], folder, _make_scheduler(scheduler, engine, jobs, address))
    if mlflow is not None:
        sinks.log_to_mlflow(planned_jobs, folder, mlflow)
    if format_ == "json":
        for planned in planned_jobs:
            record = results.load_record(folder, planned.job) or {}
            print(json.dumps({"environment": planned.environment, "system": planned.system, **record}))
        return
    print_results(results.read_results(folder))


def report(folder: Annotated[Path, Parameter(help="A results folder of 'experiment' or 'reproduce'.")], /) -> None:
    """Write the tables and figures of a results folder into it: report.html, SVG, PDF and PNG."""
    from fedcascade.experiments import beyond_bars, paper_claims
    from fedcascade.experiments.reports import beyond_report, paper_report, summary
    from fedcascade.experiments.results import read_results

    results = read_results(folder)
    if paper_claims.is_paper(results):
        path, _ = paper_report.write_report(results)
    elif beyond_bars.is_beyond(results):
        path, _ = beyond_report.write_report(results)
    else:
        path = summary.write_report(results)
    print(f"report: {path}")


def print_results(results: "Results") -> None:
    """Print whether bars are met, if the plan has any, and else a table of all systems."""
    from fedcascade.experiments import beyond_bars
    from fedcascade.experiments.reports import beyond_report, summary

    if beyond_bars.is_beyond(results):
        path, findings = beyond_report.write_report(results)
        terminal.show(terminal.make_bars_table(findings))
        print(f"report: {path}")
        return
    terminal.show(terminal.make_summary_table(summary.summarise_systems(results)))
    print(f"results: {results.folder}\nfor figures: fedcascade report {results.folder}")


def _make_scheduler(name: str, engine: str, jobs: int | None, address: str | None) -> "Scheduler":
    from fedcascade.experiments import schedulers

    require(address is None or name == "ray", "--address belongs to --scheduler ray")
    require(jobs is None or name == "local", "--jobs belongs to --scheduler local; a Ray cluster counts its own cores")
    if engine == "cuda":
        require(name == "local", "--engine cuda plays on this machine's GPU: leave --scheduler local")
        return schedulers.make_gpu_scheduler(workers=jobs)
    if name == "ray":
        return schedulers.make_ray_scheduler(address=address)
    return schedulers.make_local_scheduler(workers=jobs)


def _execute(plans: Sequence["Plan"], folder: Path, scheduler: "Scheduler") -> list["PlannedJob"]:
    """Run plans with a bar over all rounds, and the number of finished runs beside it."""
    from fedcascade.experiments.runner import execute

    with terminal.show_progress_bars() as bars:
        task = bars.add_task("starting", total=None)

        def show(now: "Progress") -> None:
            rounds = min(now.rounds, now.all_rounds)
            words = f"run {now.runs:,} of {now.all_runs:,}"
            bars.update(task, description=words, total=now.all_rounds, completed=rounds)

        return execute(plans, folder, scheduler, show)
