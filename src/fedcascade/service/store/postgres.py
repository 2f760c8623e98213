"""PostgreSQL 14 or later: several server processes on one database, one of which writes at a time.

No wait here is without end, whatever the network swallows. Nothing is kept in a session: no prepared statements, no
settings, no locks beyond a transaction, so a pooler such as PgBouncer may hand each transaction to another connection.
"""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fedcascade.service.store.sql import EXPORT_ROWS, MIGRATIONS
from fedcascade.service.store.sql_store import SqlStore

LOCK = 0x6665_6463  # any number, as long as nobody else in this database uses it
POLL_SECONDS = 0.1  # how often a wait looks at the clock
# For connections that die without a word; the address of the store may say otherwise.
CONNECTION: dict[str, Any] = {
    "target_session_attrs": "read-write",  # of several hosts, the primary
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds that sent data may stay unacknowledged
}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How many seconds the store waits.

    Attributes:
        connect: for a connection to one host.
        silence: without a byte from the database while a statement runs. This one is kept by the client.
        lock: for the turn to write.
        statement: for one statement on the database, so that none goes on for long after its client is gone.
        idle: until the database ends a transaction whose server has stopped in the middle, and lets others write.
    """

    connect: int = 5
    silence: float = 10.0
    lock: float = 5.0
    statement: float = 60.0
    idle: float = 30.0


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up after ``silence`` seconds without a byte, or when another thread interrupts it."""

    silence = 10.0
    interrupted = False

    def wait(self, gen: Any, interval: float = POLL_SECONDS, timeout: float | None = None) -> Any:
        """Run a generator of psycopg to its end. A connection that was given up is closed: nobody knows its state."""
        try:
            return super().wait(self._limit(gen, timeout or self.silence), min(interval, POLL_SECONDS))
        except SilentConnection:
            self.close()
            raise

    def _limit(self, gen: Generator[Any, Any, Any], silence: float) -> Generator[Any, Any, Any]:
        """Pass a generator of psycopg on, and look at the clock whenever it waits."""
        ready, heard = None, time.monotonic()
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as done:
                return done.value
            ready = yield wanted
            now = time.monotonic()
            if ready:
                heard = now
            if self.interrupted:
                raise SilentConnection("the server is told to stop")
            if now - heard > silence:
                raise SilentConnection(f"the database was silent for {silence:g} s")


class SilentConnection(psycopg.OperationalError):
    """The database does not answer; whether it did what was asked is unknown."""


class UnconfirmedCommit(psycopg.OperationalError):
    """The database committed with a reservation, such as a standby that has not confirmed."""


class PostgresStore(SqlStore):
    """A database that others may share; a transaction holds an advisory lock, so positions have no gaps.

    A transaction always writes something, if only a message in the write-ahead log that nobody reads. So its commit
    waits for the standby, and confirms all that it has read as well: an upload whose own commit nobody confirmed is
    acknowledged when it is repeated, and by then it is on the standby too.
    """

    failures: tuple[type[Exception], ...] = (psycopg.Error,)
    begin_reading: ClassVar[str] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    column_types: ClassVar[Mapping[str, str]] = {
        "integer": "BIGINT",
        "real": "DOUBLE PRECISION",
        "bytes": "BYTEA",
    }

    def __init__(self, connection: BoundedConnection, patience: Patience) -> None:
        super().__init__(connection)
        self.begin = (build_begin(patience),)
        self._patience = patience
        self._warnings: list[str] = []
        connection.silence = patience.silence
        connection.add_notice_handler(lambda notice: self._warnings.append(notice.message_primary or "a warning"))

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement, after the writes held back; binary results are cheaper for bytes."""
        self.flush()
        return self.connection.execute(statement.replace("?", "%s"), values or None, binary=bool(values))

    def commit(self) -> None:
        """Commit; refuse to call it done if the database has any reservation.

        A wait for the standby that is cancelled ends in a warning and is no error to PostgreSQL. So this store never
        cancels one: no time limit of the database holds for a commit. The client's does.
        """
        self.flush()
        self._warnings.clear()
        cursor = self.run("SET LOCAL statement_timeout = 0; COMMIT")
        while cursor.nextset():
            pass
        if self._warnings or cursor.statusmessage != "COMMIT":
            raise UnconfirmedCommit("; ".join(self._warnings) or f"COMMIT became {cursor.statusmessage}")

    def read_table(self, table: str) -> Iterator[tuple[list[str], list[list[Any]]]]:
        """Read a table through a cursor of the database, because a plain query would hold all of it in memory."""
        self.run(f"DECLARE export CURSOR FOR SELECT * FROM {table}")
        while True:
            cursor = self.run(f"FETCH {EXPORT_ROWS} FROM export")
            rows = cursor.fetchall()
            if not rows:
                break
            yield [column.name for column in cursor.description], [list(row) for row in rows]
        self.run("CLOSE export")

    def copy_rows(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert many rows in one statement; numbers that the database would give are those of the rows."""
        names = ", ".join(columns)
        with self.connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def expect_long_statements(self) -> None:
        self.run("SET LOCAL statement_timeout = 0")
        self.connection.silence = max(3_600.0, self._patience.silence)

    def interrupt(self) -> None:
        self.connection.interrupted = True


def build_begin(patience: Patience) -> str:
    """Build what begins a transaction: limits that end with it, a message to be committed, and the turn to write."""
    limits = {
        "statement_timeout": patience.statement,
        "lock_timeout": patience.lock,
        "idle_in_transaction_session_timeout": patience.idle,
    }
    settings = [f"SET LOCAL {name} = {round(1000 * seconds)}" for name, seconds in limits.items()]
    # Where the operator has made commits less than durable, that is not for this store.
    kept = "CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END"
    durable = f"set_config('synchronous_commit', {kept}, true)"
    message = "pg_logical_emit_message(true, 'fedcascade', '')"
    turn = f"SELECT pg_advisory_xact_lock({LOCK}), {durable}, {message}"
    return "; ".join(["BEGIN", *settings, "SET LOCAL client_min_messages = warning", turn])


def open_postgres(
    url: str, migrations: Sequence[str] = MIGRATIONS, *, patience: Patience | None = None
) -> PostgresStore:
    """Connect, and bring the database up to date. Of several hosts in the address, the primary is found."""
    patience = patience or Patience()
    try:
        address = make_conninfo("", **({"connect_timeout": patience.connect} | CONNECTION | conninfo_to_dict(url)))
        connection = BoundedConnection.connect(address, autocommit=True, prepare_threshold=None)
        store = PostgresStore(connection, patience).prepare(migrations)
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot open the store: {reason.replace(url, 'its address')}") from None
    connection.silence = patience.silence
    return store
