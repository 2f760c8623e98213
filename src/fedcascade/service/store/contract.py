"""The store's contract: an append-only log of uploads, answers, identities and snapshots, all in transactions.

``testing.StoreContract`` says what every store keeps. A store is used by one thread at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedcascade.federation.messages import Upload
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.store.journal import Journal


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """An upload at its position in the log, with the nonce of the signature that it came with."""

    position: int
    upload: Upload
    nonce: bytes = b""


def is_same_upload(first: Upload, second: Upload) -> bool:
    """Whether two uploads have the same agent, sequence number, cause and statistics."""
    left, right = first.statistics, second.statistics
    return (
        (first.agent, first.sequence, first.cause) == (second.agent, second.sequence, second.cause)
        and (left.count, left.clicks, left.rounds) == (right.count, right.clicks, right.rounds)
        and np.array_equal(left.gram, right.gram)
        and np.array_equal(left.moment, right.moment)
    )


@dataclass(frozen=True)
class Identity:
    """An enrolled agent: its number, the public key it signs with, and whether it may still speak."""

    agent: int
    public_key: bytes
    revoked: bool


class Revoked(Refused):
    """An agent that may not speak, whichever process revoked it."""

    def __init__(self, agent: int) -> None:
        super().__init__(403, "revoked", f"agent {agent} may not speak: it was revoked or has left")


class Store(Journal, Protocol):
    """Where a server keeps what must not be lost."""

    failures: tuple[type[Exception], ...]

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing, durable once it is left, and alone: no other process writes meanwhile."""

    def close(self) -> None:
        """Let go of the database."""

    def get_setting(self, name: str) -> str | None:
        """A named text."""

    def set_setting(self, name: str, value: str) -> None:
        """Keep a named text."""

    def append(self, entry: LogEntry, answer: bytes) -> None:
        """Write an upload and what it was answered to the end of the log."""

    def read_entries(self, after: int) -> Iterator[LogEntry]:
        """The log beyond a position, in order."""

    def prefetch_entries(self, asked: Sequence[tuple[int, int]]) -> None:
        """Read together what ``find_entry`` will be asked for in this transaction: agents and numbers of uploads."""

    def find_entry(self, agent: int, sequence: int) -> LogEntry | None:
        """The upload of that number; ``Revoked`` if the agent may not speak: revoked, forgotten or unknown."""

    def read_answer(self, position: int) -> bytes:
        """What the upload at that position was answered."""

    def count_uploads(self, agent: int) -> tuple[int, int]:
        """How many uploads an agent has in the log, and of how many rounds."""

    def forget_agent(self, agent: int, position: int) -> None:
        """Erase an agent, its uploads and their answers; note at which position of the log."""

    def purge_deleted_rows(self) -> None:
        """After a forgetting has been committed: let nothing linger in journals."""

    def run_maintenance(self) -> None:
        """Between two transactions: housekeeping, without delay for those who wait. It never fails."""

    def find_last_forgetting(self) -> int:
        """The position of the last forgetting; 0 if there was none."""

    def save_snapshot_part(self, position: int, part: int, parts: int, body: bytes) -> None:
        """Keep one part of the snapshot at that position."""

    def find_last_snapshot(self) -> int:
        """The position of the latest snapshot that is whole; 0 if there is none."""

    def load_snapshot(self) -> tuple[int, bytes] | None:
        """The latest snapshot that is whole."""

    def delete_snapshot_part(self, *, before: int) -> bool:
        """Delete one part of a snapshot of an earlier position; False if there is none."""

    def delete_snapshots(self, *, before: int) -> None:
        """Delete the snapshots of earlier positions."""

    def add_tokens(self, hashes: Iterable[bytes], expires: float) -> None:
        """Keep enrolment tokens, as hashes."""

    def use_token(self, token_hash: bytes, now: float) -> bool:
        """Strike out a token; False if it is unknown, used or too old."""

    def add_agent(self, public_key: bytes, now: float) -> int:
        """Enrol a key under a number that was never used before."""

    def find_identity(self, agent: int) -> Identity | None:
        """Who that is."""

    def find_identity_by_key(self, public_key: bytes) -> Identity | None:
        """Whose key that is."""

    def revoke_agent(self, agent: int, now: float) -> bool:
        """Let an agent speak no more; False if there is none of that number."""

    def count_agents(self) -> int:
        """How many agents are enrolled."""
