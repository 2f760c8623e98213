"""Verifies requests, many at a time, in a process beside the server, while the server counts those before.

To verify a signature and to decode and check an upload takes longer than to count it. It needs nothing that the server
knows, and threads would hand the interpreter to each other for every single one.
"""

import base64
import hmac
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

import msgspec
import numpy as np
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import are_possible, check_upload

log = logging.getLogger("fedcascade.service")
LENGTH_BYTES = 4
PIPE_BYTES = 1 << 20  # the most that Linux grants anyone: a large batch goes through at once


class SignedRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request, and the public key of the agent in whose name it is signed.

    ``upload`` is the media type of the body if that is an upload, else None.
    """

    key: bytes
    method: str
    path: str
    signature: auth.SignatureHeaders
    body: bytes
    upload: str | None


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """Why a request is refused; ``is_signed`` if its signature holds all the same."""

    is_signed: bool
    status: int
    reason: str
    detail: str


Verdict = Refusal | None  # None: the signature holds, and so does the upload if there is one
_requests_decoder = msgspec.msgpack.Decoder(list[SignedRequest])
_verdicts_decoder = msgspec.msgpack.Decoder(list[Verdict])


def verify_requests(requests: Sequence[SignedRequest], dimension: int) -> list[Verdict]:
    """Verify signatures, then check the uploads of those that hold, all together; a stranger's is not even decoded."""
    verdicts: list[Verdict] = [None] * len(requests)
    messages: dict[int, wire.UploadMessage] = {}
    for place, request in enumerate(requests):
        is_signed = False
        try:
            verify_signature(request)
            is_signed = True
            if request.upload is not None:
                messages[place] = decode_upload(request, request.upload, dimension)
        except Exception as error:
            verdicts[place] = make_refusal(error, is_signed=is_signed)
    for place in find_impossible(messages, dimension):
        try:
            check_message(messages[place], dimension)
        except Exception as error:
            verdicts[place] = make_refusal(error, is_signed=True)
    return verdicts


def make_refusal(error: Exception, *, is_signed: bool) -> Refusal:
    """Turn whatever a check raised into a refusal, so that the rest of the batch gets its verdicts."""
    if isinstance(error, Refused):
        return Refusal(is_signed, error.status, error.reason, error.detail)
    log.error("a request cannot be verified", exc_info=error)
    return Refusal(is_signed, 500, "failed", "this request could not be read")


def verify_signature(request: SignedRequest) -> None:
    """Refuse a request that its agent has not signed."""
    signature = request.signature
    if not hmac.compare_digest(signature.digest.encode(), auth.compute_digest(request.body).encode()):
        raise auth.Unauthorised("altered", "content-digest is not that of the body")
    base = auth.build_signature_base(request.method, request.path, signature)
    try:
        crypto_sign_open(base64.b64decode(signature.signature) + base, request.key)
    except BadSignatureError:
        raise auth.Unauthorised("unrecognised", auth.UNRECOGNISED) from None


def decode_upload(request: SignedRequest, media_type: str, dimension: int) -> wire.UploadMessage:
    """Decode the upload of a request; refuse one of another form, dimension or sequence number than was signed."""
    message = wire.decode(request.body, wire.UploadMessage, media_type)
    if len(message.numbers) != 8 * wire.count_numbers(dimension):
        check_message(message, dimension)
    if message.sequence != request.signature.sequence:
        raise auth.Unauthorised("altered", "the signed sequence number is not that of the upload")
    return message


def find_impossible(messages: Mapping[int, wire.UploadMessage], dimension: int) -> list[int]:
    """The keys of uploads that no data can have, found in one compiled call."""
    if not messages:
        return []
    body = bytearray().join(message.numbers for message in messages.values())  # writable, as compiled functions expect
    numbers = np.frombuffer(body, "<f8").reshape(len(messages), wire.count_numbers(dimension))
    counts = np.array([(message.count, message.clicks, message.rounds) for message in messages.values()], np.int64)
    possible = are_possible(numbers, counts)
    return [place for place, is_possible in zip(messages, possible.tolist(), strict=True) if not is_possible]


def check_message(message: wire.UploadMessage, dimension: int) -> None:
    """Refuse an upload that no data can have, and say why."""
    try:
        check_upload(message.to_upload(0, dimension).statistics, dimension)
    except ValueError as error:
        raise Refused(422, "impossible", str(error)) from None


class SignatureVerifier:
    """Takes a batch of requests with ``submit`` and gives the verdicts with ``collect``, which does the work here."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._requests: Sequence[SignedRequest] = ()

    def submit(self, requests: Sequence[SignedRequest]) -> None:
        self._requests = requests

    def collect(self) -> list[Verdict]:
        return verify_requests(self._requests, self.dimension)

    def close(self) -> None:
        """Let go of what the verifier holds."""


class VerifierProcess(SignatureVerifier):
    """Verifies in a process of its own. If it dies, its batch is verified here, and the next one in a new process."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        self._process: subprocess.Popen[bytes] | None = _start_process(dimension)

    def submit(self, requests: Sequence[SignedRequest]) -> None:
        """Send a batch to the process, which begins at once."""
        super().submit(requests)
        if not requests:
            return
        self._process = self._process or _start_process(self.dimension)
        assert self._process.stdin is not None
        try:
            _write_frame(self._process.stdin, msgspec.msgpack.encode(requests))
        except OSError:
            self.close()

    def collect(self) -> list[Verdict]:
        if self._requests and self._process is not None:
            assert self._process.stdout is not None
            frame = _read_frame(self._process.stdout)
            if frame is not None:
                return _verdicts_decoder.decode(frame)
            self.close()
        return super().collect()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:  # it ends at the end of its input
                pass


def _start_process(dimension: int) -> "subprocess.Popen[bytes]":
    """Start it in a session of its own: an interrupt from the keyboard is for the server, which ends in peace."""
    command, pipe = [sys.executable, "-m", __name__, str(dimension)], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, pipesize=PIPE_BYTES)


def _write_frame(pipe: IO[bytes], body: bytes) -> None:
    pipe.write(len(body).to_bytes(LENGTH_BYTES) + body)
    pipe.flush()


def _read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next frame; None where the other side has ended."""
    head = pipe.read(LENGTH_BYTES)
    size = int.from_bytes(head)
    body = pipe.read(size) if len(head) == LENGTH_BYTES else b""
    return body if body and len(body) == size else None


def serve_batches(source: IO[bytes], sink: IO[bytes], dimension: int) -> None:
    """Verify batch after batch until the input ends."""
    while (frame := _read_frame(source)) is not None:
        _write_frame(sink, msgspec.msgpack.encode(verify_requests(_requests_decoder.decode(frame), dimension)))


if __name__ == "__main__":
    try:
        serve_batches(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
    except BrokenPipeError:  # the server was killed, and nothing that is left in the pipe can be written any more
        os._exit(0)
