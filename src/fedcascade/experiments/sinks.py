"""Log results to MLflow tracking."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

from fedcascade.checks import require_extra
from fedcascade.experiments import results
from fedcascade.experiments.jobs import PlannedJob, Record

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY = "fedcascade.key"
CURVES = ("regret", "reward", "communications", "clustering_error")


def check_mlflow(uri: str) -> None:
    """Refuse, before any run, a tracking store that MLflow cannot use: a folder, a database or a server."""
    require_extra("mlflow", "--mlflow")
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # new versions refuse folders without it
    from mlflow import MlflowClient

    try:
        if uri.startswith("http"):
            with suppress(HTTPError):  # MLflow itself would retry for minutes
                urlopen(uri, timeout=10).close()
        MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition('. ')[0]}"
        raise ValueError(
            f"--mlflow: cannot use '{uri}': {reason}; give a folder, sqlite:///FILE or http://SERVER"
        ) from None


def log_to_mlflow(planned_jobs: Sequence[PlannedJob], folder: Path, uri: str) -> int:
    """Log finished runs that MLflow does not have yet, and return their number."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    logged = 0
    for name in dict.fromkeys(planned.experiment for planned in planned_jobs):
        existing = client.get_experiment_by_name(name)
        experiment = str(client.create_experiment(name) if existing is None else existing.experiment_id)
        found = client.search_runs([experiment], "attributes.status = 'FINISHED'", max_results=50_000)  # the most
        logged_keys = {run.data.tags.get(KEY) for run in found}
        for planned in planned_jobs:
            record = results.load_record(folder, planned.job)
            if planned.experiment == name and record is not None and planned.job.key not in logged_keys:
                _log_run(client, experiment, planned, record)
                logged += 1
    return logged


def _log_run(client: "MlflowClient", experiment: str, planned: PlannedJob, record: Record) -> None:
    """Log parameters, curves by round and totals, then mark the run as finished."""
    from mlflow.entities import Metric, Param

    job = planned.job
    tags = {KEY: job.key, "environment": planned.environment, "label": planned.label}
    name = f"{planned.environment}, {planned.label}, seed {job.seed}"
    started = client.create_run(experiment, tags=tags, run_name=name).info
    parameters = {"policy": job.policy, "seed": job.seed, "rounds": job.rounds, **job.constants}
    points = [*record["curve"][:-1], {**record["curve"][-1], "reward": record["reward"]}]
    values = [
        (quantity, point[quantity], point["round"]) for point in points for quantity in CURVES if quantity in point
    ]
    values.append(("seconds", record["seconds"], job.rounds))
    metrics = [Metric(quantity, float(value), started.start_time, round_) for quantity, value, round_ in values]
    client.log_batch(started.run_id, params=[Param(key, str(value)) for key, value in parameters.items()])
    for first in range(0, len(metrics), 1_000):  # MLflow takes up to 1,000 at a time
        client.log_batch(started.run_id, metrics=metrics[first : first + 1_000])
    client.set_terminated(started.run_id)
