"""The contract of a store, which ``testing.stores`` tests. A store is used by one thread at a time."""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from fedcascade.federation.messages import Upload
from fedcascade.service.protocol.errors import Refused, Unavailable
from fedcascade.service.protocol.wire import UploadMessage

AGENT_NUMBERS = range(10**11, 10**12)  # so many that even a restored store does not use one twice
AgentState = Literal["all", "active", "idle", "revoked"]  # active: has uploaded
OPERATOR, LOCAL = "operator", "command line"  # actors of the audit log


class LogEntry(NamedTuple):
    """An upload at its position in the log, with the nonce of its signature."""

    position: int
    upload: Upload
    nonce: bytes = b""


def is_same_upload(first: Upload, second: Upload) -> bool:
    """Return whether two uploads have the same agent, sequence number, cause and statistics."""
    sent = UploadMessage.from_upload(first), UploadMessage.from_upload(second)
    return first.agent == second.agent and sent[0] == sent[1]


class UploadTotals(NamedTuple):
    """Totals of one agent's uploads in the log; 0 for none.

    ``last_change`` is the sequence number of the last upload with the cause ``CHANGE``, or of the fold that holds it.
    """

    uploads: int
    rounds: int
    last_sequence: int
    last_change: int


@dataclass(frozen=True)
class Identity:
    """An enrolled agent: number, public key, and times of enrolment and revocation."""

    agent: int
    public_key: bytes
    enrolled: float
    revoked: float | None = None


@dataclass(frozen=True)
class AgentRecord:
    """An agent in a list; ``enrolled`` is in seconds, ``last`` the time of its last upload in milliseconds."""

    agent: int
    enrolled: float
    revoked: bool
    last: int | None


class AgentPage(NamedTuple):
    """Some agents in the order of their numbers, and the totals of enrolled and revoked agents."""

    records: list[AgentRecord]
    enrolled: int
    revoked: int


class Snapshot(NamedTuple):
    """A snapshot: its position, the digests of its chunks, and an iterator that reads the chunks."""

    position: int
    digests: list[bytes]
    chunks: Iterator[bytes]


class Head(NamedTuple):
    """The last position of the log, and ``rewritten``, that of the last deletion or retention; 0 if there is none.

    Such an event changes earlier entries, so a state of an earlier position must be read again from its snapshot.
    """

    position: int
    rewritten: int


@dataclass(frozen=True)
class ExchangeRecord:
    """An exchange without its statistics; ``clusters`` is the number of clusters after its commit."""

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
    """A move of an agent to a cluster. A cluster keeps its name while most of its members stay."""

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
    """Names and sizes of the largest clusters, and the number of clusters of each size."""

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
    """Sums over the exchanges of one cause in one interval of time; ``clusters`` is the maximum."""

    number: int
    cause: str
    exchanges: int
    rounds: int
    count: int
    clicks: int
    clusters: int
    first: int
    last: int


@dataclass(frozen=True)
class AuditRecord:
    """An action of an operator or an agent. ``at`` is in milliseconds since 1970; records count from 1.

    Agents have random numbers, which reveal nothing of a forgotten agent's key or data.
    """

    number: int
    at: int
    actor: str
    action: str
    agent: int | None
    detail: str


class Revoked(Refused):
    """The refusal of an agent that was revoked or forgotten."""

    def __init__(self, agent: int) -> None:
        super().__init__(403, "revoked", f"agent {agent} is no longer valid: it was revoked or has left")


class Folded(Refused):
    """The refusal of an upload that was counted before and has been folded into another."""

    def __init__(self, agent: int, sequence: int) -> None:
        counted = f"upload {sequence} of agent {agent} was counted long ago"
        super().__init__(409, "superseded", f"{counted}: send only the uploads after it")


