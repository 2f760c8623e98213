"""A/B tests and pauses at a server: counters per arm, an alarm, and agents that go on alone meanwhile."""

from pathlib import Path

import pytest

from fedcascade.service.agent.client import AgentClient
from fedcascade.service.protocol.arms import CONTROL, TREATMENT, ArmCount
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.operations import read_switches

from ..helpers import RunningService, ServerProcess, build_unit_upload, serve_in_process


def read_metrics(running: RunningService) -> str:
    return running.transport.send("GET", "/metrics", b"", {}).text


def count(arm: str, clicks: int) -> list[ArmCount]:
    """Count 100 lists of each of 50 buckets, that many of them clicked, give or take one."""
    return [ArmCount(arm, bucket, 100, clicks + bucket % 2) for bucket in range(50)]


def test_lists_and_clicks_are_counters_by_arm_and_a_worse_arm_raises_an_alarm(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        assert "fedcascade_arm_lists_total" not in read_metrics(running)
        running.operator.count_arms([*count(CONTROL, 40), *count(TREATMENT, 20)])
        text = read_metrics(running)
        for line in (
            'fedcascade_arm_lists_total{arm="control"} 5000.0',
            'fedcascade_arm_clicks_total{arm="control"} 2025.0',
            'fedcascade_arm_clicks_total{arm="treatment"} 1025.0',
            "fedcascade_arm_alarm 1.0",
        ):
            assert line in text
        with pytest.raises(Refused, match="clicks must be at most the lists"):
            running.operator.count_arms([ArmCount(CONTROL, 0, 1, 2)])
        with pytest.raises(Refused, match=r"control\|treatment"):
            running.operator.count_arms([ArmCount("another", 0, 1, 1)])


def test_paused_exchanges_are_refused_and_counted_when_they_are_resumed(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        agent = running.enrol()
        agent.exchange(build_unit_upload(1, 0, 3))
        running.operator.pause()
        with pytest.raises(Refused, match="paused exchanges: go on alone") as refused:
            agent.exchange(build_unit_upload(2, 0, 3))
        assert (refused.value.status, refused.value.reason, refused.value.retry_after) == (503, "paused", 30.0)
        with pytest.raises(Refused, match="paused"):
            running.enrol()
        assert "fedcascade_paused 1.0" in read_metrics(running)
        running.operator.pause(False)
        assert agent.exchange(build_unit_upload(2, 0, 3)).sequence == 2
        assert running.writer is not None
        assert running.writer.submit(read_switches).result() == (False, None)


def exchange_until_refused(agent: AgentClient, first: int) -> str:
    """Exchange until the server refuses; return the reason."""
    for sequence in range(first, 5_000):
        try:
            agent.exchange(build_unit_upload(sequence, 0, 3))
        except Refused as refusal:
            return refusal.reason
    return "none"


def test_a_pause_reaches_the_other_server_of_a_store(tmp_path: Path) -> None:
    servers = [ServerProcess(tmp_path / name, f"sqlite:///{tmp_path}/store.db").start() for name in "ab"]
    first, second = (server.connect() for server in servers)
    try:
        agent = second.enrol()
        agent.exchange(build_unit_upload(1, 0, 3))
        first.operator.pause()
        assert exchange_until_refused(agent, 2) == "paused"
        first.operator.pause(False)
    finally:
        for running, server in zip((first, second), servers, strict=True):
            running.transport.close()
            server.stop()
