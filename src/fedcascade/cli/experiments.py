"""``fedcascade reproduce``, ``fedcascade experiment`` and ``fedcascade report``."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fedcascade.checks import require
from fedcascade.cli.options import Whole, option

if TYPE_CHECKING:
    from fedcascade.experiments.jobs import Run
    from fedcascade.experiments.plan import Plan
    from fedcascade.experiments.results import Results
    from fedcascade.experiments.runner import Progress
    from fedcascade.experiments.schedulers import Scheduler

Jobs = Annotated[Whole | None, option("How many processes play runs, each on one core. [default: one per core]")]
Scheduling = Annotated[
    Literal["local", "ray"], option("local: processes of this machine; ray: a Ray cluster (extra 'ray').")
]
Playing = Annotated[
    Literal["exact", "cuda"],
    option("exact: on the cores of this machine or a cluster; cuda: on its GPU, many runs at once (extra 'gpu')."),
]
SHIPPED = "auxiliary, beyond-paper, figure-1a, figure-1bc, figure-1d"  # a constant, so that --help reads no files
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
    out: Annotated[Path, option("Folder for results and report; a stopped run goes on where it was.")] = Path(
        "results/paper"
    ),
    jobs: Jobs = None,
    scheduler: Scheduling = "local",
    engine: Playing = "exact",
    address: Address = None,
) -> None:
    """Run the paper's whole evaluation and write a report that sets its figures beside ours.

    Example: fedcascade reproduce --quick
    """
    from fedcascade.cli import terminal
    from fedcascade.experiments import paper_claims
    from fedcascade.experiments.reports import paper_report
    from fedcascade.experiments.results import read_results

    plans = paper_claims.plans(quick=quick, runs=runs, ratings=ratings)
    _execute(plans, out, _scheduler(scheduler, engine, jobs, address))
    written, claims = paper_report.write_report(read_results(out))
    terminal.show(terminal.claims_table(claims))
    print(f"report: {written}")


def experiment(
    plan: Annotated[
        Path,
        Parameter(
            help=f"TOML file: environments x policies x grids x seeds. Or one that comes with the package: {SHIPPED}."
        ),
    ],
    /,
    *,
    ratings: Annotated[
        Path | None, option("Ratings file of environments that name none. [default: generated ratings]")
    ] = None,
    out: Annotated[
        Path | None, option("Folder for the results. [default: results/NAME, after the plan's name]")
    ] = None,
    jobs: Jobs = None,
    scheduler: Scheduling = "local",
    engine: Playing = "exact",
    address: Address = None,
    format_: Annotated[
        Literal["table", "json"],
        option("table, or json: one object per run and line, and nothing else.", name="--format"),
    ] = "table",
    mlflow: Annotated[
        str | None, option("Also log the runs to the MLflow tracking server or folder at this URI (extra 'mlflow').")
    ] = None,
) -> None:
    """Play every run of a plan, in parallel; the same command goes on where a stopped one was.

    Example: fedcascade experiment plan.toml --out results/mine
    """
    from fedcascade.experiments import results, sinks
    from fedcascade.experiments.builtin_plans import find_plan, takes_ratings, with_ratings

    chosen = find_plan(plan)
    lacking = ratings is None or takes_ratings(chosen)
    require(lacking, f"--ratings: plan '{plan}' has no environment of kind ratings that names no file")
    chosen = with_ratings(chosen, ratings)
    folder = Path("results") / chosen.name if out is None else out
    if mlflow is not None:
        sinks.check_mlflow()
    played = _execute([chosen], folder, _scheduler(scheduler, engine, jobs, address))
    if mlflow is not None:
        sinks.log_to_mlflow(played, folder, mlflow)
    if format_ == "json":
        for run in played:
            print(
                json.dumps(
                    {"environment": run.environment, "system": run.system, **(results.saved(folder, run.job) or {})}
                )
            )
        return
    conclude(results.read_results(folder))


def report(
    folder: Annotated[Path, Parameter(help="A results folder of 'experiment' or 'reproduce'.")],
    /,
) -> None:
    """Write the tables and figures of a results folder into it: report.html, SVG, PDF and PNG."""
    from fedcascade.experiments import beyond_bars, paper_claims
    from fedcascade.experiments.reports import beyond_report, paper_report
    from fedcascade.experiments.reports import summary as reports
    from fedcascade.experiments.results import read_results

    found = read_results(folder)
    if paper_claims.is_paper(found):
        written, _ = paper_report.write_report(found)
    elif beyond_bars.is_beyond(found):
        written, _ = beyond_report.write_report(found)
    else:
        written = reports.write_report(found)
    print(f"report: {written}")


def conclude(found: "Results") -> None:
    """Print what came out: whether bars are met, where a plan has any, and else a table of all systems."""
    from fedcascade.cli import terminal
    from fedcascade.experiments import beyond_bars
    from fedcascade.experiments.reports import beyond_report
    from fedcascade.experiments.reports.summary import summary

    if beyond_bars.is_beyond(found):
        written, bars = beyond_report.write_report(found)
        terminal.show(terminal.bars_table(bars))
        print(f"report: {written}")
        return
    terminal.show(terminal.summary_table(summary(found)))
    print(f"results: {found.folder}\nfor figures: fedcascade report {found.folder}")


def _scheduler(name: str, engine: str, jobs: int | None, address: str | None) -> "Scheduler":
    from fedcascade.experiments import schedulers

    require(address is None or name == "ray", "--address belongs to --scheduler ray")
    require(jobs is None or name == "local", "--jobs belongs to --scheduler local; a Ray cluster counts its own cores")
    if engine == "cuda":
        require(name == "local", "--engine cuda plays on this machine's GPU: leave --scheduler local")
        return schedulers.on_device(workers=jobs)
    return schedulers.on_ray(address=address) if name == "ray" else schedulers.local(workers=jobs)


def _execute(plans: Sequence["Plan"], folder: Path, scheduler: "Scheduler") -> list["Run"]:
    from fedcascade.experiments.runner import execute

    with _progress() as progress:
        return execute(plans, folder, scheduler, progress)


@contextmanager
def _progress() -> Iterator[Callable[["Progress"], None]]:
    """A bar over all rounds, with the runs that are done beside it."""
    from fedcascade.cli import terminal

    with terminal.progress_bars() as bars:
        task = bars.add_task("starting", total=None)
        yield lambda now: bars.update(
            task,
            description=f"run {now.runs:,} of {now.all_runs:,}",
            total=now.all_rounds,
            completed=min(now.rounds, now.all_rounds),
        )