class Store(Protocol):
    """The durable data of a server, on one database.

    ``failures`` are the exceptions of the database's driver, after which the store is closed and opened again.
    """

    failures: tuple[type[Exception], ...]

    def transaction(self, wanted: Sequence[tuple[int, int]] = ()) -> AbstractContextManager[None]:
        """Run a transaction that excludes other writers; a commit is durable.

        ``wanted`` are pairs of agent and sequence number to prefetch for ``find_entry``.
        """

    def interrupt(self) -> None:
        """Make the current statement fail at once; called from another thread."""

    def close(self) -> None:
        """Close the connection to the database."""

    def verify(self, noted: tuple[int, bytes] | None = None) -> tuple[int, bytes]:
        """Verify all checksums; return the last position of the log and the link of the chain there.

        ``noted`` is the result of an earlier call: the log up to there must be unchanged. Raise ``DamagedStore`` at the
        first flaw.
        """

    def run_maintenance(self, *, purge: bool = False) -> bool:
        """Do maintenance between two transactions, without delaying the next one. It never fails.

        With ``purge``, erase deleted data from the database's own journals at once; return False to be called again.
        """

    # The log: the uploads of all agents in the order of counting, as a hash chain (``store.chain``).

    def append(self, position: int, upload: Upload, nonce: bytes = b"", numbers: bytes = b"") -> None:
        """Append the next upload with the nonce of its signature; ``numbers`` are its packed gram and moment."""

    def read_entries(self, after: int) -> Iterator[LogEntry]:
        """Read the log beyond a position, in order; raise ``DamagedStore`` at a flaw."""

    def find_entry(self, agent: int, sequence: int) -> LogEntry | None:
        """Find an agent's upload of that sequence number.

        Raise ``Revoked`` if the agent is unknown or revoked, ``Folded`` if the upload was folded into another.
        """

    def sum_uploads(self, agent: int) -> UploadTotals:
        """Sum an agent's uploads in the log."""

    def fold_uploads(self, before: int, position: int, least: int, most: int) -> tuple[int, int]:
        """Fold at most ``most`` uploads from before a time, in milliseconds, into one per agent beside its last.

        Return the position of the last one folded and their number; do nothing if these are ``least`` or fewer. Folding
        takes a position of the log, folds the journal too, and does not change the server's state.
        """

    # The enrolled agents; times are seconds since 1970.

    def put_identity(self, identity: Identity) -> None:
        """Add or replace an agent."""

    def find_identity(self, agent: int | bytes) -> Identity | None:
        """Find the agent of that number, or of that public key."""

    def list_agents(self, after: int, most: int, state: AgentState = "all") -> AgentPage:
        """List agents beyond a number, in the order of their numbers; idle ones have never uploaded."""

    def use_nonce(self, agent: int, nonce: int, created: int) -> bool:
        """Record the nonce of a request signed at ``created``; return False if it was used before."""

    def forget_agent(self, agent: int, position: int) -> None:
        """Erase an agent with its uploads and journal; this takes a position of the log."""

    # The last snapshot of the server's state, in chunks named by their digests. Chunks may be saved in several
    # transactions; those of the previous snapshot, which a committed one replaces, need not be saved again.

    def put_chunks(self, chunks: Mapping[bytes, bytes]) -> None:
        """Save chunks by their digests, and delete a few unused ones."""

    def commit_snapshot(self, position: int, digests: Sequence[bytes], *, purge: bool = False) -> bool:
        """Make these chunks the snapshot at a position; return False and do nothing if one is missing.

        With ``purge`` all other chunks are deleted at once. Without digests the snapshot is deleted.
        """

    def read_snapshot(self) -> Snapshot | None:
        """Read the snapshot; its iterator raises ``DamagedStore`` at a damaged chunk."""

    # The journal: a narrow copy of the log for the dashboard, with times in milliseconds since 1970, and clusters.
    # ``after`` and ``upto`` are positions of the log, exclusive and inclusive.

    def record_batch(self, after: int, at: int, clusters: int, moves: Iterable[tuple[int, int]]) -> None:
        """Copy the uploads beyond a position into the journal, and record moves: pairs of agent and new cluster.

        A later move of an agent at the same position replaces the earlier one.
        """

    def find_head(self, at: int | None = None) -> Head:
        """Find the head of the journal, now or at a time."""

    def read_changes(self, after: int, upto: int) -> Changes:
        """Read the exchanges and moves between two positions."""

    def count_sizes(self, upto: int, most: int) -> ClusterSizes:
        """Count the sizes of clusters at a position, with the names of the ``most`` largest."""

    def sum_by_agent(self, upto: int, most: int | None = None) -> list[AgentTotals]:
        """Sum the exchanges of each agent up to a position, or of a random sample of ``most`` agents."""

    def sum_by_interval(self, upto: int, since: int, width: int) -> list[IntervalTotals]:
        """Sum the exchanges since a time by intervals of ``width`` milliseconds and by cause."""

    # The audit log: actions of agents and operators, as a hash chain of its own.

    def record_audit(self, at: int, actor: str, action: str, agent: int | None = None, detail: str = "") -> None:
        """Append a record."""

    def read_audit(self) -> Iterator[AuditRecord]:
        """Read all records in order; raise ``DamagedStore`` at a flaw."""

    # Settings: named texts, such as the terms of the server, hashes of tokens and counts of refusals.

    def get_setting(self, name: str) -> str | None:
        """Return a setting; None if it was never set."""

    def set_setting(self, name: str, value: str) -> None:
        """Set a setting."""


def add_agent(store: Store, public_key: bytes, now: float, wanted: int | None = None) -> int:
    """Enrol a public key and return the agent's number: ``wanted`` if it is free, else a random one."""
    agent = wanted or secrets.choice(AGENT_NUMBERS)
    while store.find_identity(agent) is not None:
        agent = secrets.choice(AGENT_NUMBERS)
    store.put_identity(Identity(agent, public_key, now))
    return agent


@contextmanager
def explain_failures(store: Store) -> Iterator[None]:
    """Turn exceptions of the database's driver into ``Unavailable``, with one line for the operator."""
    try:
        yield
    except store.failures as error:
        raise Unavailable(f"the store is not available: {' '.join(str(error).split())}") from None
