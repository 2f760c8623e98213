"""Signatures: what RFC 9421 says, once, fresh, unaltered, by their owner. Tokens: once, hashed. Revocation: at once."""

import base64
import time
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from fedcascade.service.agent import client
from fedcascade.service.agent.transport import HttpReply
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.limits import RateLimiter

from ..helpers import RunningService, build_unit_upload, serve_in_process

PATH = "/v1/exchanges"


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def body_of(sequence: int = 1, axis: int = 0) -> bytes:
    return wire.encode(build_unit_upload(sequence, axis, 3), wire.MSGPACK)


def reason(reply: HttpReply) -> tuple[int, str]:
    return reply.status, client.decode_refusal(reply).reason


def position(running: RunningService) -> int:
    return running.operator.fetch_overview().position


def test_the_signature_base_is_that_of_the_rfc() -> None:
    """RFC 9421, section 2.5, written out for our components."""
    key = SigningKey(bytes(range(32)))
    headers = auth.sign(
        key, agent=7, method="POST", path="/v1/exchanges", body=b"hello", sequence=3, created=1_700_000_000, nonce=5
    )
    base = "\n".join(
        [
            '"@method": POST',
            '"@path": /v1/exchanges',
            '"content-digest": sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:',
            '"fedcascade-sequence": 3',
            '"@signature-params": ("@method" "@path" "content-digest" "fedcascade-sequence")'
            ';created=1700000000;keyid="7";nonce="5";alg="ed25519"',
        ]
    )
    assert headers["content-digest"] == "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:"
    signature = base64.b64decode(headers["signature"].removeprefix("agent=:").removesuffix(":"))
    key.verify_key.verify(base.encode(), signature)


def test_a_signed_upload_is_answered(running: RunningService) -> None:
    answer = running.enrol().exchange(build_unit_upload(1, 0, 3))
    assert (answer.count, answer.clicks, answer.rounds, answer.agents, answer.system_rounds) == (1, 1, 1, 1, 1)
    assert answer.to_download(1, 3).statistics.gram.tolist() == [[1.0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_replayed_signature_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        agent = running.enrol()
        headers = agent.sign_headers("POST", PATH, body_of(), 1)
        assert running.transport.send("POST", PATH, body_of(), headers).status == 200
        assert reason(running.transport.send("POST", PATH, body_of(), headers)) == (401, "replayed")
    with serve_in_process(tmp_path / "store.db") as again:
        assert reason(again.transport.send("POST", PATH, body_of(), headers)) == (401, "replayed")
        assert position(again) == 1


def test_a_stale_signature_is_refused_and_the_client_corrects_its_clock(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = running.enrol()
    agent.clock_offset = -10_000.0
    headers = agent.sign_headers("POST", PATH, body_of(), 1)
    assert reason(running.transport.send("POST", PATH, body_of(), headers)) == (401, "stale")
    agent.clock_offset = 10_000.0
    headers = agent.sign_headers("POST", PATH, body_of(), 1)
    assert reason(running.transport.send("POST", PATH, body_of(), headers)) == (401, "stale")
    assert position(running) == 0


@pytest.mark.parametrize("what", ["body", "path", "method", "sequence", "created", "keyid", "nonce", "signature"])
def test_an_altered_request_is_refused(running: RunningService, what: str) -> None:
    agent, other = running.enrol(), running.enrol()
    method, path, body = "POST", PATH, body_of()
    headers = agent.sign_headers(method, path, body, 1)
    given = headers["signature-input"]
    match what:
        case "body":
            body = body_of(axis=1)
        case "path":
            method, path = "DELETE", f"/v1/agents/{agent.agent}"
            headers = agent.sign_headers(method, "/v1/agents/999", b"", 0)
            body = b""
        case "method":
            path = f"/v1/agents/{agent.agent}"
            headers = agent.sign_headers("GET", path, b"", 0)
            method, body = "DELETE", b""
        case "sequence":
            headers["fedcascade-sequence"] = "2"
        case "created":
            created = int(given.split("created=")[1].split(";")[0])
            headers["signature-input"] = given.replace(str(created), str(created + 1))
        case "keyid":
            headers["signature-input"] = given.replace(f'keyid="{agent.agent}"', f'keyid="{other.agent}"')
        case "nonce":
            headers["signature-input"] = given.replace('nonce="', 'nonce="1')
        case "signature":
            headers["signature"] = "agent=:" + "A" * 86 + "==:"
    assert reason(running.transport.send(method, path, body, headers)) == (401, "altered")
    assert position(running) == 0


@pytest.mark.parametrize("missing", ["content-digest", "fedcascade-sequence", "signature-input", "signature"])
def test_an_unsigned_request_is_refused(running: RunningService, missing: str) -> None:
    headers = running.enrol().sign_headers("POST", PATH, body_of(), 1)
    del headers[missing]
    assert reason(running.transport.send("POST", PATH, body_of(), headers)) == (401, "unsigned")


def test_signing_another_sequence_than_the_uploads_is_refused(running: RunningService) -> None:
    headers = running.enrol().sign_headers("POST", PATH, body_of(sequence=1), 2)
    assert reason(running.transport.send("POST", PATH, body_of(sequence=1), headers)) == (401, "altered")


def test_a_borrowed_key_is_refused(running: RunningService) -> None:
    agent = running.enrol()
    thief = client.AgentClient(running.transport, SigningKey.generate(), agent.agent)
    with pytest.raises(Refused, match="not that of this agent"):
        thief.exchange(build_unit_upload(1, 0, 3))
    nobody = client.AgentClient(running.transport, SigningKey.generate(), 4711)
    with pytest.raises(Refused, match="no agent 4711"):
        nobody.exchange(build_unit_upload(1, 0, 3))


def test_an_agent_cannot_speak_for_another(running: RunningService) -> None:
    agent, other = running.enrol(), running.enrol()
    reply = agent.send("DELETE", f"/v1/agents/{other.agent}", b"", 0)
    assert reason(reply) == (403, "not-yours")


def test_an_enrolment_token_is_good_once(running: RunningService) -> None:
    [token] = running.operator.create_tokens()
    first, second = SigningKey.generate(), SigningKey.generate()
    number = client.enrol_agent(running.transport, token, first).agent
    assert client.enrol_agent(running.transport, token, first).agent == number  # the reply was lost: the same again
    with pytest.raises(Refused, match="unknown, used or too old"):
        client.enrol_agent(running.transport, token, second)
    with pytest.raises(Refused, match="unknown, used or too old"):
        client.enrol_agent(running.transport, "x" * 43, second)


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), b"\x02" + bytes(31), b"\xff" * 32])
def test_a_key_that_is_no_point_of_the_curve_or_of_small_order_cannot_enrol(
    running: RunningService, key: bytes
) -> None:
    [token] = running.operator.create_tokens()
    message = wire.Enrolment(protocol=wire.PROTOCOLS[-1], token=token, public_key=key)
    body, headers = wire.encode(message, wire.MSGPACK), {"content-type": wire.MSGPACK}
    assert reason(running.transport.send("POST", "/v1/agents", body, headers)) == (422, "impossible")
    assert client.enrol_agent(running.transport, token, SigningKey.generate()).agent == 1  # the token is still good


