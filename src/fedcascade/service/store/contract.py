"""What a server asks of a store: a few narrow protocols, and ``Store``, their sum on one database.

``testing.stores`` has a class of tests for each protocol. A store is used by one thread at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np

from fedcascade.federation.messages import Upload
from fedcascade.service.protocol.errors import Refused, Unavailable
from fedcascade.service.store.audit import AuditLog
from fedcascade.service.store.journal import Journal


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An upload at its position in the log, with the nonce of the signature that it came with.

    ``numbers`` are gram and moment in the bytes in which they came, where they came in bytes: what is logged.
    """

    position: int
    upload: Upload
    nonce: bytes = b""
    numbers: bytes = b""


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


@dataclass(frozen=True)
class AgentRecord:
    """An agent in a list: when it enrolled, in seconds, whether it is revoked, when it last spoke, in milliseconds."""

    agent: int
    enrolled: float
    revoked: bool
    last: int | None


AgentState = Literal["all", "spoken", "silent", "revoked"]


class Revoked(Refused):
    """Refuses an agent that was revoked, by whichever process, or was forgotten."""

    def __init__(self, agent: int) -> None:
        super().__init__(403, "revoked", f"agent {agent} may not speak: it was revoked or has left")


class Folded(Refused):
    """Refuses an upload that was counted so long ago that the log does not hold it any more by itself."""

    def __init__(self, agent: int, sequence: int) -> None:
        counted = f"upload {sequence} of agent {agent} was counted long ago, and later ones after it"
        super().__init__(409, "superseded", f"{counted}: send the uploads that came after it")


class UploadLog(Protocol):
    """The uploads of all agents in the order in which they were counted, as a hash chain (``store.chain``)."""

    def append(self, entry: LogEntry) -> None:
        """Append the next upload, and link it to the entry before it."""

    def read_entries(self, after: int) -> Iterator[LogEntry]:
        """Read the log beyond a position, in order; raise ``DamagedStore`` where it is not what was written."""

    def prefetch_entries(self, keys: Sequence[tuple[int, int]]) -> None:
        """Read at once what ``find_entry`` will look for in this transaction: pairs of agent and sequence number."""

    def find_entry(self, agent: int, sequence: int) -> LogEntry | None:
        """Find an agent's upload of that sequence number.

        Raise ``Revoked`` if the agent may not speak, and ``Folded`` if that upload was folded into another.
        """

    def find_last_sequence(self, agent: int) -> int:
        """Find the largest sequence number of an agent's uploads that were ever logged; 0 if there is none."""

    def find_last_change(self, agent: int) -> int:
        """Find the largest sequence number of an agent's uploads with the cause ``CHANGE``; 0 if there is none.

        Where such an upload was folded with later ones, it is the number of the last of them.
        """

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

    def count_revoked(self) -> int:
        """Count the enrolled agents that are revoked."""

    def list_agents(self, after: int, most: int, state: AgentState = "all") -> list[AgentRecord]:
        """List agents beyond a number, in the order of their numbers; silent ones have never uploaded anything."""


class SnapshotStore(Protocol):
    """The last snapshot of the server's state, in chunks that are named by their digests.

    Chunks may come in different transactions, and a chunk of the snapshot before need not come again. A snapshot counts
    once it is saved, and replaces the one before.
    """

    def save_chunks(self, chunks: Mapping[bytes, bytes]) -> None:
        """Save chunks by their digests; one that is there stays."""

    def save_snapshot(self, position: int, digests: Sequence[bytes]) -> bool:
        """Save the snapshot at a position as chunks in order; False, and nothing is saved, if one is not there."""

    def find_last_snapshot(self) -> int:
        """Find the position of the snapshot; 0 if there is none."""

    def load_snapshot(self) -> tuple[int, Iterator[bytes]] | None:
        """Load the snapshot with its position, as chunks in order that are read while they are taken.

        Raise ``DamagedStore`` at a chunk that is not what was written.
        """

    def list_snapshot_chunks(self) -> list[bytes]:
        """List the digests of the chunks of the snapshot, in order."""

    def find_unused_chunks(self) -> list[bytes]:
        """Find the digests of chunks that do not belong to the snapshot."""

    def delete_chunks(self, digests: Iterable[bytes]) -> None:
        """Delete chunks."""

    def delete_snapshots(self) -> None:
        """Delete the snapshot and all chunks."""


class SettingStore(Protocol):
    """Named texts, such as the terms of the server and the hash of the operator's token."""

    def get_setting(self, name: str) -> str | None:
        """Read a setting; None if it was never set."""

    def set_setting(self, name: str, value: str) -> None:
        """Set a setting."""


class Store(UploadLog, IdentityStore, SnapshotStore, Journal, AuditLog, SettingStore, Protocol):
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
        """Erase an agent with its uploads and rows of the journal; this takes a position of the log."""

    def find_last_rewriting(self) -> int:
        """Find the position of the last forgetting or retention; 0 if there was none.

        Such an event changes entries before it, so a state of an earlier position cannot go on from the log: it is
        read anew from the snapshot that was saved with the event.
        """

    def purge_deleted_rows(self) -> bool:
        """Erase what a committed forgetting has left in the database's own journals; False if that must be repeated."""

    def find_old_uploads(self, before: int, most: int) -> tuple[int, int]:
        """Find the last of the uploads from before a time, in milliseconds, that are not folded, and their number.

        Of more than ``most``, that many are counted. The position is 0 if there are none.
        """

    def fold_uploads(self, horizon: int, position: int) -> None:
        """Fold all but the last upload of each agent up to a horizon into one; this takes a position of the log.

        The rows of the journal are folded too. The server's state does not change, and is saved with this.
        """

    def verify(self, noted: tuple[int, bytes] | None = None) -> tuple[int, bytes]:
        """Verify everything that has a checksum; return the last position of the log and the link of the chain there.

        ``noted`` is what an earlier call returned: nothing up to there may have changed since.
        Raise ``DamagedStore`` at the first flaw.
        """

    def run_maintenance(self) -> None:
        """Do housekeeping between two transactions, without delay for the next one. It never fails."""


@contextmanager
def explain_failures(store: Store) -> Iterator[None]:
    """Turn exceptions of the database's driver into one line for the operator."""
    try:
        yield
    except store.failures as error:
        raise Unavailable(f"the store is not available: {' '.join(str(error).split())}") from None
