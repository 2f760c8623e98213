"""Verification of requests in batches, in a child process, while the server counts the batch before.

Verifying a signature and checking an upload takes longer than counting it, and needs no state of the server. Threads
would contend for the interpreter lock at every request.
"""

import hmac
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import IO

import msgspec
import numpy as np

from fedcascade.federation.privacy import PrivateUploads
from fedcascade.service.protocol import auth, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import are_possible, can_correct, check_private_upload, check_upload
from fedcascade.service.server.exchange import Exchange
from fedcascade.service.server.logs import configure_as_parent
from fedcascade.service.server.pipes import READY, PipedProcess, read_frame, write_frame

log = logging.getLogger("fedcascade.service")
ANSWER_SECONDS = 5.0  # for a batch of small uploads, which takes milliseconds
# An exchange as sent to the process: public key, method, path, signature, body, media type of the upload if any.
PackedExchange = tuple[bytes, str, str, auth.SignatureHeaders, bytes, str | None]
Verdict = tuple[bool, tuple[int, str, str] | None, wire.UploadMessage | None]  # as fields of an exchange
BUSY = (503, "verifier", "the request could not be checked in time: try again")
_requests_decoder = msgspec.msgpack.Decoder(list[PackedExchange])
_verdicts_decoder = msgspec.msgpack.Decoder(list[Verdict])


def verify_exchanges(
    requests: Sequence[PackedExchange], dimension: int, privacy: PrivateUploads | None = None
) -> list[Verdict]:
    """Verify signatures, then decode and check the uploads with valid ones."""
    verdicts: list[Verdict] = []
    messages, size = dict[int, wire.UploadMessage](), 8 * wire.count_numbers(dimension)  # messages by place
    for place, request in enumerate(requests):
        key, method, path, signature, body, media_type = request
        is_signed = False
        try:
            if not hmac.compare_digest(signature.digest.encode(), auth.compute_digest(body).encode()):
                raise auth.Unauthorised("altered", "content-digest is not that of the body")
            auth.verify(key, method, path, signature)
            is_signed = True
            if media_type is not None:
                message = wire.decode(body, wire.UploadMessage, media_type)
                if message.sequence != signature.sequence:
                    raise auth.Unauthorised("altered", "the signed sequence number is not that of the upload")
                if privacy is not None or len(message.numbers) not in (size, size + 8):
                    check_message(message, dimension, privacy)
                messages[place] = message
            verdicts.append((True, None, messages.get(place)))
        except Exception as error:
            verdicts.append((is_signed, describe_refusal(error), None))
    if not messages or privacy is not None:
        return verdicts
    uploads = messages.values()
    rows = (upload.numbers.ljust(size + 8, b"\0") for upload in uploads)  # without a shortfall of rewards, it is 0
    numbers = np.frombuffer(bytearray().join(rows), "<f8").reshape(len(messages), -1)  # writable, for compiled code
    counts = np.array([(upload.count, upload.clicks, upload.rounds) for upload in uploads], np.int64)
    for place, is_possible in zip(messages, are_possible(numbers, counts).tolist(), strict=True):
        try:
            if not is_possible:
                check_message(messages[place], dimension)
        except Exception as error:
            # Late rewards correct earlier uploads: the writer checks such an upload with them.
            may_correct = can_correct(messages[place].to_upload(0, dimension).statistics)
            verdicts[place] = True, describe_refusal(error), messages[place] if may_correct else None
    return verdicts


def describe_refusal(error: Exception) -> tuple[int, str, str]:
    """Turn an exception of a check into a refusal, so that the rest of the batch gets verdicts."""
    if isinstance(error, Refused):
        return error.status, error.reason, error.detail
    log.error("a request cannot be verified", exc_info=error)
    return 500, "failed", "this request could not be read"


def check_message(message: wire.UploadMessage, dimension: int, privacy: PrivateUploads | None = None) -> None:
    """Refuse an upload that no data can produce, or no data and noise, with the reason."""
    try:
        check = check_upload if privacy is None else partial(check_private_upload, privacy)
        check(message.to_upload(0, dimension).statistics, dimension)
    except ValueError as error:
        raise Refused(422, "impossible", str(error)) from None


