"""Signatures: what RFC 9421 says, once, fresh, unaltered, by their owner. Tokens: once, hashed. Revocation: at once."""

import base64
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from httpx2 import Response
from nacl.signing import SigningKey

from fedcascade.service.agent import client
from fedcascade.service.agent.ledger import unpack_answer
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.clock import Clock
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.connections import RateLimiter

from ..helpers import RunningService, build_unit_upload, serve_in_process

PATH = "/v1/exchanges"


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with serve_in_process(tmp_path / "store.db") as service:
        yield service


def body_of(sequence: int = 1, axis: int = 0) -> bytes:
    return wire.ENCODERS[wire.MSGPACK](build_unit_upload(sequence, axis, 3))


def reason(reply: Response) -> tuple[int, str]:
    return reply.status_code, msgspec.json.decode(reply.content)["reason"]


def send_enrolment(
    running: RunningService, public_key: bytes, proof: bytes, token: str, created: int | None = None
) -> Response:
    created = int(time.time()) if created is None else created
    message = wire.Enrolment(
        protocol=wire.PROTOCOLS[-1], token=token, public_key=public_key, created=created, proof=proof
    )
    body, headers = wire.ENCODERS[wire.MSGPACK](message), {"content-type": wire.MSGPACK}
    return running.transport.send("POST", "/v1/agents", body, headers)


def agent_at(running: RunningService, agent: client.AgentClient) -> client.AgentClient:
    """The same agent, speaking to another server."""
    return client.AgentClient(running.transport, agent.key, agent.agent)


def position(running: RunningService) -> int:
    return running.operator.fetch_overview().position


