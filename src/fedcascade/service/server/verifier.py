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
from fedcascade.service.server.exchange import Exchange
from fedcascade.service.server.logs import configure_as_parent
from fedcascade.service.server.pipes import READY, PipedProcess, read_frame, write_frame

log = logging.getLogger("fedcascade.service")
ANSWER_SECONDS = 5.0  # for a batch of small uploads, which takes milliseconds
# What the process is told of an exchange: public key, method, path, signature, body, media type of the upload if any.
PackedExchange = tuple[bytes, str, str, auth.SignatureHeaders, bytes, str | None]
Verdict = tuple[bool, tuple[int, str, str] | None, wire.UploadMessage | None]  # as fields of an exchange
BUSY = (503, "verifier", "the request could not be checked in time: try again")
_requests_decoder = msgspec.msgpack.Decoder(list[PackedExchange])
_verdicts_decoder = msgspec.msgpack.Decoder(list[Verdict])


def verify_exchanges(requests: Sequence[PackedExchange], dimension: int) -> list[Verdict]:
    """Verify signatures, then check the uploads of those that hold, all together; a stranger's is not even decoded."""
    verdicts: list[Verdict] = []
    messages: dict[int, wire.UploadMessage] = {}
    for place, request in enumerate(requests):
        *_, signature, body, media_type = request
        is_signed = False
        try:
            verify_signature(request)
            is_signed = True
            if media_type is not None:
                message = wire.decode(body, wire.UploadMessage, media_type)
                if message.sequence != signature.sequence:
                    raise auth.Unauthorised("altered", "the signed sequence number is not that of the upload")
                if len(message.numbers) != 8 * wire.count_numbers(dimension):
                    check_message(message, dimension)
                messages[place] = message
            verdicts.append((True, None, messages.get(place)))
        except Exception as error:
            verdicts.append((is_signed, describe_refusal(error), None))
    for place in find_impossible(messages, dimension):
        try:
            check_message(messages[place], dimension)
        except Exception as error:
            verdicts[place] = True, describe_refusal(error), None
    return verdicts


def describe_refusal(error: Exception) -> tuple[int, str, str]:
    """Turn whatever a check raised into a refusal, so that the rest of the batch gets its verdicts."""
    if isinstance(error, Refused):
        return error.status, error.reason, error.detail
    log.error("a request cannot be verified", exc_info=error)
    return 500, "failed", "this request could not be read"


def verify_signature(request: PackedExchange) -> None:
    """Refuse a request that its agent has not signed."""
    key, method, path, signature, body, _ = request
    if not hmac.compare_digest(signature.digest.encode(), auth.compute_digest(body).encode()):
        raise auth.Unauthorised("altered", "content-digest is not that of the body")
    base = auth.build_signature_base(method, path, signature)
    try:
        crypto_sign_open(base64.b64decode(signature.signature) + base, key)
    except BadSignatureError:
        raise auth.Unauthorised("unrecognised", auth.UNRECOGNISED) from None


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
    """Takes a batch of exchanges with ``submit``; ``collect`` does the work here, and fills in what was found."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.exchanges: Sequence[Exchange] = ()
        self.requests: Sequence[PackedExchange] = ()

    def prepare(self) -> None:
        """Compile what verifying needs, so that no request waits for a compiler."""
        precompile(self.dimension)

    def submit(self, exchanges: Sequence[Exchange]) -> None:
        """Take the next batch."""
        self.exchanges = exchanges
        self.requests = [
            (each.identity.public_key, each.method, each.path, each.signature, each.body, each.media_type)
            for each in exchanges
        ]

    def collect(self) -> None:
        """Fill in whether each exchange of the batch is signed, why it is refused, and its upload."""
        verdicts = self._receive()
        if verdicts is None:
            verdicts = verify_exchanges(self.requests, self.dimension)
        for exchange, (is_signed, refusal, message) in zip(self.exchanges, verdicts, strict=True):
            exchange.is_signed, exchange.refusal = is_signed, refusal
            if message is not None:
                exchange.upload = message.to_upload(exchange.signature.agent, self.dimension)
                exchange.numbers, exchange.receipt = message.numbers, message.receipt

    def _receive(self) -> Sequence[Verdict] | None:
        """Receive the verdicts of another process; None if the batch is to be verified here."""
        return None

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

    def submit(self, exchanges: Sequence[Exchange]) -> None:
        """Send a batch to the process, which begins at once."""
        super().submit(exchanges)
        if not exchanges:
            return
        self._process = self._process or self._start_process()
        frame = msgspec.msgpack.encode(self.requests)
        if not (self._process.is_ready() and self._process.write_frame(frame, ANSWER_SECONDS)):
            self.close()

    def _receive(self) -> Sequence[Verdict] | None:
        if not self.exchanges or self._process is None:
            return None
        # A batch takes a factorisation of each upload, on a slow machine, and some more.
        seconds = ANSWER_SECONDS + len(self.exchanges) * (self.dimension / 512) ** 3
        try:
            frame = self._process.read_frame(seconds)
        except TimeoutError:
            log.error("the verifier does not answer: it is restarted")
            self.kill()
            return [(False, BUSY, None)] * len(self.exchanges)
        if frame is None:
            self.close()
            return None
        return _verdicts_decoder.decode(frame)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _start_process(self) -> PipedProcess:
        return PipedProcess([sys.executable, "-m", __name__, str(self.dimension)])


def precompile(dimension: int) -> None:
    """Compile, or load, what checking an upload needs."""
    are_possible(np.zeros((1, wire.count_numbers(dimension))), np.ones((1, 3), np.int64))


def serve_batches(source: IO[bytes], sink: IO[bytes], dimension: int) -> None:
    """Say that everything is compiled, then verify batch after batch until the input ends."""
    precompile(dimension)
    write_frame(sink, READY)
    while (frame := read_frame(source)) is not None:
        write_frame(sink, msgspec.msgpack.encode(verify_exchanges(_requests_decoder.decode(frame), dimension)))


if __name__ == "__main__":
    configure_as_parent()
    try:
        serve_batches(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
    except BrokenPipeError:  # the server was killed, and nothing that is left in the pipe can be written any more
        os._exit(0)