def test_an_old_enrolment_token_is_refused(running: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    [token] = running.operator.create_tokens(valid_seconds=5)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 6)
    with pytest.raises(Refused, match="too old"):
        client.enrol_agent(running.transport, token, SigningKey.generate())


def test_revocation_works_at_once_and_a_revoked_key_cannot_come_back(running: RunningService) -> None:
    agent = running.enrol()
    agent.exchange(build_unit_upload(1, 0, 3))
    running.operator.revoke(agent.agent)
    with pytest.raises(Refused, match="revoked"):
        agent.exchange(build_unit_upload(2, 0, 3))
    [token] = running.operator.create_tokens()
    with pytest.raises(Refused, match="token"):
        client.enrol_agent(running.transport, token, agent.key)
    with pytest.raises(Refused, match="revoked"):
        agent.leave()
    assert position(running) == 1
    with pytest.raises(Refused, match="no agent 99"):
        running.operator.revoke(99)


def test_only_the_operator_may_operate(running: RunningService) -> None:
    stranger = client.OperatorClient(running.transport, "guessed-" * 5)
    for attempt in (
        stranger.fetch_overview,
        stranger.create_tokens,
        lambda: stranger.revoke(1),
        lambda: stranger.forget(1),
    ):
        with pytest.raises(Refused, match="operator"):
            attempt()


def test_no_secret_is_kept_that_lets_anyone_pose_as_an_agent_or_the_operator(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        [token] = running.operator.create_tokens()
        agent = running.enrol()
        agent.exchange(build_unit_upload(1, 0, 3))
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert bytes(agent.key.verify_key) in kept
    from ..helpers import TOKEN

    for secret in (bytes(agent.key), token.encode(), TOKEN.encode()):
        assert secret not in kept


def test_a_rate_limiter_lets_a_burst_through_and_then_a_rate() -> None:
    limiter = RateLimiter(rate=2.0, burst=3.0)
    for _ in range(3):
        limiter.take("a", 0.0)
    with pytest.raises(Refused) as refused:
        limiter.take("a", 0.1)
    assert refused.value.status == 429
    assert refused.value.retry_after == pytest.approx(0.4)
    limiter.take("b", 0.1)
    limiter.take("a", 0.5)
    with pytest.raises(Refused):
        limiter.take("a", 0.6)


def test_too_many_requests_get_429(tmp_path: Path) -> None:
    from fedcascade.service.server.service import Limits

    with serve_in_process(tmp_path / "store.db", limits=Limits(rate=0.001, burst=4)) as running:
        agent = running.enrol()
        statuses = [agent.send("GET", f"/v1/agents/{agent.agent}", b"", 0).status for _ in range(6)]
        assert statuses == [200, 200, 200, 200, 429, 429]


def test_nonces_may_come_out_of_order_but_not_twice() -> None:
    nonces = auth.Nonces()
    for nonce in (100, 90, 110, 95):
        nonces.use(1, nonce)
    nonces.use(2, 100)
    for nonce in (100, 90, 110, 95):
        with pytest.raises(Refused, match="before"):
            nonces.use(1, nonce)
    for nonce in range(200, 200 + auth.NONCES_KEPT):
        nonces.use(1, nonce)
    with pytest.raises(Refused, match="before"):
        nonces.use(1, 120)
