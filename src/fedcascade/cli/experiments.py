"""``fedcascade reproduce``, ``fedcascade experiment`` and ``fedcascade report``."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fedcascade.checks import require
from fedcascade.cli import terminal
from fedcascade.cli.options import PLAIN, Json, Whole, option
from fedcascade.cli.progress import GETTING_READY, print_line, show_runs

if TYPE_CHECKING:
    from fedcascade.experiments.jobs import PlannedJob
    from fedcascade.experiments.plan import Plan
    from fedcascade.experiments.results import Results
    from fedcascade.experiments.runner import Scheduler

PAPER_FOLDER = Path("results/paper")
# A constant, because --help reads no files.
BUILTIN_PLANS = (
    "figure-1a, figure-1bc, figure-1d, living, many-users, million, population, privacy, rare-clicks, ratings, "
    "sensitivity, warm-start"
)
PLAN_HELP = f"TOML file: environments x policies x grids x seeds. Or a built-in plan: {BUILTIN_PLANS}."


@Parameter(name="*", group=PLAIN)
@dataclass(frozen=True, kw_only=True)
class SchedulerFlags:
    """The processes or machines that compute runs.

    Attributes:
        jobs: Number of processes, each on one core. [default: one per core]
        scheduler: local: processes of this machine; ray: a Ray cluster (extra 'ray').
        engine: exact: on the cores of this machine or a cluster; cuda: on its GPU, many runs at once (extra 'gpu').
        address: Address of a running Ray cluster. [default: start one on this machine]
    """

    jobs: Whole | None = None
    scheduler: Literal["local", "ray"] = "local"
    engine: Literal["exact", "cuda"] = "exact"
    address: str | None = None

    def build(self) -> "Scheduler":
        from fedcascade.experiments import runner

        is_local = self.scheduler == "local"
        require(self.address is None or not is_local, "--address belongs to --scheduler ray")
        reason = "--jobs belongs to --scheduler local; a Ray cluster counts its own cores"
        require(self.jobs is None or is_local, reason)
        if self.engine == "cuda":
            require(is_local, "--engine cuda runs on this machine's GPU: leave out --scheduler ray")
            return runner.make_gpu_scheduler(workers=self.jobs)
        if not is_local:
            return runner.make_ray_scheduler(address=self.address)
        return runner.make_local_scheduler(workers=self.jobs)


def reproduce(
    *,
    quick: Annotated[
        bool, option("3 runs instead of 10, without generated ratings: about a minute.", show_default=False)
    ] = False,
    strict: Annotated[bool, option("Exit with 1 unless the main claims are confirmed.", show_default=False)] = False,
    runs: Annotated[Whole | None, option("Runs of each policy. [default: 10, with --quick 3]")] = None,
    ratings: Annotated[
        Path | None, option("Ratings file of the experiment on real data. [default: generated ratings]")
    ] = None,
    out: Annotated[
        Path, option("Folder for results and report; the same command resumes a stopped one.")
    ] = PAPER_FOLDER,
    no_open: Annotated[bool, option("Do not open the report in a browser.", show_default=False)] = False,
    scheduler_flags: SchedulerFlags = SchedulerFlags(),  # noqa: B008 (frozen)
) -> None:
    """Run the paper's whole evaluation and write a report that compares its figures with ours."""
    require(not (strict and quick), "--strict needs more runs than --quick has: leave one of them out")
    require(runs is None or runs >= 1, f"runs must be a whole number >= 1, got {runs}")
    jobs = scheduler_flags.jobs
    require(jobs is None or jobs >= 1, f"jobs must be a whole number >= 1, got {jobs}")
    require(out.is_dir() or not out.exists(), f"'{out}' cannot hold results: it is a file; give a folder with --out")
    require(
        ratings is None or ratings.is_file(), f"ratings file '{ratings}' not found: give the path of an existing file"
    )
    # Print a line before the imports, which take a second or two.
    places = "J = 5 and J = 10" if quick and ratings is None else "J = 5, J = 10 and ratings"
    print_line(f"the paper's evaluation: five policies, {places}, 1,000,000 rounds a run; results go to {out}")
    print_line(GETTING_READY)
    from fedcascade.cli.reproduction import describe_results
    from fedcascade.experiments import paper_claims
    from fedcascade.experiments.reports import paper_report
    from fedcascade.experiments.results import read_results

    plans = paper_claims.load_paper_plans(quick=quick, runs=runs, ratings=ratings)
    _execute(plans, out, scheduler_flags.build())
    print_line("all runs finished: drawing the figures")
    results = read_results(out)
    path, claims = paper_report.write_report(results)
    terminal.show(*describe_results(results, claims))
    opened = not no_open and terminal.open_page(path.resolve().as_uri())
    print(f"\nAll claims, figures and constants: {path}{' (opened in your browser)' if opened else ''}")
    if strict:
        judged, unconfirmed = len(paper_claims.STRICT), paper_claims.find_unconfirmed(claims)
        print_line(f"strict: {judged - len(unconfirmed)} of {judged} claims confirmed")
        if unconfirmed:
            print_line(f"fedcascade: not confirmed: {'; '.join(unconfirmed)}")
            sys.exit(1)


