"""Enrolment that runs by itself: functions and keys that make tokens; features and dimensions that do not fit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.federation.policies import POLICIES
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.pool import AgentPool
from fedcascade.service.protocol.auth import create_token
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.service import Service
from fedcascade.service.server.settings import FOR_SIMULATIONS
from fedcascade.service.server.tenure import claim_store, describe_terms
from fedcascade.service.server.writer import Writer
from fedcascade.service.store.open import open_store

from ..helpers import FREE, CuttableTransport, RunningService, run_service, serve_in_process

D = 3


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningService]:
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def open_pool(running: RunningService, path: Path, tokens: Any) -> AgentPool:
    return AgentPool("", store=str(path), tokens=tokens, min_observations=1, pauses=(0.005, 0.05),
                     transport=CuttableTransport(running))  # fmt: skip


def play(pool: AgentPool, user: str, rounds: int = 30) -> None:
    for _ in range(rounds):
        pool.get(user).feedback(pool.get(user).recommend(np.eye(D), 2), 0)


def test_a_function_makes_tokens_only_when_they_are_needed(running: RunningService, tmp_path: Path) -> None:
    made: list[str] = []

    def make() -> str:
        made.extend(running.operator.create_tokens())
        return made[-1]

    with open_pool(running, tmp_path / "agents.db", make) as pool:
        pool.get("visitor").recommend(np.eye(D), 2)
        assert made == []
        for user in ("ann", "bob", "ann"):
            play(pool, user)
        assert pool.flush(30), pool.trouble
        assert (len(made), running.operator.fetch_overview().enrolled) == (2, 2)
    with connect("", store=str(tmp_path / "agent.db"), token=make, transport=CuttableTransport(running)) as agent:
        assert (agent.id > 0, len(made)) == (True, 3)
    with connect("", store=str(tmp_path / "agent.db"), token=make, transport=CuttableTransport(running)):
        assert len(made) == 3


def test_a_failure_to_make_tokens_names_the_cause_and_the_user(
    running: RunningService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> str:
        raise OSError("the safe is locked")

    with caplog.at_level("INFO", "fedcascade.agent"), open_pool(running, tmp_path / "agents.db", fail) as pool:
        play(pool, "ann")
        assert not pool.flush(0.3)
        assert "no enrolment token could be made: the safe is locked" in (pool.trouble or "")
        assert any("user 'ann'" in line for line in caplog.messages)
    with open_pool(running, tmp_path / "empty.db", []) as pool:
        play(pool, "ann")
        assert not pool.flush(0.3)
        assert "stock of enrolment tokens is empty" in (pool.trouble or "")


def test_an_enrolment_key_makes_tokens_within_its_rate_until_it_is_revoked(
    running: RunningService, tmp_path: Path
) -> None:
    key = f"shop.{create_token()}"
    running.operator.set_enrolment_key("shop", key, 45)
    with open_pool(running, tmp_path / "agents.db", key) as pool:
        for user in range(21):
            play(pool, f"user-{user}", 3)
        assert pool.flush(90), pool.trouble
        assert running.operator.fetch_overview().enrolled == 21  # of two batches of twenty tokens
    with pytest.raises(Refused, match="may create 45 tokens per hour, 60 are asked for") as caught:
        OperatorClient(running.transport, key).create_tokens(20)
    assert caught.value.retry_after is not None
    holder = OperatorClient(running.transport, key)
    for call in (holder.fetch_overview, holder.list_agents, lambda: holder.forget(1), lambda: holder.revoke(1),
                 lambda: holder.replace_token("x" * 43), lambda: holder.set_enrolment_key("mine", key)):  # fmt: skip
        with pytest.raises(Refused, match="operator's token"):
            call()
    running.operator.set_enrolment_key("shop", None)
    with pytest.raises(Refused, match="unknown or revoked"):
        holder.create_tokens()
    for wrong in (f"shop.{create_token()}", "other.key", "."):
        with pytest.raises(Refused, match="unknown or revoked"):
            OperatorClient(running.transport, wrong).create_tokens()


def test_refused_tokens_are_named(running: RunningService, tmp_path: Path) -> None:
    [token] = running.operator.create_tokens()
    connect("", store=str(tmp_path / "one.db"), token=token, transport=CuttableTransport(running)).close()
    for given, words in ((token, "token is used"), ("x" * 43, "token is unknown")):
        with pytest.raises(Refused, match=words):
            connect("", store=str(tmp_path / "two.db"), token=given, transport=CuttableTransport(running))


def serve_features(path: Path, features: str, dimension: int = D) -> Any:
    policy = POLICIES["fedc3ucb-h"]
    writer = Writer(lambda: open_store(f"sqlite:///{path}"), policy, dimension)
    return run_service(Service(writer, FREE, FOR_SIMULATIONS, features=features))


def test_other_features_or_dimensions_are_refused_before_a_token_is_spent(tmp_path: Path) -> None:
    with serve_features(tmp_path / "one.db", "v1:aa") as running:
        for named in ("v1", "v1:aa", None):
            [token] = running.operator.create_tokens()
            connect("", store=str(tmp_path / f"{named}.db"), token=token, features=named,
                    transport=CuttableTransport(running)).close()  # fmt: skip
        [token] = running.operator.create_tokens()
        for named in ("v2", "v1:bb", ""):
            with pytest.raises(ValueError, match=rf"the server has features 'v1:aa', the caller '{named}'"):
                connect("", store=str(tmp_path / "other.db"), token=token, features=named,
                        transport=CuttableTransport(running))  # fmt: skip
        connect("", store=str(tmp_path / "other.db"), token=token, transport=CuttableTransport(running)).close()
    for features, dimension, words in (
        ("v2", D, "features 'v2', this agent 'v1:aa'"),
        ("", 5, "dimension 5, this agent 3"),
    ):
        with serve_features(tmp_path / f"{dimension}.db", features, dimension) as running:
            [token] = running.operator.create_tokens()
            with pytest.raises(ValueError, match=words):
                connect("", store=str(tmp_path / "v1.db"), token=token, transport=CuttableTransport(running))
            assert running.operator.fetch_overview().enrolled == 0


def test_a_store_keeps_its_features(tmp_path: Path) -> None:
    store, policy = open_store(f"sqlite:///{tmp_path}/store.db"), POLICIES["population"]
    with store.transaction():
        claim_store(store, describe_terms(policy, D), 0)
        claim_store(store, describe_terms(policy, D, "v1"), 0)  # a store without a label gets one
    for other in ("v2", ""):
        with pytest.raises(ValueError, match=f"uploads of features 'v1', got '{other}'"), store.transaction():
            claim_store(store, describe_terms(policy, D, other), 0)
    store.close()
