"""MLflow: every run arrives once, with its parameters and curves, in a local file store."""

from pathlib import Path
from typing import Any

import pytest

from fedcascade.experiments.jobs import list_planned_jobs
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.results import load_record
from fedcascade.experiments.sinks import KEY, log_to_mlflow

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow and what it imports warn about themselves


def test_runs_arrive_once_and_whole(small_plan: Plan, small_folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (extra 'mlflow')")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri, jobs = (tmp_path / "mlruns").as_uri(), list_planned_jobs([small_plan])
    assert log_to_mlflow(jobs[:4], small_folder, uri) == 4
    assert log_to_mlflow(jobs, small_folder, uri) == 2
    assert log_to_mlflow(jobs, small_folder, uri) == 0

    client = mlflow.MlflowClient(tracking_uri=uri)
    logged = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert {run.data.tags[KEY] for run in logged} == {planned.job.key for planned in jobs}
    for planned in jobs:
        run = next(run for run in logged if run.data.tags[KEY] == planned.job.key)
        record = load_record(small_folder, planned.job)
        assert record is not None
        assert run.info.status == "FINISHED"
        assert run.data.params["beta"] == "5.0"
        assert run.data.params["seed"] == str(planned.job.seed)
        assert run.data.metrics["regret"] == record["regret"]
        for name in ("regret", "reward"):
            curve = client.get_metric_history(run.info.run_id, name)
            assert [(point.step, point.value) for point in curve] == [(p["round"], p[name]) for p in record["curve"]]
