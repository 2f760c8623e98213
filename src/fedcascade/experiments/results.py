"""Results on disk: one small file per finished run, and tables made from them.

The file of a run is written whole or not at all, so that an interruption never leaves half a result. The tables are
a function of the runs alone: they come out the same to the byte, however often the work was interrupted.
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
from fedcascade.data.files import write_atomically
from fedcascade.experiments.jobs import Job, PlannedJob, Record
from fedcascade.experiments.plan import Plan

RUNS, CURVES, MANIFEST = "runs.parquet", "curves.parquet", "manifest.json"
LIBRARIES = ("numpy", "numba", "polars", "matplotlib", "msgspec")


def save_record(folder: Path, job: Job, record: Record) -> None:
    """Save the record of a finished run."""
    write_atomically(_make_path(folder, job), json.dumps(record).encode())


def load_record(folder: Path, job: Job) -> Record | None:
    """Load the record of a run; None if the run is not finished."""
    try:
        record: Record = json.loads(_make_path(folder, job).read_bytes())
    except FileNotFoundError:
        return None
    return record


def _make_path(folder: Path, job: Job) -> Path:
    return folder / "runs" / f"{job.key}.json"


def write_tables(folder: Path, plans: Sequence[Plan], planned_jobs: Sequence[PlannedJob], seconds: float) -> None:
    """Write the tables and the manifest of finished runs."""
    records = [load_record(folder, planned.job) for planned in planned_jobs]
    finished = [(planned, record) for planned, record in zip(planned_jobs, records, strict=True) if record is not None]
    require(len(finished) == len(planned_jobs), f"only {len(finished)} of {len(planned_jobs)} runs are finished")
    _write_parquet(folder / RUNS, [_make_run_row(planned, record) for planned, record in finished])
    _write_parquet(folder / CURVES, [row for planned, record in finished for row in _make_curve_rows(planned, record)])
    manifest = _make_manifest(folder, plans, [record for _, record in finished], seconds)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    pl.DataFrame(rows).write_parquet(draft, compression="zstd", statistics=False)
    draft.replace(path)


def _make_identity(planned: PlannedJob) -> dict[str, Any]:
    """Return the columns that say which run a row is of."""
    names = {"experiment": planned.experiment, "environment": planned.environment, "system": planned.system}
    return names | {"seed": planned.job.seed}


def _make_run_row(planned: PlannedJob, record: Record) -> dict[str, Any]:
    job = planned.job
    causes = {f"exchanges_{cause}": count for cause, count in record["communications"].items() if cause != "total"}
    return {
        **_make_identity(planned),
        "policy": job.policy,
        **{f"constant_{name}": value for name, value in job.constants.items() if name in COMMON},
        "constants": json.dumps(job.constants, sort_keys=True),
        "rounds": job.rounds,
        **{name: record[name] for name in ("regret", "reward", "observations")},
        "exchanges": record["communications"]["total"],
        **causes,
        "bytes_up": record["bytes"]["up"],
        "bytes_down": record["bytes"]["down"],
        **{name: record[name] for name in ("clusters", "clustering_error", "engine")},
        "key": job.key,
    }


COMMON = ("lambda", "beta")  # constants of every policy of ours; those of some alone are in the column "constants"


def _make_curve_rows(planned: PlannedJob, record: Record) -> Iterator[dict[str, Any]]:
    for point in record["curve"]:
        yield {
            **_make_identity(planned),
            "round": point["round"],
            "regret": point["regret"],
            "exchanges": point["communications"],
            "clustering_error": point["clustering_error"],
        }


def _make_manifest(folder: Path, plans: Sequence[Plan], records: Sequence[Record], seconds: float) -> dict[str, Any]:
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
        "files": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (RUNS, CURVES)},
    }


def _find_processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


class Results(msgspec.Struct, frozen=True):
    """The contents of a finished results folder."""

    folder: Path
    manifest: dict[str, Any]
    plans: list[Plan]
    runs: pl.DataFrame
    curves: pl.DataFrame


def read_results(folder: Path) -> Results:
    """Read a results folder."""
    missing = [name for name in (MANIFEST, RUNS, CURVES) if not (folder / name).is_file()]
    require(
        not missing,
        f"'{folder}' is no finished results folder ({', '.join(missing)} missing): "
        "run 'fedcascade experiment' or 'fedcascade reproduce' to its end first",
    )
    manifest = json.loads((folder / MANIFEST).read_bytes())
    plans = msgspec.convert(manifest["plans"], list[Plan])
    return Results(folder, manifest, plans, pl.read_parquet(folder / RUNS), pl.read_parquet(folder / CURVES))
