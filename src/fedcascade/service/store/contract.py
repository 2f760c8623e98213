"""What a server asks of a store: a few narrow protocols, and ``Store``, their sum on one database.

``testing.stores`` has a class of tests for each protocol. A store is used by one thread at a time.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from fedcascade.federation.messages import Upload
from fedcascade.service.protocol.errors import Refused, Unavailable

AGENT_NUMBERS = range(10**11, 10**12)  # agents have numbers of 12 digits
AgentState = Literal["all", "spoken", "silent", "revoked"]
OPERATOR, LOCAL = "operator", "command line"  # actors of the audit log; the second can open the store itself


class LogEntry(NamedTuple):
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


class UploadTotals(NamedTuple):
    """What the log holds of one agent: its uploads, their rounds, and its largest sequence numbers; 0 for none.

    ``last_change`` is that of the last upload with the cause ``CHANGE``. Where it was folded with later ones, it is the
    number of the last of them.
    """

    uploads: int
    rounds: int
    last_sequence: int
    last_change: int


@dataclass(frozen=True)
class Identity:
    """An enrolled agent: its number, the public key it signs with, and when it enrolled and was revoked, if ever."""

    agent: int
    public_key: bytes
    enrolled: float
    revoked: float | None = None


@dataclass(frozen=True)
class AgentRecord:
    """An agent in a list: when it enrolled, in seconds, whether it is revoked, its last upload, in milliseconds."""

    agent: int
    enrolled: float
    revoked: bool
    last: int | None


class AgentPage(NamedTuple):
    """Some agents in the order of their numbers, and how many are enrolled and revoked in all."""

    records: list[AgentRecord]
    enrolled: int
    revoked: int


class Snapshot(NamedTuple):
    """A snapshot: its position, the digests of its chunks, and the chunks, which are read while they are taken."""

    position: int
    digests: list[bytes]
    chunks: Iterator[bytes]


class Head(NamedTuple):
    """The last position of the log, and that of the last forgetting or retention; 0 if there is none.

    Such an event changes entries before it, so a state of an earlier position cannot go on from the log: it is read
    again from the snapshot that was committed with the event.
    """

    position: int
    rewritten: int


@dataclass(frozen=True)
class ExchangeRecord:
    """An exchange without its statistics; ``clusters`` is how many there were after its commit."""

    position: int
    at: int
    agent: int
    cause: str
    rounds: int
    count: int
    clicks: int
    clusters: int


@dataclass(frozen=True)
class Move:
    """An agent joined a cluster. The name of a cluster stays the same while most of its members do."""

    position: int
    at: int
    agent: int
    cluster: int


class Changes(NamedTuple):
    """The exchanges and moves between two positions, in order."""

    exchanges: list[ExchangeRecord]
    moves: list[Move]


@dataclass(frozen=True)
class AgentTotals:
    """Sums over the exchanges of one agent, the time of the last one, and the agent's cluster; 0 for none."""

    agent: int
    uploads: int
    rounds: int
    clicks: int
    last: int
    cluster: int


@dataclass(frozen=True)
class ClusterSizes:
    """How large clusters are: names and sizes of the largest ones, and of each size how many clusters have it."""

    largest: list[tuple[int, int]]
    histogram: list[tuple[int, int]]

    @property
    def clusters(self) -> int:
        return sum(times for _, times in self.histogram)

    @property
    def agents(self) -> int:
        return sum(size * times for size, times in self.histogram)


@dataclass(frozen=True)
class IntervalTotals:
    """Sums over the exchanges of one cause in one interval of time, with the times of the first and the last.

    Intervals are numbered from 0. ``clusters`` is the most there were.
    """

    number: int
    cause: str
    exchanges: int
    rounds: int
    count: int
    clicks: int
    clusters: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """Something that an operator or an agent did. ``at`` is in milliseconds since 1970; records count from 1.

    Agents are named by number alone, which is random and reveals nothing of a forgotten agent's key or data.
    """

    number: int
    at: int
    actor: str
    action: str
    agent: int | None
    detail: str


