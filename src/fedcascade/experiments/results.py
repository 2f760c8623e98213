"""Results on disk: one small file per finished run, and tables made from them.

A run's file appears whole or not at all, so whatever happens, what is there is right. The tables are a function
of the runs alone: they come out the same to the byte, however often the work was interrupted.
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
from fedcascade.experiments.jobs import Job, Record, Run
from fedcascade.experiments.plan import Plan

RUNS, CURVES, MANIFEST = "runs.parquet", "curves.parquet", "manifest.json"
LIBRARIES = ("numpy", "numba", "polars", "matplotlib", "msgspec")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with draft.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)


def save(folder: Path, job: Job, record: Record) -> None:
    """Keep a finished run."""
    write_whole(_place(folder, job), json.dumps(record).encode())


def saved(folder: Path, job: Job) -> Record | None:
    """The record of a run, if it is finished."""
    try:
        record: Record = json.loads(_place(folder, job).read_bytes())
    except FileNotFoundError:
        return None
    return record


def _place(folder: Path, job: Job) -> Path:
    return folder / "runs" / f"{job.key}.json"


def write_tables(folder: Path, plans: Sequence[Plan], runs: Sequence[Run], seconds: float) -> None:
    """Write the tables and the manifest of finished runs."""
    records = [saved(folder, run.job) for run in runs]
    whole = [(run, record) for run, record in zip(runs, records, strict=True) if record is not None]
    require(len(whole) == len(runs), f"only {len(whole)} of {len(runs)} runs are finished")
    _write_parquet(folder / RUNS, [_totals(run, record) for run, record in whole])
    _write_parquet(folder / CURVES, [point for run, record in whole for point in _points(run, record)])
    manifest = _manifest(folder, plans, [record for _, record in whole], seconds)
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    pl.DataFrame(rows).write_parquet(draft, compression="zstd", statistics=False)
    draft.replace(path)


def _where(run: Run) -> dict[str, Any]:
    return {
        "experiment": run.experiment,
        "environment": run.environment,
        "system": run.system,
        "seed": run.job.seed,
    }


def _totals(run: Run, record: Record) -> dict[str, Any]:
    spoken = {f"exchanges_{cause}": count for cause, count in record["communications"].items() if cause != "total"}
    return {
        **_where(run),
        "policy": run.job.policy,
        **{f"constant_{name}": value for name, value in run.job.constants.items() if name in COMMON},
        "constants": json.dumps(run.job.constants, sort_keys=True),
        "rounds": run.job.rounds,
        "regret": record["regret"],
        "reward": record["reward"],
        "observations": record["observations"],
        "exchanges": record["communications"]["total"],
        **spoken,
        "bytes_up": record["bytes"]["up"],
        "bytes_down": record["bytes"]["down"],
        "clusters": record["clusters"],
        "clustering_error": record["clustering_error"],
        "engine": record["engine"],
        "key": run.job.key,
    }


COMMON = ("lambda", "beta")  # constants of every policy of ours; those of some alone are in the column "constants"


def _points(run: Run, record: Record) -> Iterator[dict[str, Any]]:
    for point in record["curve"]:
        yield {
            **_where(run),
            "round": point["round"],
            "regret": point["regret"],
            "exchanges": point["communications"],
            "clustering_error": point["clustering_error"],
        }


def _manifest(folder: Path, plans: Sequence[Plan], records: Sequence[Record], seconds: float) -> dict[str, Any]:
    distinct = {record["key"]: record for record in records}
    return {
        "fedcascade": __version__,
        "plans": msgspec.to_builtins(list(plans)),
        "runs": len(distinct),
        "rounds": sum(record["rounds"] for record in distinct.values()),
        "core_seconds": sum(record["seconds"] for record in distinct.values()),
        "seconds": seconds,
        "machine": machine(),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "files": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (RUNS, CURVES)},
    }


def machine() -> dict[str, Any]:
    """The machine that these results were put together on."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


class Results(msgspec.Struct, frozen=True):
    """A results folder, read."""

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