def test_the_signature_base_is_that_of_the_rfc() -> None:
    """RFC 9421, section 2.5, written out for our components."""
    key = SigningKey(bytes(range(32)))
    digest = auth.compute_digest(b"hello")
    headers = auth.sign(
        key, agent=7, method="POST", path="/v1/exchanges", digest=digest, sequence=3, created=1_700_000_000, nonce=5
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
    assert unpack_answer(answer, 3).gram.tolist() == [[1.0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_replayed_signature_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        agent = running.enrol()
        headers = agent.sign_headers("POST", PATH, auth.compute_digest(body_of()), 1)
        assert running.transport.send("POST", PATH, body_of(), headers).status_code == 200
        assert reason(running.transport.send("POST", PATH, body_of(), headers)) == (401, "replayed")
    with serve_in_process(tmp_path / "store.db") as again:
        assert reason(again.transport.send("POST", PATH, body_of(), headers)) == (401, "replayed")
        assert position(again) == 1


def test_a_stale_signature_is_refused_and_the_client_corrects_its_clock(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = running.enrol()
    agent.clock_offset = -10_000.0
    headers = agent.sign_headers("POST", PATH, auth.compute_digest(body_of()), 1)
    assert reason(running.transport.send("POST", PATH, body_of(), headers)) == (401, "stale")
    agent.clock_offset = 10_000.0
    headers = agent.sign_headers("POST", PATH, auth.compute_digest(body_of()), 1)
    assert reason(running.transport.send("POST", PATH, body_of(), headers)) == (401, "stale")
    assert position(running) == 0


@pytest.mark.parametrize("what", ["body", "path", "method", "sequence", "created", "keyid", "nonce", "signature"])
def test_an_altered_request_is_refused(running: RunningService, what: str) -> None:
    agent, other = running.enrol(), running.enrol()
    method, path, body = "POST", PATH, body_of()
    headers = agent.sign_headers(method, path, auth.compute_digest(body), 1)
    given = headers["signature-input"]
    match what:
        case "body":
            body = body_of(axis=1)
        case "path":
            method, path = "DELETE", f"/v1/agents/{agent.agent}"
            headers = agent.sign_headers(method, "/v1/agents/999", auth.compute_digest(b""), 0)
            body = b""
        case "method":
            path = f"/v1/agents/{agent.agent}"
            headers = agent.sign_headers("GET", path, auth.compute_digest(b""), 0)
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
    refused = "altered" if what == "body" else "unrecognised"
    assert reason(running.transport.send(method, path, body, headers)) == (401, refused)
    assert position(running) == 0


@pytest.mark.parametrize("missing", ["content-digest", "fedcascade-sequence", "signature-input", "signature"])
def test_an_unsigned_request_is_refused(running: RunningService, missing: str) -> None:
    headers = running.enrol().sign_headers("POST", PATH, auth.compute_digest(body_of()), 1)
    del headers[missing]
    assert reason(running.transport.send("POST", PATH, body_of(), headers)) == (401, "unsigned")


def test_signing_another_sequence_than_the_uploads_is_refused(running: RunningService) -> None:
    headers = running.enrol().sign_headers("POST", PATH, auth.compute_digest(body_of(sequence=1)), 2)
    assert reason(running.transport.send("POST", PATH, body_of(sequence=1), headers)) == (401, "altered")


def test_a_borrowed_key_is_refused(running: RunningService) -> None:
    agent = running.enrol()
    thief = client.AgentClient(running.transport, SigningKey.generate(), agent.agent)
    nobody = client.AgentClient(running.transport, SigningKey.generate(), 4711)
    refusals = [stranger.send("POST", PATH, body_of(), 1) for stranger in (thief, nobody)]
    assert reason(refusals[0]) == (401, "unrecognised")
    assert refusals[0].content == refusals[1].content  # nobody learns which agents exist


def test_an_agent_cannot_speak_for_another(running: RunningService) -> None:
    agent, other = running.enrol(), running.enrol()
    reply = agent.send("DELETE", f"/v1/agents/{other.agent}", b"", 0)
    assert reason(reply) == (403, "not-yours")


def test_an_enrolment_token_is_good_once(running: RunningService) -> None:
    [token] = running.operator.create_tokens()
    first, second = SigningKey.generate(), SigningKey.generate()
    number = client.enrol_agent(running.transport, token, first).agent
    assert client.enrol_agent(running.transport, token, first).agent == number  # the reply was lost: the same again
    with pytest.raises(Refused, match=r"enrolment token is (unknown|used|expired)"):
        client.enrol_agent(running.transport, "invented" * 4, first)  # a key that is known is no token
    with pytest.raises(Refused, match=r"enrolment token is (unknown|used|expired)"):
        client.enrol_agent(running.transport, token, second)
    with pytest.raises(Refused, match=r"enrolment token is (unknown|used|expired)"):
        client.enrol_agent(running.transport, "x" * 43, second)


SMALL_ORDER = [
    *(
        "0100000000000000000000000000000000000000000000000000000000000000",
        "00" * 31 + "80",
        "00" * 32,
        "01" + "00" * 30 + "80",
    ),
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
]


@pytest.mark.parametrize("key", [*map(bytes.fromhex, SMALL_ORDER), b"\x02" + bytes(31), b"\xff" * 32])
def test_a_key_that_is_no_point_of_the_curve_or_of_small_order_cannot_enrol(
    running: RunningService, key: bytes
) -> None:
    [token] = running.operator.create_tokens()
    assert reason(send_enrolment(running, key, bytes(64), token)) == (422, "impossible")
    assert client.enrol_agent(running.transport, token, SigningKey.generate()).agent > 0  # the token is still good


def test_an_old_enrolment_token_is_refused(tmp_path: Path) -> None:
    times = [1_000.0]
    with serve_in_process(tmp_path / "store.db", clock=Clock(now=lambda: times[-1])) as running:
        [token] = running.operator.create_tokens(valid_seconds=5)
        times.append(1_006.0)
        with pytest.raises(Refused, match="expired"):
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
    credential = running.credentials[agent.agent]
    with pytest.raises(Refused, match="token"):
        client.enrol_agent(running.transport, None, agent.key, credential=credential)
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
    from fedcascade.service.server.settings import Limits

    with serve_in_process(tmp_path / "store.db", limits=Limits(rate=0.001, burst=4)) as running:
        agent = running.enrol()
        statuses = [agent.send("GET", f"/v1/agents/{agent.agent}", b"", 0).status_code for _ in range(6)]
        assert statuses == [200, 200, 200, 200, 429, 429]


def test_a_clock_that_was_a_day_ahead_may_be_corrected(running: RunningService) -> None:
    """The signatures of that day were refused; whatever their nonces were, they lock nobody out."""
    ahead = Clock(now=lambda: time.time() + 86_400)
    agent = running.enrol()
    wrong = client.AgentClient(running.transport, agent.key, agent.agent, clock=ahead)
    for sequence in range(1, 66):
        wrong.exchange(build_unit_upload(sequence, 0, 3))
    corrected = client.AgentClient(running.transport, agent.key, agent.agent)
    corrected.exchange(build_unit_upload(900, 0, 3))
    wrong.clock = corrected.clock  # corrected while the process runs
    wrong.exchange(build_unit_upload(901, 0, 3))


def test_a_key_cannot_be_enrolled_by_others_than_its_owner(running: RunningService) -> None:
    """Who knows a public key learns nothing of its agent, with whatever token."""
    agent, thief = running.enrol(), SigningKey.generate()
    public_key = bytes(agent.key.verify_key)
    for token in (*running.operator.create_tokens(), "invented" * 4):
        proof = auth.sign_enrolment(thief, int(time.time()), wire.encode_enrolment_claim(token, None))
        assert reason(send_enrolment(running, public_key, proof, token)) == (401, "unsigned")


def test_an_old_enrolment_cannot_be_replayed(running: RunningService) -> None:
    [token] = running.operator.create_tokens()
    key, created = SigningKey.generate(), int(time.time()) - 400
    proof = auth.sign_enrolment(key, created, wire.encode_enrolment_claim(token, None))
    assert reason(send_enrolment(running, bytes(key.verify_key), proof, token, created)) == (401, "stale")


def test_a_newcomer_with_a_wrong_clock_enrols(running: RunningService) -> None:
    [token] = running.operator.create_tokens()
    late = Clock(now=lambda: time.time() - 86_400)
    assert client.enrol_agent(running.transport, token, SigningKey.generate(), clock=late).agent > 0


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_replay_of_a_retry_or_of_a_look_is_refused_at_another_process(tmp_path: Path, method: str) -> None:
    """Two servers on one store: neither has the nonces of the other, and the log has only that of the first try."""
    with serve_in_process(tmp_path / "store.db") as one, serve_in_process(tmp_path / "store.db") as other:
        agent = one.enrol()
        agent.exchange(build_unit_upload(1, 0, 3))
        path, body = (PATH, body_of()) if method == "POST" else (f"/v1/agents/{agent.agent}", b"")
        headers = agent.sign_headers(method, path, auth.compute_digest(body), 1 if body else 0)
        assert one.transport.send(method, path, body, headers).status_code == 200
        assert reason(other.transport.send(method, path, body, headers)) == (401, "replayed")
    with serve_in_process(tmp_path / "store.db") as again:
        assert reason(again.transport.send(method, path, body, headers)) == (401, "replayed")


def test_a_lost_agent_enrols_again_with_its_credential_and_keeps_its_number(tmp_path: Path) -> None:
    """A backup from before the enrolment is restored; whoever has the credential but not the key stays out."""
    with serve_in_process(tmp_path / "store.db") as running:
        epoch = client.fetch_terms(running.transport).epoch
    shutil.copy(tmp_path / "store.db", tmp_path / "backup.db")
    with serve_in_process(tmp_path / "store.db") as running:
        agent, other = running.enrol(), running.enrol()
        credential = running.credentials[agent.agent]
    with serve_in_process(tmp_path / "backup.db") as running:
        assert reason(agent_at(running, agent).send("POST", PATH, body_of(), 1)) == (401, "unrecognised")
        for key in (SigningKey.generate(), other.key):
            with pytest.raises(Refused, match=r"enrolment token is (unknown|used|expired)"):
                client.enrol_agent(running.transport, None, key, credential=credential)
        welcome = client.enrol_agent(running.transport, None, agent.key, credential=credential)
        assert welcome.agent == agent.agent
        assert (epoch[:2], welcome.terms.epoch[:2]) == ("1-", "2-")  # it proves that the store was restored
        assert agent_at(running, agent).exchange(build_unit_upload(1, 0, 3)).count == 1


def test_a_forgotten_agent_cannot_come_back_with_its_credential(running: RunningService) -> None:
    agent = running.enrol()
    agent.exchange(build_unit_upload(1, 0, 3))
    credential = running.credentials[agent.agent]
    running.operator.forget(agent.agent)
    with pytest.raises(Refused, match=r"enrolment token is (unknown|used|expired)"):
        client.enrol_agent(running.transport, None, agent.key, credential=credential)
    [token] = running.operator.create_tokens()
    assert client.enrol_agent(running.transport, token, agent.key).agent != agent.agent


def test_numbers_are_drawn_and_not_counted(tmp_path: Path) -> None:
    """Two stores that were restored from one backup give out different numbers."""
    with serve_in_process(tmp_path / "one.db") as one, serve_in_process(tmp_path / "two.db") as two:
        numbers = [running.enrol().agent for running in (one, two) for _ in range(20)]
    assert len(set(numbers)) == 40
    assert all(10**11 <= number < 10**12 for number in numbers)


def test_a_token_file_that_others_can_read_or_that_was_published_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "operator.token"
    path.write_text("x" * 43, encoding="ascii")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="others can read it: run chmod o-rwx"):
        auth.read_private_token(path)
    path.chmod(0o600)
    assert auth.read_private_token(path) == "x" * 43
    assert len(auth.PUBLISHED_TOKEN) == 64
