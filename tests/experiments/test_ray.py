"""A Ray cluster of two nodes gives the same files, and goes on where another scheduler stopped."""

from pathlib import Path
from typing import Any

import pytest

from fedcascade.checks import EXTRAS
from fedcascade.experiments import results
from fedcascade.experiments.jobs import Job, list_planned_jobs, run_job
from fedcascade.experiments.plan import Plan
from fedcascade.experiments.runner import execute, make_ray_scheduler


@pytest.fixture
def two_nodes() -> Any:
    pytest.importorskip("ray", reason="Ray is not installed (extra 'ray')")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # Ray and what it imports warn about themselves
def test_two_nodes_give_the_same_files(small_plan: Plan, small_folder: Path, tmp_path: Path, two_nodes: Any) -> None:
    half = [planned.job for planned in list_planned_jobs([small_plan])][:3]
    for job in half:
        results.save_record(tmp_path, job, run_job(job))
    played: list[Job] = []

    def scheduler(jobs: Any, report: Any) -> Any:
        played.extend(jobs)
        return make_ray_scheduler(address=two_nodes.address)(jobs, report)

    execute([small_plan], tmp_path, scheduler, lambda _: None)
    assert len(played) == 3
    for name in (results.RUNS, results.CURVES):
        assert (tmp_path / name).read_bytes() == (small_folder / name).read_bytes()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_both_nodes_work(two_nodes: Any) -> None:
    import ray

    ray.init(address=two_nodes.address, log_to_driver=False)
    try:
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        assert ray.cluster_resources()["CPU"] == 2
    finally:
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_is_not_there_is_refused(small_plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra 'ray')")
    with pytest.raises(ValueError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        execute([small_plan], tmp_path, make_ray_scheduler(address="127.0.0.1:1"), lambda _: None)


def test_where_ray_is_missing_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "ray", ("no_such_module",))
    with pytest.raises(ImportError, match=r"fedcascade\[ray\]"):
        make_ray_scheduler()
