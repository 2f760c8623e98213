"""The hash chain of the log, which reveals changed and missing entries.

The digest of an entry is keyed with a random salt. A link is the hash of the previous link, the position and the
digest. Erasing an entry keeps its digest and deletes its salt: the chain still closes, and the digest reveals nothing.
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


class DamagedStore(ValueError):  # noqa: N818 (it names the state of the store)
    """The content of the store is not what was written to it."""

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
    """Digest an event of the log: an entry that is not an upload."""
    return blake2b(body, digest_size=SIZE, person=kind.encode()).digest()


def extend_link(link: bytes, position: int, digest: bytes) -> bytes:
    """Compute the link at a position from the previous link and the entry's digest."""
    return blake2b(link + position.to_bytes(8) + digest, digest_size=SIZE).digest()


def pack_retention(horizon: int, anchor: bytes, folded: Iterable[tuple[int, bytes]]) -> bytes:
    """Pack the event that folds uploads up to a horizon: the link there, and a digest of the remaining rows.

    ``folded`` has position and digest of each remaining row up to the horizon.
    """
    summary = blake2b(digest_size=SIZE)
    for position, digest in folded:
        summary.update(position.to_bytes(8) + digest)
    return _RETENTION.pack(horizon, anchor, summary.digest())


def unpack_retention(body: bytes) -> tuple[int, bytes]:
    """Return the horizon of a retention and the link there."""
    try:
        horizon, anchor, _ = _RETENTION.unpack(body)
    except struct.error:
        raise DamagedStore("the last retention cannot be read") from None
    return int(horizon), anchor


class ChainCheck:
    """Check of the log in the order of positions; it raises ``DamagedStore`` at the first flaw."""

    def __init__(self, position: int, link: bytes, noted: tuple[int, bytes] | None = None) -> None:
        self.begin, self.position, self.link = position, position, link
        self.noted = noted  # a position and its link, from an earlier check

    def advance(self, position: int, digest: bytes, link: bytes | None) -> None:
        """Check the next entry; ``link`` is None if it was erased."""
        if position != self.position + 1:
            raise DamagedStore(f"entry {self.position + 1} of the log is missing")
        self.link = extend_link(self.link, position, digest)
        self.position = position
        if self.noted is not None and position == self.noted[0] and self.link != self.noted[1]:
            raise DamagedStore(f"the log up to position {position} is not the one that was noted")
        if link is not None and bytes(link) != self.link:
            raise DamagedStore(f"entry {position} of the log is not the one that was written, or one before it is not")
