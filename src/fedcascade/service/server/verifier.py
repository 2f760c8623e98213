"""Verifies requests, many at a time, in a process beside the server, while the server counts those before.

To verify a signature and to decode and check an upload takes longer than to count it. It needs nothing that the server
knows, and threads would hand the interpreter to each other for every single one.
"""

import base64
import hmac
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO

import msgspec
import numpy as np
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import are_possible, check_upload
from fedcascade.service.server.logs import configure_as_parent
from fedcascade.service.server.pipes import READY, PipedProcess, read_frame, write_frame

log = logging.getLogger("fedcascade.service")
ANSWER_SECONDS = 5.0  # for a batch of small uploads, which takes milliseconds


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
BUSY = Refusal(False, 503, "verifier", "the request could not be checked in time: try again")
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
    size = 8 * wire.count_numbers(dimension)
    if len(message.numbers) != size:
        check_message(message, dimension)
    if message.sequence != request.signature.sequence:
        raise auth.Unauthorised("altered", "the signed sequence number is not that of the upload")
    return message


def find_impossible(messages: Mapping[int, wire.UploadMessage], dimension: int) -> list[int]:
    """The keys of uploads that no data can have, found in one compiled call."""
    if not messages:
        return []
    uploads = messages.values()
    body = bytearray().join(upload.numbers for upload in uploads)  # writable, as compiled functions expect
    numbers = np.frombuffer(body, "<f8").reshape(len(messages), wire.count_numbers(dimension))
    counts = np.array([(upload.count, upload.clicks, upload.rounds) for upload in uploads], np.int64)
    verdicts = are_possible(numbers, counts).tolist()
    return [place for place, is_possible in zip(messages, verdicts, strict=True) if not is_possible]


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

    def prepare(self) -> None:
        """Compile what verifying needs, so that no request waits for a compiler."""
        warm_up(self.dimension)

    def submit(self, requests: Sequence[SignedRequest]) -> None:
        self._requests = requests

    def collect(self) -> list[Verdict]:
        return verify_requests(self._requests, self.dimension)

    def close(self) -> None:
        """Let go of what the verifier holds."""

    def kill(self) -> None:
        """Let go of it at once, from any thread."""


class VerifierProcess(SignatureVerifier):
    """Verifies in a process of its own.

    If it dies, its batch is verified here. If it does not answer in time, it is killed and its batch is refused for
    now: what froze it must not freeze the server. The next batch goes to a new process.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        self._process: PipedProcess | None = self._start_process()

    def prepare(self) -> None:
        """Wait until the process has compiled what it needs."""
        super().prepare()
        if self._process is not None:
            self._process.is_ready()

    def submit(self, requests: Sequence[SignedRequest]) -> None:
        """Send a batch to the process, which begins at once."""
        super().submit(requests)
        if not requests:
            return
        self._process = self._process or self._start_process()
        frame = msgspec.msgpack.encode(requests)
        if not (self._process.is_ready() and self._process.write_frame(frame, ANSWER_SECONDS)):
            self.close()

    def collect(self) -> list[Verdict]:
        if self._requests and self._process is not None:
            try:
                frame = self._process.read_frame(self._estimate_seconds())
            except TimeoutError:
                log.error("the verifier does not answer: it is started anew")
                self.kill()
                return [BUSY] * len(self._requests)
            if frame is not None:
                return _verdicts_decoder.decode(frame)
            self.close()
        return super().collect()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _estimate_seconds(self) -> float:
        """How long a batch may take: a factorisation of each upload, on a slow machine, and some more."""
        return ANSWER_SECONDS + len(self._requests) * (self.dimension / 512) ** 3

    def _start_process(self) -> PipedProcess:
        return PipedProcess([sys.executable, "-m", __name__, str(self.dimension)])


def warm_up(dimension: int) -> None:
    """Compile, or load, what checking an upload needs."""
    are_possible(np.zeros((1, wire.count_numbers(dimension))), np.ones((1, 3), np.int64))


def serve_batches(source: IO[bytes], sink: IO[bytes], dimension: int) -> None:
    """Say that everything is compiled, then verify batch after batch until the input ends."""
    warm_up(dimension)
    write_frame(sink, READY)
    while (frame := read_frame(source)) is not None:
        write_frame(sink, msgspec.msgpack.encode(verify_requests(_requests_decoder.decode(frame), dimension)))


if __name__ == "__main__":
    configure_as_parent()
    try:
        serve_batches(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
    except BrokenPipeError:  # the server was killed, and nothing that is left in the pipe can be written any more
        os._exit(0)
