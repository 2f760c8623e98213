"""Other places for results: MLflow tracking, written through its own client."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedcascade.experiments import results
from fedcascade.experiments.jobs import Record, Run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

KEY = "fedcascade.key"
CURVES = ("regret", "communications", "clustering_error")


def check_mlflow() -> None:
    """Refuse at once, not after hours of work, where MLflow is not installed."""
    try:
        import mlflow  # noqa: F401
    except ImportError:
        raise ValueError("--mlflow needs MLflow: pip install 'fedcascade[mlflow]'") from None


def log_to_mlflow(runs: Sequence[Run], folder: Path, uri: str) -> int:
    """Log finished runs, each under its plan's name; one that is there already is left alone. Returns how many."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    logged = 0
    for name in dict.fromkeys(run.experiment for run in runs):
        experiment = _experiment(client, name)
        there = {run.data.tags.get(KEY) for run in _all_runs(client, experiment)}
        for run in runs:
            record = results.saved(folder, run.job)
            if run.experiment == name and record is not None and run.job.key not in there:
                _log(client, experiment, run, record)
                logged += 1
    return logged


def _experiment(client: "MlflowClient", name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if found is None else found.experiment_id)


def _all_runs(client: "MlflowClient", experiment: str) -> list["MlflowRun"]:
    found: list[MlflowRun] = []
    token = None
    while True:
        page = client.search_runs([experiment], "attributes.status = 'FINISHED'", page_token=token)
        found += list(page)
        token = page.token
        if not token:
            return found


def _log(client: "MlflowClient", experiment: str, run: Run, record: Record) -> None:
    """One run: parameters, curves by round, totals. It counts as finished only when all of it is there."""
    from mlflow.entities import Metric, Param

    tags = {KEY: run.job.key, "environment": run.environment, "system": run.system}
    name = f"{run.environment}, {run.system}, seed {run.job.seed}"
    started = client.create_run(experiment, tags=tags, run_name=name).info
    given = {"policy": run.job.policy, "seed": run.job.seed, "rounds": run.job.rounds, **run.job.constants}
    curve = [
        Metric(quantity, float(point[quantity]), started.start_time, point["round"])
        for point in record["curve"]
        for quantity in CURVES
    ]
    totals = [Metric(name, float(record[name]), started.start_time, run.job.rounds) for name in ("reward", "seconds")]
    client.log_batch(started.run_id, params=[Param(key, str(value)) for key, value in given.items()])
    for first in range(0, len(curve) + len(totals), 1_000):  # MLflow takes up to 1,000 at a time
        client.log_batch(started.run_id, metrics=(curve + totals)[first : first + 1_000])
    client.set_terminated(started.run_id)
