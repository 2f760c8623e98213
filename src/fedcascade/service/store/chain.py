"""The hash chain of the log: nothing in it can change or go missing unseen.

An entry has a digest, keyed with a salt of its own; a link is the hash of the link before it, the position and the
digest. Where an entry is erased, its digest stays and its salt goes: the chain still closes, and nobody can guess from
the digest what was there.
"""

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

SIZE = 32
GENESIS = bytes(SIZE)  # the link before the first entry
SALT_BYTES = 16
ADVICE = "stop the servers, check it with 'fedcascade verify', and restore a backup with 'fedcascade restore'"
_UPLOAD = struct.Struct("<7q2H")
_RETENTION = struct.Struct(f"<q{SIZE}s{SIZE}s")


class DamagedStore(ValueError):  # noqa: N818 (it says what is the matter with the store)
    """The store does not hold what was written to it."""

    def __init__(self, finding: str) -> None:
        super().__init__(f"the store is damaged: {finding}; {ADVICE}")


def digest_upload(row: Sequence[Any]) -> bytes:
    """Digest a row of the log, keyed with its salt."""
    position, agent, sequence, cause, count, clicks, rounds, numbers, nonce, uploads, salt = row
    try:
        word = cause.encode()
        head = _UPLOAD.pack(position, agent, sequence, count, clicks, rounds, uploads, len(word), len(nonce))
        return blake2b(b"".join((head, word, nonce, numbers)), digest_size=SIZE, key=salt).digest()
    except (AttributeError, TypeError, ValueError, struct.error):
        raise DamagedStore(f"entry {position} of the log cannot be read") from None


def digest_event(kind: str, body: bytes) -> bytes:
    """Digest an event of the log that is no upload."""
    return blake2b(body, digest_size=SIZE, person=kind.encode()).digest()


def extend_link(link: bytes, position: int, digest: bytes) -> bytes:
    """The link of the entry at a position, from the link before it and the entry's digest."""
    return blake2b(link + position.to_bytes(8) + digest, digest_size=SIZE).digest()


def pack_retention(horizon: int, anchor: bytes, folded: Iterable[tuple[int, bytes]]) -> bytes:
    """The body of the event that folds all uploads up to a horizon: the link there, and a digest of what is left.

    ``folded`` has position and digest of each row that is left up to the horizon.
    """
    summary = blake2b(digest_size=SIZE)
    for position, digest in folded:
        summary.update(position.to_bytes(8) + digest)
    return _RETENTION.pack(horizon, anchor, summary.digest())


def unpack_retention(body: bytes) -> tuple[int, bytes]:
    """The horizon of a retention, and the link there."""
    try:
        horizon, anchor, _ = _RETENTION.unpack(body)
    except struct.error:
        raise DamagedStore("the last retention cannot be read") from None
    return int(horizon), anchor


class ChainCheck:
    """Follows the log in the order of positions, and raises ``DamagedStore`` where it is not what was written."""

    def __init__(self, position: int, link: bytes, noted: tuple[int, bytes] | None = None) -> None:
        self.begin, self.position, self.link = position, position, link
        self.noted = noted  # a position and its link, as somebody wrote them down

    def advance(self, position: int, digest: bytes, link: bytes | None) -> None:
        """Pass the next entry; ``link`` is None where it was erased."""
        if position != self.position + 1:
            raise DamagedStore(f"entry {self.position + 1} of the log is missing")
        self.link = extend_link(self.link, position, digest)
        self.position = position
        if self.noted is not None and position == self.noted[0] and self.link != self.noted[1]:
            raise DamagedStore(f"the log up to position {position} is another one than what was noted")
        if link is not None and bytes(link) != self.link:
            raise DamagedStore(f"entry {position} of the log is not the one that was written, or one before it is not")