class Revoked(Refused):
    """Refuses an agent that was revoked, by whichever process, or was forgotten."""

    def __init__(self, agent: int) -> None:
        super().__init__(403, "revoked", f"agent {agent} is no longer valid: it was revoked or has left")


class Folded(Refused):
    """Refuses an upload that was counted so long ago that the log does not hold it any more by itself."""

    def __init__(self, agent: int, sequence: int) -> None:
        counted = f"upload {sequence} of agent {agent} was counted long ago, and later ones after it"
        super().__init__(409, "superseded", f"{counted}: send the uploads that came after it")


class UploadLog(Protocol):
    """The uploads of all agents in the order in which they were counted, as a hash chain (``store.chain``)."""

    def append(self, position: int, upload: Upload, nonce: bytes = b"", numbers: bytes = b"") -> None:
        """Append the next upload, with the nonce of its signature, and link it to the entry before it.

        ``numbers`` are gram and moment in the bytes in which they came, if they came in bytes.
        """

    def read_entries(self, after: int) -> Iterator[LogEntry]:
        """Read the log beyond a position, in order; raise ``DamagedStore`` where it is not what was written."""

    def find_entry(self, agent: int, sequence: int) -> LogEntry | None:
        """Find an agent's upload of that sequence number.

        Raise ``Revoked`` if the agent is not enrolled or revoked, ``Folded`` if that upload was folded into another.
        """

    def sum_uploads(self, agent: int) -> UploadTotals:
        """Sum an agent's uploads in the log."""

    def fold_uploads(self, before: int, position: int, least: int, most: int) -> tuple[int, int]:
        """Fold uploads from before a time, in milliseconds, into one per agent beside its last; at most ``most``.

        Return the position of the last one folded and their number; nothing happens if these are ``least`` or fewer.
        Folding takes a position of the log, and folds the journal too. It leaves the server's state as it is.
        """


class IdentityStore(Protocol):
    """The enrolled agents. Times are seconds since 1970."""

    def put_identity(self, identity: Identity) -> None:
        """Enrol an agent, or replace what is known of it."""

    def find_identity(self, agent: int | bytes) -> Identity | None:
        """Find the agent of that number, or of that public key."""

    def list_agents(self, after: int, most: int, state: AgentState = "all") -> AgentPage:
        """List agents beyond a number, in the order of their numbers; silent ones have never uploaded anything."""

    def use_nonce(self, agent: int, nonce: int, created: int) -> bool:
        """Record a nonce of a request that leaves no upload in the log; False if it is there already.

        ``created`` is when the request was signed: nonces of signatures that are long stale may be deleted.
        """

    def forget_agent(self, agent: int, position: int) -> None:
        """Erase an agent with its uploads and rows of the journal; this takes a position of the log."""


class SnapshotStore(Protocol):
    """The last snapshot of the server's state, in chunks that are named by their digests.

    Chunks may come in different transactions, and a chunk of the snapshot before need not come again. A snapshot counts
    once it is committed, and replaces the one before.
    """

    def put_chunks(self, chunks: Mapping[bytes, bytes]) -> None:
        """Save chunks by their digests, and delete a few of those that the snapshot does not need."""

    def commit_snapshot(self, position: int, digests: Sequence[bytes], *, purge: bool = False) -> bool:
        """Make chunks in this order the snapshot at a position; False, and nothing happens, if one is not there.

        With ``purge`` all other chunks are deleted at once. Without any digests there is no snapshot any more.
        """

    def read_snapshot(self) -> Snapshot | None:
        """Read the snapshot. Its iterator raises ``DamagedStore`` at a chunk that is not what was written."""


