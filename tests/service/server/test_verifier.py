"""A process beside the server looks at requests; the verdicts are those of one function, also if it dies."""

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
from fedcascade.service.server import verifier
from fedcascade.service.server.verifier import Beside, Content, Notary, Papers, Refusal, Verdict, read, read_together

from ..helpers import build_unit_upload

KEYS = [SigningKey(bytes([number] * 32)) for number in range(1, 4)]
PATH = "/v1/exchanges"


def papers(number: int, *, by: int | None = None, claimed: int | None = None, **other: Any) -> Papers:
    """An upload of one agent, signed by it or by another, and perhaps changed since."""
    body = wire.encoded(build_unit_upload(number + 1, number % 3, 3), wire.MSGPACK)
    signer, sequence = KEYS[(number if by is None else by) % 3], number + 1 if claimed is None else claimed
    signed: dict[str, Any] = {"agent": 7, "method": "POST", "path": PATH, "sequence": sequence}
    headers = auth.sign(signer, body=body, created=5, nonce=6, **signed)
    key = bytes(KEYS[number % 3].verify_key)
    shown = {"path": PATH, "body": body, "upload": wire.MSGPACK} | other
    return Papers(key, "POST", shown["path"], auth.claim(headers), shown["body"], shown["upload"], 3)


IMPOSSIBLE = wire.encoded(build_unit_upload(1, 0, 2), wire.MSGPACK)
BATCH = [
    papers(0),
    papers(1, by=2),
    papers(2, upload=None),
    papers(3, path="/elsewhere"),
    papers(4, body=IMPOSSIBLE),
    papers(5, claimed=7),
    papers(6, upload="text/plain"),
]
FORGED = "the signature is not that of this agent over this request"


def summary(verdicts: list[Verdict]) -> list[object]:
    """What was said, in short."""
    said = {Content: lambda one: one.sequence, Refusal: lambda one: (one.signed, one.status, one.detail)}
    return [None if one is None else said[type(one)](one) for one in verdicts]


SAID: list[object] = [
    1,
    (False, 401, FORGED),
    None,
    (False, 401, FORGED),
    (False, 401, "content-digest is not that of the body"),
    (True, 401, "the signed sequence number is not that of the upload"),
    (True, 415, "content type must be application/json or application/msgpack, got 'text/plain'"),
]


@pytest.mark.parametrize("kind", [Notary, Beside])
def test_what_holds_holds_and_nothing_else(kind: type[Notary]) -> None:
    asked = kind()
    try:
        for batch, said in ((BATCH, SAID), ([], []), (BATCH[::-1] * 100, SAID[::-1] * 100)):
            asked.ask(batch)
            assert summary(asked.verdicts()) == said
    finally:
        asked.close()


def test_an_upload_is_read_as_the_log_keeps_it() -> None:
    asked = Notary()
    asked.ask([papers(1)])
    [read] = asked.verdicts()
    assert isinstance(read, Content)
    assert wire.unpacked(read.numbers, (1, 1, 1), 3).gram.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert (read.protocol, read.cause, read.count, read.clicks, read.rounds) == (2, "forced", 1, 1, 1)


def test_plain_uploads_are_read_together_as_each_alone() -> None:
    good = [papers(0), papers(4), papers(8)]
    assert read_together(good) == [read(one) for one in good]
    as_json = wire.encoded(build_unit_upload(4, 0, 3), wire.JSON)
    lie = papers(2, body=wire.encoded(build_unit_upload(3, 0, 2), wire.MSGPACK))
    others = [papers(3, body=as_json, upload=wire.JSON), lie, papers(5, claimed=7)]
    assert read_together([others[0], good[0], *others[1:]]) == [None, read(good[0]), None, None]
    assert read_together(others) == [None, None, None]


def test_a_request_that_breaks_the_reader_does_not_break_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(statistics: Statistics, dimension: int) -> None:
        raise MemoryError(f"{statistics.count} in {dimension}")

    monkeypatch.setattr(verifier, "check_upload", broken)
    body = wire.encoded(build_unit_upload(4, 0, 3), wire.JSON)
    headers = auth.sign(KEYS[0], agent=7, method="POST", path=PATH, body=body, sequence=4, created=5, nonce=6)
    whole = Papers(papers(0).key, "POST", PATH, auth.claim(headers), body, wire.JSON, 3)
    assert summary(verifier.verdicts([papers(0), whole, papers(2)])) == [
        1,
        (True, 500, "this request could not be read"),
        3,
    ]


@pytest.mark.parametrize("after", ["before it is asked", "before it answers"])
def test_if_the_process_dies_nobody_notices(after: str) -> None:
    asked = Beside()
    try:
        asked.ask(BATCH)
        assert summary(asked.verdicts()) == SAID
        for _ in range(2):
            assert asked._process is not None
            process = asked._process
            if after == "before it answers":
                os.kill(process.pid, signal.SIGSTOP)
                asked.ask(BATCH)
            process.kill()
            process.wait()
            if after == "before it is asked":
                asked.ask(BATCH)
            assert summary(asked.verdicts()) == SAID
            asked.ask(BATCH)
            assert summary(asked.verdicts()) == SAID
    finally:
        asked.close()


def test_the_process_ends_with_its_server() -> None:
    asked = Beside()
    assert asked._process is not None
    process = asked._process
    asked.close()
    assert process.wait(10) == 0


def test_the_process_ends_in_peace_when_its_server_is_killed() -> None:
    """Its reader is gone before it answers: it says nothing on the server's terminal."""
    command = [sys.executable, "-m", "fedcascade.service.server.verifier"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        body = msgspec.msgpack.encode(BATCH * 100)
        process.stdin.write(len(body).to_bytes(verifier.LENGTH_BYTES) + body)
        process.stdin.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(30) == 0
