"""A process beside the server verifies requests; the verdicts are those of one function, also if it dies."""

import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from nacl.signing import SigningKey

from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol import auth, wire
from fedcascade.service.server import pipes, verifier
from fedcascade.service.server.exchange import Exchange
from fedcascade.service.server.verifier import SignatureVerifier
from fedcascade.service.store.contract import Identity

from ..helpers import build_unit_upload

KEYS = [SigningKey(bytes([number] * 32)) for number in range(1, 4)]
PATH = "/v1/exchanges"


def sign_request(number: int, *, by: int | None = None, sequence: int | None = None, **changed: Any) -> Exchange:
    """An upload of one agent, signed by it or by another, perhaps for another sequence, perhaps changed since."""
    body = changed.pop("signed_body", None) or wire.ENCODERS[wire.MSGPACK](build_unit_upload(number + 1, number % 3, 3))
    key, signed = KEYS[(number if by is None else by) % 3], number + 1 if sequence is None else sequence
    digest = auth.compute_digest(body)
    headers = auth.sign(key, agent=7, method="POST", path=PATH, digest=digest, sequence=signed, created=5, nonce=6)
    fields: dict[str, Any] = {"path": PATH, "body": body} | changed
    fields.setdefault("media_type", wire.MSGPACK)
    identity, signature = Identity(7, bytes(KEYS[number % 3].verify_key), 0.0), auth.parse_signature(headers)
    return Exchange(headers={}, identity=identity, signature=signature, **fields)


OTHER_DIMENSION = wire.ENCODERS[wire.MSGPACK](build_unit_upload(1, 0, 2))
IMPOSSIBLE = wire.ENCODERS[wire.MSGPACK](msgspec.structs.replace(build_unit_upload(8, 0, 3), count=0))
BATCH = [
    sign_request(0),
    sign_request(1, by=2),
    sign_request(2),
    sign_request(3, path="/elsewhere"),
    sign_request(4, body=OTHER_DIMENSION),
    sign_request(5, sequence=7),
    sign_request(6, media_type="text/plain"),
    sign_request(7, signed_body=IMPOSSIBLE),
    sign_request(0, signed_body=OTHER_DIMENSION),
    sign_request(3, signed_body=wire.ENCODERS[wire.JSON](build_unit_upload(4, 0, 3)), media_type=wire.JSON),
]
FORGED = "the signature matches no enrolled agent: enrol again"


def verify(checker: SignatureVerifier, batch: list[Exchange]) -> list[object]:
    """Verify a batch, and return what is wrong with each; the uploads of the others are decoded."""
    checker.submit(batch)
    return collect(checker, batch)


def pack(batch: list[Exchange]) -> bytes:
    """Pack a batch as it goes to the process."""
    checker = SignatureVerifier(3)
    checker.submit(batch)
    return msgspec.msgpack.encode(checker.requests)


def collect(checker: SignatureVerifier, batch: list[Exchange]) -> list[object]:
    for exchange in batch:
        exchange.upload = None
    checker.collect()
    assert all((exchange.refusal is None) == (exchange.upload is not None) for exchange in batch)
    return [each.refusal and (each.is_signed, each.refusal[0], each.refusal[2]) for each in batch]


VERDICTS: list[object] = [
    None,
    (False, 401, FORGED),
    None,
    (False, 401, FORGED),
    (False, 401, "content-digest is not that of the body"),
    (True, 401, "the signed sequence number is not that of the upload"),
    (True, 415, "content type must be application/json or application/msgpack, got 'text/plain'"),
    (True, 422, "counts must satisfy 0 <= clicks <= count and rounds >= 0, got 1, 0, 1"),
    (True, 422, "numbers must hold 9 float64 in dimension 3, got 5"),
    None,
]


@pytest.mark.parametrize("has_process", [False, True])
def test_what_holds_holds_and_nothing_else(has_process: bool) -> None:
    checker = SignatureVerifier(3, has_process=has_process)
    try:
        for batch, verdicts in ((BATCH, VERDICTS), ([], []), (BATCH[::-1] * 100, VERDICTS[::-1] * 100)):
            assert verify(checker, batch) == verdicts
    finally:
        checker.close()


def test_a_request_that_breaks_the_check_does_not_break_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(statistics: Statistics, dimension: int) -> None:
        raise MemoryError(f"{statistics.count} in {dimension}")

    monkeypatch.setattr(verifier, "check_upload", broken)
    batch = [sign_request(0), sign_request(7, signed_body=IMPOSSIBLE), sign_request(2)]
    assert verify(SignatureVerifier(3), batch) == [None, (True, 500, "this request could not be read"), None]


@pytest.mark.parametrize("after", ["before it is asked", "before it answers"])
def test_if_the_process_dies_nobody_notices(after: str) -> None:
    checker = SignatureVerifier(3, has_process=True)
    try:
        assert verify(checker, BATCH) == VERDICTS
        for _ in range(2):
            assert checker._process is not None
            process = checker._process.process
            if after == "before it answers":
                os.kill(process.pid, signal.SIGSTOP)
                checker.submit(BATCH)
            process.kill()
            process.wait()
            if after == "before it is asked":
                checker.submit(BATCH)
            assert collect(checker, BATCH) == VERDICTS
            assert verify(checker, BATCH) == VERDICTS
    finally:
        checker.close()


def test_a_frozen_process_is_killed_and_its_batch_is_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "ANSWER_SECONDS", 0.5)
    checker = SignatureVerifier(3, has_process=True)
    try:
        checker.prepare()
        assert checker._process is not None
        frozen = checker._process.process
        os.kill(frozen.pid, signal.SIGSTOP)
        checker.submit(BATCH)
        checker.collect()
        assert {exchange.refusal and exchange.refusal[0] for exchange in BATCH} == {503}
        assert frozen.wait(10) == -signal.SIGKILL
        monkeypatch.setattr(verifier, "ANSWER_SECONDS", 60.0)
        assert verify(checker, BATCH) == VERDICTS
    finally:
        checker.close()


def test_a_frozen_process_does_not_hold_up_a_batch_that_fills_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "ANSWER_SECONDS", 0.5)
    checker = SignatureVerifier(3, has_process=True)
    try:
        checker.prepare()
        assert checker._process is not None
        os.kill(checker._process.process.pid, signal.SIGSTOP)
        batch = BATCH * (2 * pipes.BUFFER_BYTES // len(pack(BATCH)))
        assert verify(checker, batch)[: len(BATCH)] == VERDICTS
    finally:
        checker.close()


def test_the_process_ends_with_its_server() -> None:
    checker = SignatureVerifier(3, has_process=True)
    assert checker._process is not None
    process = checker._process.process
    checker.prepare()
    checker.close()
    assert process.wait(10) == 0


def test_the_process_ends_in_peace_when_its_server_is_killed() -> None:
    """Its reader is gone before it answers: it says nothing on the server's terminal."""
    command = [sys.executable, "-m", "fedcascade.service.server.verifier", "[3, null]"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert pipes.read_frame(process.stdout) == pipes.READY
        process.stdout.close()
        body = pack(BATCH * 100)
        process.stdin.write(len(body).to_bytes(pipes.LENGTH_BYTES) + body)
        process.stdin.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(30) == 0
