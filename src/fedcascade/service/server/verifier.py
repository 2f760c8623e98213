"""A process beside the server looks at requests, many at a time, while the server counts those before.

To verify a signature and to read and check an upload takes longer than to count it. It needs nothing that the server
knows, and threads would hand the interpreter to each other for every single one.
"""

import base64
import hmac
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

import msgspec
import numpy as np
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from fedcascade.federation.messages import Cause
from fedcascade.learning.statistics import Statistics
from fedcascade.service.protocol import auth, floats, wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.protocol.validation import check_upload, possible

log = logging.getLogger("fedcascade.service")
LENGTH_BYTES = 4
PIPE_BYTES = 1 << 20  # the most that Linux grants anyone: a large batch goes through at once


class Papers(msgspec.Struct, array_like=True, frozen=True):
    """What a request shows, and whose key it claims; the media type if its body is an upload."""

    key: bytes
    method: str
    path: str
    claimed: auth.Claim
    body: bytes
    upload: str | None
    dimension: int


class Content(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An upload that was read and checked, its gram and moment as the log keeps them."""

    protocol: int
    sequence: int
    cause: Cause
    count: int
    clicks: int
    rounds: int
    numbers: bytes


class Refusal(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Why a request is refused; ``signed`` if its signature holds all the same."""

    signed: bool
    status: int
    reason: str
    detail: str


Verdict = Content | Refusal | None  # None: the signature holds, and there is no upload to read
_asked = msgspec.msgpack.Decoder(list[Papers])
_said = msgspec.msgpack.Decoder(list[Verdict])


def verdicts(batch: Sequence[Papers]) -> list[Verdict]:
    """What is to be said of requests; the upload of a stranger is not even read."""
    said = [_judged(verify, papers, signed=False) for papers in batch]
    uploads = [place for place, papers in enumerate(batch) if papers.upload is not None and said[place] is None]
    plain = read_together([batch[place] for place in uploads])
    for place, content in zip(uploads, plain, strict=True):
        said[place] = content or _judged(read, batch[place], signed=True)
    return said


def _judged(look: Callable[[Papers], Verdict], papers: Papers, *, signed: bool) -> Verdict:
    """Whatever one of them brings, the others of its batch must not wait for ever."""
    try:
        return look(papers)
    except Refused as refusal:
        return Refusal(signed, refusal.status, refusal.reason, refusal.detail)
    except Exception:
        log.exception("a request cannot be judged")
        return Refusal(signed, 500, "failed", "this request could not be read")


def verify(papers: Papers) -> None:
    """Refuse a request that its agent has not signed; there is nothing else to say of it."""
    claimed = papers.claimed
    if not hmac.compare_digest(claimed.digest.encode(), auth.content_digest(papers.body).encode()):
        raise auth.unauthorised("altered", "content-digest is not that of the body")
    base = auth.signature_base(papers.method, papers.path, claimed)
    try:
        crypto_sign_open(base64.b64decode(claimed.signature) + base, papers.key)
    except BadSignatureError:
        raise auth.unauthorised("altered", "the signature is not that of this agent over this request") from None


def read(papers: Papers) -> Content:
    """What an upload says, if data can have said it."""
    assert papers.upload is not None
    try:
        offer, statistics = wire.offered(papers.body, papers.upload, papers.dimension)
        check_upload(statistics, papers.dimension)
    except Refused:
        raise
    except ValueError as error:
        raise Refused(422, "impossible", str(error)) from None
    if offer.sequence != papers.claimed.sequence:
        raise auth.unauthorised("altered", "the signed sequence number is not that of the upload")
    return content_of(offer, statistics)


def read_together(batch: Sequence[Papers]) -> list[Content | None]:
    """The same of many at once, which is cheaper; None for all that are not plain and good, to be read one by one."""
    found: list[Content | None] = [None] * len(batch)
    plain: list[tuple[int, wire.RawOffer, bytes]] = []
    for place, papers in enumerate(batch):
        with suppress(Exception):  # whatever is wrong is found again, alone
            if papers.upload == wire.MSGPACK:
                plain.append((place, *wire.plainly_offered(papers.body, papers.dimension)))
    if not plain:
        return found
    numbers, good = floats.rows([heard for *_, heard in plain])
    counts = np.array([(offer.count, offer.clicks, offer.rounds) for _, offer, _ in plain], np.int64)
    good &= possible(numbers, counts)
    for (place, offer, _), row, fine in zip(plain, numbers, good.tolist(), strict=True):
        if fine and offer.sequence == batch[place].claimed.sequence:
            found[place] = _content(offer, row.astype("<f8").tobytes())
    return found


def content_of(offer: wire.Offered, statistics: Statistics) -> Content:
    """An upload and what it carries, as it was read."""
    return _content(offer, wire.packed(statistics))


def _content(offer: wire.Offered, numbers: bytes) -> Content:
    counts = offer.count, offer.clicks, offer.rounds
    return Content(offer.protocol, offer.sequence, offer.cause, *counts, numbers)


class Notary:
    """Ask about a batch, do something else, and take the verdicts. This one looks at it last."""

    def __init__(self) -> None:
        self._asked: Sequence[Papers] = ()

    def ask(self, asked: Sequence[Papers]) -> None:
        """Have these looked at."""
        self._asked = asked

    def verdicts(self) -> list[Verdict]:
        """What is said of those asked about."""
        return verdicts(self._asked)

    def close(self) -> None:
        """Nobody will ask any more."""


class Beside(Notary):
    """A process of its own. If it dies, its batch is looked at here, and the next one in a new process."""

    def __init__(self) -> None:
        super().__init__()
        self._process: subprocess.Popen[bytes] | None = _started()

    def ask(self, asked: Sequence[Papers]) -> None:
        """Have these looked at there."""
        super().ask(asked)
        if not asked:
            return
        self._process = self._process or _started()
        assert self._process.stdin is not None
        try:
            _send(self._process.stdin, msgspec.msgpack.encode(asked))
        except OSError:
            self.close()

    def verdicts(self) -> list[Verdict]:
        """What is said of those asked about."""
        if self._asked and self._process is not None:
            assert self._process.stdout is not None
            said = _receive(self._process.stdout)
            if said is not None:
                decoded: list[Verdict] = _said.decode(said)
                return decoded
            self.close()
        return super().verdicts()

    def close(self) -> None:
        """Let the process go; it ends when it cannot be asked any more."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:
                pass


def _started() -> "subprocess.Popen[bytes]":
    """A process in a session of its own: an interrupt from the keyboard is for the server, which ends in peace."""
    command = [sys.executable, "-m", __name__]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, pipesize=PIPE_BYTES)


def _send(pipe: IO[bytes], body: bytes) -> None:
    pipe.write(len(body).to_bytes(LENGTH_BYTES) + body)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """The next message; None where the other side has ended."""
    head = pipe.read(LENGTH_BYTES)
    size = int.from_bytes(head)
    body = pipe.read(size) if len(head) == LENGTH_BYTES else b""
    return body if body and len(body) == size else None


def answer(asked: IO[bytes], said: IO[bytes]) -> None:
    """Look at batch after batch until nobody asks any more."""
    while (body := _receive(asked)) is not None:
        _send(said, msgspec.msgpack.encode(verdicts(_asked.decode(body))))


if __name__ == "__main__":
    try:
        answer(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:  # the server was killed, and nothing that is left in the pipe can be said any more
        os._exit(0)
