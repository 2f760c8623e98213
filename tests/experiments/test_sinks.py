"""MLflow: every run arrives once, with its parameters and curves, in a local file store."""

from pathlib import Path
from typing import Any

import pytest

from fedcascade.experiments.jobs import runs_of
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.results import saved
from fedcascade.experiments.sinks import KEY, log_to_mlflow

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow and what it imports warn about themselves


def test_runs_arrive_once_and_whole(small_plan: Plan, small_folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (extra 'mlflow')")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri, runs = (tmp_path / "mlruns").as_uri(), runs_of([small_plan])
    assert log_to_mlflow(runs[:4], small_folder, uri) == 4
    assert log_to_mlflow(runs, small_folder, uri) == 2
    assert log_to_mlflow(runs, small_folder, uri) == 0

    client = mlflow.MlflowClient(tracking_uri=uri)
    logged = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert {run.data.tags[KEY] for run in logged} == {run.job.key for run in runs}
    for run in runs:
        found = next(other for other in logged if other.data.tags[KEY] == run.job.key)
        record = saved(small_folder, run.job)
        assert record is not None
        assert found.info.status == "FINISHED"
        assert found.data.params["beta"] == "5.0"
        assert found.data.params["seed"] == str(run.job.seed)
        assert found.data.metrics["regret"] == record["regret"]
        curve = client.get_metric_history(found.info.run_id, "regret")
        assert [(point.step, point.value) for point in curve] == [(p["round"], p["regret"]) for p in record["curve"]]


def test_where_mlflow_is_missing_it_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedcascade.experiments.sinks import check_mlflow

    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(ValueError, match=r"fedcascade\[mlflow\]"):
        check_mlflow()
