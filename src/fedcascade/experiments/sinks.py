"""Log results to MLflow tracking."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedcascade.experiments import results
from fedcascade.experiments.jobs import PlannedJob, Record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

KEY = "fedcascade.key"
CURVES = ("regret", "reward", "communications", "clustering_error")


def log_to_mlflow(planned_jobs: Sequence[PlannedJob], folder: Path, uri: str) -> int:
    """Log finished runs that MLflow does not have yet, and return their number."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    logged = 0
    for name in dict.fromkeys(planned.experiment for planned in planned_jobs):
        existing = client.get_experiment_by_name(name)
        experiment = str(client.create_experiment(name) if existing is None else existing.experiment_id)
        logged_keys = {run.data.tags.get(KEY) for run in _list_runs(client, experiment)}
        for planned in planned_jobs:
            record = results.load_record(folder, planned.job)
            if planned.experiment == name and record is not None and planned.job.key not in logged_keys:
                _log_run(client, experiment, planned, record)
                logged += 1
    return logged


def _list_runs(client: "MlflowClient", experiment: str) -> list["MlflowRun"]:
    runs: list[MlflowRun] = []
    token = None
    while True:
        page = client.search_runs([experiment], "attributes.status = 'FINISHED'", page_token=token)
        runs += page
        if not (token := page.token):
            return runs


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
