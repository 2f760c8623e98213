"""Results on disk: one small file per finished run, and tables made from them.

The file of a run is written atomically, so that an interruption leaves no partial result. The tables depend on the
runs alone: they are equal to the byte after any number of interruptions.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from fedcascade import __version__
from fedcascade.checks import require
from fedcascade.experiments.jobs import Job, PlannedJob, Record, list_planned_jobs
from fedcascade.experiments.plan import OPTIONS, EnvironmentSpec, Plan
from fedcascade.platforms import write_atomically

RUNS, CURVES, MANIFEST = "runs.parquet", "curves.parquet", "manifest.json"
UNFINISHED = "unfinished.json"  # the plans of a folder, until all runs are finished
TOTALS = ("rounds", "regret", "reward", "observations", "communications", "bytes", "clusters", "clustering_error")
FIELDS = {*TOTALS, "engine", "seconds", "curve"}  # the fields of a record that the tables need
SIZES = ("environment_users", "environment_clusters", "environment_dimension", "environment_items")
LIBRARIES = ("numpy", "numba", "polars", "matplotlib", "msgspec")


def save_record(folder: Path, job: Job, record: Record) -> None:
    """Save the record of a finished run."""
    write_atomically(_make_path(folder, job), json.dumps(record).encode())


def load_record(folder: Path, job: Job) -> Record | None:
    """Load the record of a run; None if the run is not finished."""
    path = _make_path(folder, job)
    try:
        record: Record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _refuse_file(path, error) from None
    is_whole = isinstance(record, dict) and record.get("key") == job.key and record.keys() >= FIELDS
    require(is_whole, f"'{path}' is not the record of this run: delete it and run the same command again")
    return record


def _refuse_file(path: Path, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())
    return ValueError(f"'{path}' cannot be read: {reason}; delete it and run the same command again")


def _make_path(folder: Path, job: Job) -> Path:
    return folder / "runs" / f"{job.key}.json"


def write_tables(folder: Path, plans: Sequence[Plan], planned_jobs: Sequence[PlannedJob], seconds: float) -> None:
    """Write the tables and the manifest of finished runs."""
    finished = list_finished(folder, planned_jobs)
    require(len(finished) == len(planned_jobs), f"only {len(finished)} of {len(planned_jobs)} runs are finished")
    _write_parquet(folder / RUNS, [_make_run_row(planned, record) for planned, record in finished])
    _write_parquet(folder / CURVES, [row for planned, record in finished for row in _make_curve_rows(planned, record)])
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (RUNS, CURVES)}
    manifest = _make_manifest(plans, [record for _, record in finished], seconds, digests)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    (folder / UNFINISHED).unlink(missing_ok=True)


def list_finished(folder: Path, planned_jobs: Sequence[PlannedJob]) -> list[tuple[PlannedJob, Record]]:
    """Return the jobs whose runs are finished, with their records."""
    records = [load_record(folder, planned.job) for planned in planned_jobs]
    return [(planned, record) for planned, record in zip(planned_jobs, records, strict=True) if record is not None]


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    make_table(rows).write_parquet(draft, compression="zstd", statistics=False)
    draft.replace(path)


def _make_identity(planned: PlannedJob) -> dict[str, Any]:
    """Return the columns that identify a run."""
    names = {"experiment": planned.experiment, "environment": planned.environment, "label": planned.label}
    return names | {"seed": planned.job.seed}


def _make_run_row(planned: PlannedJob, record: Record) -> dict[str, Any]:
    job = planned.job
    causes = {f"exchanges_{cause}": count for cause, count in record["communications"].items() if cause != "total"}
    return {
        **_make_identity(planned),
        "policy": job.policy,
        **{f"constant_{name}": value for name, value in job.constants.items()},
        "constants": json.dumps(job.constants, sort_keys=True),
        **measure_environment(job.environment),
        "rounds": job.rounds,
        **{name: record[name] for name in ("regret", "reward", "observations")},
        "exchanges": record["communications"]["total"],
        **causes,
        "bytes_up": record["bytes"]["up"],
        "bytes_down": record["bytes"]["down"],
        **{name: record[name] for name in ("clusters", "clustering_error", "engine")},
        **({"newcomer_regret": record["newcomer_regret"]} if "newcomer_regret" in record else {}),
        **({name: record["exposure"][name] for name in ("coverage", "gini")} if "exposure" in record else {}),
        "key": job.key,
    }


def measure_environment(spec: EnvironmentSpec) -> dict[str, int | None]:
    """Return the sizes of an environment as columns: users, clusters, dimension, and the most items of a round."""
    if spec.kind not in OPTIONS:
        return dict.fromkeys(SIZES)
    options = spec.declared
    clusters = options.clusters if isinstance(options.clusters, int) else len(options.clusters)
    values = (options.users, clusters, options.dimension, options.item_range[1])
    return dict(zip(SIZES, values, strict=True))


def make_table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Make a table with the columns of all rows; a missing value is null.

    A column with both numbers and text holds text.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pl.DataFrame([_make_series(name, [row.get(name) for row in rows]) for name in names])


def _make_series(name: str, values: list[Any]) -> pl.Series:
    kinds = {type(value) for value in values if value is not None}
    if str in kinds and len(kinds) > 1:
        values = [None if value is None else str(value) for value in values]
    return pl.Series(name, values, strict=False)


def _make_curve_rows(planned: PlannedJob, record: Record) -> Iterator[dict[str, Any]]:
    for point in record["curve"]:
        yield {
            **_make_identity(planned),
            "round": point["round"],
            "regret": point["regret"],
            "reward": point.get("reward"),
            "exchanges": point["communications"],
            "clustering_error": point["clustering_error"],
        }


def _make_manifest(
    plans: Sequence[Plan], records: Sequence[Record], seconds: float, digests: dict[str, str]
) -> dict[str, Any]:
    distinct = {record["key"]: record for record in records}.values()
    return {
        "fedcascade": __version__,
        "plans": msgspec.to_builtins(list(plans)),
        "runs": len(distinct),
        "rounds": sum(record["rounds"] for record in distinct),
        "core_seconds": sum(record["seconds"] for record in distinct),
        "seconds": seconds,
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "processor": _find_processor_name(),
            "cores": os.cpu_count(),
        },
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "files": digests,
    }


def _find_processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


class Results(msgspec.Struct, frozen=True):
    """The contents of a results folder; ``planned`` counts the planned runs of an unfinished folder."""

    folder: Path
    manifest: dict[str, Any]
    plans: list[Plan]
    runs: pl.DataFrame
    curves: pl.DataFrame
    planned: int | None = None


def read_results(folder: Path) -> Results:
    """Read a results folder, or the finished runs of an unfinished folder."""
    if (folder / UNFINISHED).is_file():
        return _read_unfinished(folder)
    missing = [name for name in (MANIFEST, RUNS, CURVES) if not (folder / name).is_file()]
    require(
        not missing,
        f"'{folder}' is not a results folder ({', '.join(missing)} missing): "
        "give a folder written by 'fedcascade experiment' or 'fedcascade reproduce'",
    )
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        plans = msgspec.convert(manifest["plans"], list[Plan])
        path = folder / RUNS
        runs = pl.read_parquet(path)
        path = folder / CURVES
        return Results(folder, manifest, plans, runs, pl.read_parquet(path))
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise _refuse_file(path, error) from None


def _read_unfinished(folder: Path) -> Results:
    path = folder / UNFINISHED
    try:
        plans = msgspec.json.decode(path.read_bytes(), type=list[Plan])
    except (OSError, msgspec.MsgspecError) as error:
        raise _refuse_file(path, error) from None
    planned_jobs = list_planned_jobs(plans)
    finished = list_finished(folder, planned_jobs)
    require(len(finished) > 0, f"'{folder}' has no finished run yet: run the same experiment again to continue")
    runs = make_table([_make_run_row(planned, record) for planned, record in finished])
    curves = make_table([row for planned, record in finished for row in _make_curve_rows(planned, record)])
    manifest = _make_manifest(plans, [record for _, record in finished], 0.0, {})
    return Results(folder, manifest, plans, runs, curves, len({planned.job.key for planned in planned_jobs}))