class SignatureVerifier:
    """Verifier of batches: ``submit`` takes a batch, ``collect`` has its verdicts.

    With ``has_process`` a child process verifies them, otherwise this one. If the process dies, its batch is verified
    here. If it does not answer in time, it is killed and its batch is refused with status 503, because the batch may
    have frozen it. The next batch goes to a new process.
    """

    def __init__(self, dimension: int, privacy: PrivateUploads | None = None, *, has_process: bool = False) -> None:
        self.dimension, self.privacy, self._has_process = dimension, privacy, has_process
        self.exchanges: Sequence[Exchange] = ()
        self.requests: Sequence[PackedExchange] = ()
        self._process: PipedProcess | None = self._start_process()

    def prepare(self) -> None:
        """Compile the checks, here and in the process, so that no request waits for a compiler."""
        precompile(self.dimension)
        if self._process is not None:
            self._process.is_ready()

    def submit(self, exchanges: Sequence[Exchange]) -> None:
        self.exchanges = exchanges
        self.requests = [
            (each.identity.public_key, each.method, each.path, each.signature, each.body, each.media_type)
            for each in exchanges
        ]
        if not exchanges:
            return
        self._process = self._process or self._start_process()
        if self._process is not None:
            frame = msgspec.msgpack.encode(self.requests)
            if not (self._process.is_ready() and self._process.write_frame(frame, ANSWER_SECONDS)):
                self.close()

    def collect(self) -> None:
        """Fill in signature verdict, refusal and upload of each exchange of the batch."""
        verdicts = self._receive()
        if verdicts is None:
            verdicts = verify_exchanges(self.requests, self.dimension, self.privacy)
        for exchange, (is_signed, refusal, message) in zip(self.exchanges, verdicts, strict=True):
            exchange.is_signed, exchange.refusal = is_signed, refusal
            if message is not None:
                exchange.upload = message.to_upload(exchange.signature.agent, self.dimension)
                exchange.numbers, exchange.receipt = message.numbers, message.receipt

    def _receive(self) -> Sequence[Verdict] | None:
        """Receive the verdicts of the process; return None to verify the batch here."""
        if not self.exchanges or self._process is None:
            return None
        # Time for one factorisation per upload on a slow machine.
        seconds = ANSWER_SECONDS + len(self.exchanges) * (self.dimension / 512) ** 3
        try:
            frame = self._process.read_frame(seconds)
        except TimeoutError:
            log.error("the verifier does not answer: restarting it")
            self.close(at_once=True)
            return [(False, BUSY, None)] * len(self.exchanges)
        if frame is None:
            self.close()
            return None
        return _verdicts_decoder.decode(frame)

    def close(self, *, at_once: bool = False) -> None:
        """End the process, if there is one; ``at_once`` kills it, from any thread."""
        process, self._process = self._process, None
        if process is not None:
            (process.kill if at_once else process.end)()

    def _start_process(self) -> PipedProcess | None:
        options = msgspec.json.encode((self.dimension, self.privacy)).decode()
        return PipedProcess([sys.executable, "-m", __name__, options]) if self._has_process else None


def precompile(dimension: int) -> None:
    """Compile or load the checks of uploads."""
    are_possible(np.zeros((1, wire.count_numbers(dimension) + 1)), np.ones((1, 3), np.int64))


def serve_batches(source: IO[bytes], sink: IO[bytes], dimension: int, privacy: PrivateUploads | None = None) -> None:
    """Send ``READY`` once the checks are compiled, then verify batches until the input ends."""
    precompile(dimension)
    write_frame(sink, READY)
    while (frame := read_frame(source)) is not None:
        verdicts = verify_exchanges(_requests_decoder.decode(frame), dimension, privacy)
        write_frame(sink, msgspec.msgpack.encode(verdicts))


if __name__ == "__main__":
    configure_as_parent()
    try:
        options = msgspec.json.decode(sys.argv[1], type=tuple[int, PrivateUploads | None])
        serve_batches(sys.stdin.buffer, sys.stdout.buffer, *options)
    except ConnectionError:  # the server was killed
        os._exit(0)