class Journal(Protocol):
    """A narrow copy of the log for pages, with times and clusters, so that any server on the store shows the same.

    Times are whole milliseconds since 1970. ``after`` and ``upto`` are positions of the log, the first excluded and the
    last included.
    """

    def record_batch(self, after: int, at: int, clusters: int, moves: Iterable[tuple[int, int]]) -> None:
        """Copy every upload of the log beyond a position into the journal, and record pairs of agent and new cluster.

        A later move of an agent at the same position of the log replaces the earlier one.
        """

    def find_head(self, at: int | None = None) -> Head:
        """Find how far the journal goes, or how far it went at a time."""

    def read_changes(self, after: int, upto: int) -> Changes:
        """Read the exchanges and moves between two positions."""

    def count_sizes(self, upto: int, most: int) -> ClusterSizes:
        """Count how many agents clusters have at a position; of the largest, at most so many are named."""

    def sum_by_agent(self, upto: int, most: int | None = None) -> list[AgentTotals]:
        """Sum the exchanges of every agent up to a position, or of so many agents with the smallest numbers.

        Numbers of agents are drawn at random, so these are a fair sample.
        """

    def sum_by_interval(self, upto: int, since: int, width: int) -> list[IntervalTotals]:
        """Sum the exchanges from the time ``since`` on, by intervals of ``width`` milliseconds and by cause."""


class AuditLog(Protocol):
    """What agents and operators did, when, as a hash chain of its own."""

    def record_audit(self, at: int, actor: str, action: str, agent: int | None = None, detail: str = "") -> None:
        """Append a record."""

    def read_audit(self) -> Iterator[AuditRecord]:
        """Read all records in order; raise ``DamagedStore`` where one is not what was written."""


class SettingStore(Protocol):
    """Named texts, such as the terms of the server, hashes of tokens and counts of refusals."""

    def get_setting(self, name: str) -> str | None:
        """Read a setting; None if it was never set."""

    def set_setting(self, name: str, value: str) -> None:
        """Set a setting."""


class Store(UploadLog, IdentityStore, SnapshotStore, Journal, AuditLog, SettingStore, Protocol):
    """All of a server's data that must not be lost, on one database.

    ``failures`` are the exceptions of the database's driver: after one of them the store is closed and opened again.
    """

    failures: tuple[type[Exception], ...]

    def transaction(self, wanted: Sequence[tuple[int, int]] = ()) -> AbstractContextManager[None]:
        """Commit what happens inside, or undo all of it; no other process writes meanwhile. A commit is durable.

        ``wanted`` are pairs of agent and sequence number that ``find_entry`` will look for, to read them at once.
        """

    def interrupt(self) -> None:
        """Let the statement under way fail at once. Unlike all else, this is called from another thread."""

    def close(self) -> None:
        """Close the connection to the database."""

    def verify(self, noted: tuple[int, bytes] | None = None) -> tuple[int, bytes]:
        """Verify everything that has a checksum; return the last position of the log and the link of the chain there.

        ``noted`` is what an earlier call returned: nothing up to there may have changed since.
        Raise ``DamagedStore`` at the first flaw.
        """

    def run_maintenance(self, *, purge: bool = False) -> bool:
        """Do housekeeping between two transactions, without delay for the next one. It never fails.

        With ``purge``, erase what a committed forgetting has left in the database's own journals, at once; return False
        if that must be repeated.
        """


def add_agent(store: IdentityStore, public_key: bytes, now: float, wanted: int | None = None) -> int:
    """Enrol a public key and return the agent's number: the one wanted if it is free, else a random one.

    There are so many numbers that none is given twice, not even by a store that was restored and has lost some.
    """
    agent = wanted or secrets.choice(AGENT_NUMBERS)
    while store.find_identity(agent) is not None:
        agent = secrets.choice(AGENT_NUMBERS)
    store.put_identity(Identity(agent, public_key, now))
    return agent


@contextmanager
def explain_failures(store: Store) -> Iterator[None]:
    """Turn exceptions of the database's driver into one line for the operator."""
    try:
        yield
    except store.failures as error:
        raise Unavailable(f"the store is not available: {' '.join(str(error).split())}") from None
