"""What a server asks of a store: a few narrow protocols, and ``Store``, their sum on one database.

``testing.stores`` has a class of tests for each protocol. A store is used by one thread at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedcascade.federation.messages import Upload
from fedcascade.service.protocol.errors import Refused, Unavailable
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
    """An enrolled agent: its number, the public key it signs with, when it enrolled, and whether it was revoked."""

    agent: int
    public_key: bytes
    enrolled: float
    revoked: bool


class Revoked(Refused):
    """Refuses an agent that was revoked, by whichever process, or was forgotten."""

    def __init__(self, agent: int) -> None:
        super().__init__(403, "revoked", f"agent {agent} may not speak: it was revoked or has left")


class UploadLog(Protocol):
    """The uploads of all agents in the order in which they were counted, each with its answer."""

    def append(self, entry: LogEntry, answer: bytes) -> None:
        """Append an upload and its answer."""

    def read_entries(self, after: int) -> Iterator[LogEntry]:
        """Read the log beyond a position, in order."""

    def prefetch_entries(self, keys: Sequence[tuple[int, int]]) -> None:
        """Read at once what ``find_entry`` will look for in this transaction: pairs of agent and sequence number."""

    def find_entry(self, agent: int, sequence: int) -> LogEntry | None:
        """Find an agent's upload of that sequence number; raise ``Revoked`` if the agent may not speak."""

    def read_answer(self, position: int) -> bytes:
        """Read the answer to the upload at that position."""

    def find_last_sequence(self, agent: int) -> int:
        """Find the largest sequence number of an agent's uploads that were ever logged; 0 if there is none."""

    def count_uploads(self, agent: int) -> tuple[int, int]:
        """Count an agent's uploads in the log, and the rounds in them."""


class IdentityStore(Protocol):
    """The enrolled agents, and the tokens that newcomers enrol with. Times are seconds since 1970."""

    def add_tokens(self, hashes: Iterable[bytes], expires: float) -> None:
        """Add enrolment tokens, as hashes."""

    def use_token(self, token_hash: bytes, now: float) -> bool:
        """Use a token up; False if it is unknown, used or expired."""

    def has_token(self, token_hash: bytes) -> bool:
        """Whether a token was ever added, used or not."""

    def add_agent(self, public_key: bytes, now: float, wanted: int | None = None) -> int:
        """Enrol a public key and return the agent's number: the one wanted if it is free, else one never used before.

        Draw it at random from very many, because a store that was restored does not know which ones it gave away.
        """

    def find_identity(self, agent: int) -> Identity | None:
        """Find the agent of that number."""

    def find_identity_by_key(self, public_key: bytes) -> Identity | None:
        """Find the agent of that public key."""

    def revoke_agent(self, agent: int, now: float) -> bool:
        """Revoke an agent: its requests are refused from now on. False if there is none of that number."""

    def use_nonce(self, agent: int, nonce: int, created: int) -> bool:
        """Record a nonce of a request that leaves no upload in the log; False if it is there already.

        ``created`` is when the request was signed: nonces of signatures that are long stale may be deleted.
        """

    def count_agents(self) -> int:
        """Count the enrolled agents, revoked ones too."""


class SnapshotStore(Protocol):
    """Snapshots of the server's state, each at a position of the log and in numbered parts.

    Parts may come in different transactions; a snapshot counts once all of its parts are there.
    """

    def save_snapshot_part(self, position: int, part: int, parts: int, body: bytes) -> None:
        """Save a part, counted from 0, of the snapshot at that position, which has ``parts`` of them."""

    def find_last_snapshot(self) -> int:
        """Find the position of the last complete snapshot; 0 if there is none."""

    def load_snapshot(self) -> tuple[int, bytes] | None:
        """Load the last complete snapshot with its position."""

    def delete_snapshot_part(self, *, before: int) -> bool:
        """Delete one part of a snapshot of an earlier position; False if there is none."""

    def delete_snapshots(self, *, before: int) -> None:
        """Delete all snapshots of earlier positions."""


class SettingStore(Protocol):
    """Named texts, such as the terms of the server and the hash of the operator's token."""

    def get_setting(self, name: str) -> str | None:
        """Read a setting; None if it was never set."""

    def set_setting(self, name: str, value: str) -> None:
        """Set a setting."""


class Store(UploadLog, IdentityStore, SnapshotStore, Journal, SettingStore, Protocol):
    """All of a server's data that must not be lost, on one database.

    ``failures`` are the exceptions of the database's driver: after one of them the store is closed and opened again.
    """

    failures: tuple[type[Exception], ...]

    def transaction(self) -> AbstractContextManager[None]:
        """Commit what happens inside, or undo all of it; no other process writes meanwhile. A commit is durable."""

    def interrupt(self) -> None:
        """Let the statement under way fail at once. Unlike all else, this is called from another thread."""

    def close(self) -> None:
        """Close the connection to the database."""

    def forget_agent(self, agent: int, position: int) -> None:
        """Erase an agent with its uploads, answers and rows of the journal; this takes a position of the log."""

    def find_last_forgetting(self) -> int:
        """Find the position of the last forgetting; 0 if there was none."""

    def purge_deleted_rows(self) -> None:
        """Erase what a committed forgetting has left in the database's own journals."""

    def run_maintenance(self) -> None:
        """Do housekeeping between two transactions, without delay for the next one. It never fails."""


@contextmanager
def explain_failures(store: Store) -> Iterator[None]:
    """Turn exceptions of the database's driver into one line for the operator."""
    try:
        yield
    except store.failures as error:
        raise Unavailable(f"the store is not available: {' '.join(str(error).split())}") from None