def experiment(
    plan: Annotated[Path, Parameter(help=PLAN_HELP)],
    /,
    *,
    ratings: Annotated[
        Path | None, option("Ratings file for environments without one. [default: generated ratings]")
    ] = None,
    out: Annotated[
        Path | None, option("Folder for the results. [default: results/NAME, after the plan's name]")
    ] = None,
    scheduler_flags: SchedulerFlags = SchedulerFlags(),  # noqa: B008 (frozen)
    json_: Json = False,
) -> None:
    """Run a plan of experiments in parallel; the same command resumes a stopped one."""
    from fedcascade.experiments import results
    from fedcascade.experiments.plan_reader import load_plan, set_ratings_file

    named = load_plan(plan)
    chosen = named if ratings is None else set_ratings_file(named, ratings)
    is_used = ratings is None or chosen.environments != named.environments
    require(is_used, f"--ratings: plan '{plan}' has no environment of kind ratings that names no file")
    folder = Path("results") / chosen.name if out is None else out
    planned_jobs = _execute([chosen], folder, scheduler_flags.build(), lines=not json_)
    if json_:
        for planned in planned_jobs:
            record = results.load_record(folder, planned.job) or {}
            print(json.dumps({"environment": planned.environment, "label": planned.label, **record}))
        return
    print_results(results.read_results(folder))


def report(folder: Annotated[Path, Parameter(help="A results folder of 'experiment' or 'reproduce'.")], /) -> None:
    """Write the report of a results folder: report.html, and figures as SVG, PDF and PNG."""
    from fedcascade.experiments import paper_claims
    from fedcascade.experiments.reports import paper_report, summary
    from fedcascade.experiments.results import read_results

    results = read_results(folder)
    is_judged = results.planned is None and paper_claims.is_paper(results)
    path = paper_report.write_report(results)[0] if is_judged else summary.write_report(results)
    print(f"report: {path}")


def print_results(results: "Results") -> None:
    """Print a table of all policies and the comparisons of the plan."""
    from fedcascade.experiments.comparisons import HEADER, compare_policies
    from fedcascade.experiments.reports import summary

    tables = list(terminal.make_summary_tables(summary.summarise_policies(results)))
    lines = [comparison.format() for comparison in compare_policies(results)]
    if lines:
        tables.append(terminal.make_table("comparisons", HEADER, lines, HEADER[3:]))
    terminal.show(*tables)
    print(f"results: {results.folder}\nfor figures: fedcascade report {results.folder}")


def _execute(
    plans: Sequence["Plan"], folder: Path, scheduler: "Scheduler", *, lines: bool = True
) -> list["PlannedJob"]:
    from fedcascade.experiments.runner import execute

    with show_runs(lines=lines) as show:
        return execute(plans, folder, scheduler, show)
