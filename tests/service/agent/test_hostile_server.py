"""Whatever a server answers once, its agents go on with the last good answer, and recover when the server does."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from httpx2 import Response
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedcascade.federation.policies import POLICIES
from fedcascade.service.agent.connection import connect
from fedcascade.service.agent.pool import RemoteAgent
from fedcascade.service.protocol import wire

from ..helpers import CuttableTransport, RunningService, serve_in_process

D = 3
KINDS = {"enrolment": "/v1/agents?", "answer": wire.EXCHANGES, "terms": "/v1/terms", "standing": "/v1/agents/"}
NUMBERS: tuple[Any, ...] = (0, -1, 1, 2**31, 2**53 - 1, 2**53, 2**64 - 1, 1e300, -0.5, float("nan"), float("inf"))
VALUES = (*NUMBERS, "", "x", None, True, [], {}, b"", b"\xff" * 16, bytes(72), "population", "restart")
FIELDS = {
    "enrolment": ["agent", "terms", "credential", "prior", "protocol", "terms.dimension", "terms.policy",
                  "terms.constants", "terms.longest_list", "terms.min_observations", "terms.constants.lambda_",
                  "terms.constants.alpha_c",
                  "terms.terms_id", "terms.epoch", "terms.constants.every", "terms.constants.beta", "credential.agent",
                  "credential.enrolled"],
    "answer": ["sequence", "count", "clicks", "rounds", "system_rounds", "agents", "group_agents", "held_count",
               "held_rounds", "terms_id", "receipt", "numbers", "receipt.epoch", "receipt.position", "receipt.proof"],
    "terms": ["policy", "constants", "dimension", "protocols", "longest_list", "min_observations", "rounds_burst",
              "rounds_per_hour", "terms_id", "epoch", "constants.lambda_", "constants.alpha_c", "constants.beta",
              "constants.confidence", "constants.drift", "constants.every"],
    "standing": ["agent", "uploads", "count", "clicks", "rounds", "numbers", "last_sequence", "last_change", "epoch",
                 "revoked", "credential", "credential.agent"],
}  # fmt: skip


class HostileTransport(CuttableTransport):
    """Changes one field of one kind of reply, while it is hostile."""

    def __init__(self, running: RunningService, kind: str, field: str, value: Any) -> None:
        super().__init__(running)
        self.kind, self.field, self.value, self.is_hostile = kind, field, value, True

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        reply = super().send(method, path, body, headers)
        if not self.is_hostile or reply.status_code >= 400:
            return reply
        if self.kind != "enrolment" and path == wire.EXCHANGES:  # makes the agent ask for terms and standing
            reply = self._change(reply, {"terms": "terms_id", "standing": "held_count"}.get(self.kind, ""), "x")
        return self._change(reply, self.field, self.value) if path.startswith(KINDS[self.kind]) else reply

    def _change(self, reply: Response, field: str, value: Any) -> Response:
        media = reply.headers["content-type"]
        module = msgspec.json if media == wire.JSON else msgspec.msgpack
        message = target = module.decode(reply.content)
        *path, last = field.split(".")
        for name in path:
            target = target[name] if isinstance(target.get(name), dict) else {}
        if last in target:
            target[last] = 10**6 if field == "held_count" and value == "x" else value
        return Response(reply.status_code, headers=reply.headers, content=module.encode(message))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with serve_in_process(tmp_path_factory.mktemp("server") / "store.db", policy=POLICIES["population"]) as service:
        yield service


def play(agent: RemoteAgent, rounds: int) -> None:
    random = np.random.default_rng(1)
    for _ in range(rounds):
        items = random.normal(size=(6, D)) / 8
        agent.feedback(agent.recommend(items, 2), 0)


CASES = st.sampled_from([(kind, field) for kind, fields in FIELDS.items() for field in fields])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(case=("answer", "agents"), value=0)
@example(case=("terms", "longest_list"), value=0)
@example(case=("terms", "min_observations"), value=2**53 - 1)
@example(case=("standing", "last_sequence"), value=2**53 - 1)
@given(case=CASES, value=st.sampled_from(VALUES).filter(lambda value: value is True or value != 1))
def test_no_answer_of_a_server_stops_an_agent_for_good(
    case: tuple[str, str], value: Any, running: RunningService, tmp_path: Path
) -> None:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
    options: dict[str, Any] = {"min_observations": 0, "pauses": (0.001, 0.01)}
    transport, [token] = HostileTransport(running, *case, value), running.operator.create_tokens()
    try:
        agent = connect("", store=str(path), token=token, transport=transport, **options)
    except ValueError as error:  # it could not enrol; the next attempt does
        assert "\n" not in str(error)  # noqa: PT017
    else:
        with agent:
            play(agent, 12)
            agent.flush(0.05)
            assert np.isfinite(agent.estimate).all()
            assert agent.recommend(np.eye(D), 1).items.size == 1
    transport.is_hostile = False
    with connect("", store=str(path), token=token, transport=transport, **options) as agent:
        play(agent, 40)
        assert agent.flush(20), agent.trouble
        assert np.isfinite(agent.estimate).all()
        assert agent.unsent == 0
        assert running.writer is not None
        assert running.writer.submit(lambda _, state: state.get_statistics(agent.id).rounds).result() > 0
