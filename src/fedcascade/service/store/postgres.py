"""PostgreSQL 14 or later: several server processes on one database, one of which writes at a time.

All waits have time limits. Sessions hold no prepared statements, settings or locks beyond a transaction, so a pooler
such as PgBouncer may use another connection for each transaction.
"""

import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fedcascade.checks import require
from fedcascade.service.store.sql import MIGRATIONS
from fedcascade.service.store.sql_store import SqlStore

LOCK = 0x6665_6463  # an arbitrary number that identifies the advisory lock
POLL_SECONDS = 0.1  # between two readings of the clock in a wait
# To detect dead connections; the URL of the store may override them.
CONNECTION: dict[str, Any] = {
    "connect_timeout": 5,  # seconds, for each host
    "target_session_attrs": "read-write",  # of several hosts, the primary
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds that sent data may stay unacknowledged
}
SILENCE_SECONDS = 10.0  # without a byte from the database while a statement runs
LONG_SILENCE_SECONDS = 3_600.0  # the same for a migration or a restore
LIMITS = {  # in milliseconds; the database enforces them, in case its client is gone
    "statement_timeout": 60_000,
    "lock_timeout": 5_000,  # for the lock that serialises writers
    "idle_in_transaction_session_timeout": 30_000,  # then other servers can write
}


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up after ``silence`` seconds without a byte, or when another thread interrupts it."""

    silence = SILENCE_SECONDS
    interrupted = False

    def wait(self, gen: Any, interval: float = POLL_SECONDS, timeout: float | None = None) -> Any:
        """Run a generator of psycopg; close the connection after a time-out, because its state is unknown."""
        try:
            return super().wait(self._limit(gen, timeout or self.silence), min(interval, POLL_SECONDS))
        except SilentConnection:
            self.close()
            raise

    def _limit(self, gen: Generator[Any, Any, Any], silence: float) -> Generator[Any, Any, Any]:
        """Wrap a generator of psycopg with checks of time and interruption."""
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
                raise SilentConnection("the server is stopping")
            if now - heard > silence:
                raise SilentConnection(f"the database was silent for {silence:g} s")


class SilentConnection(psycopg.OperationalError):
    """The database does not answer, and the outcome of the statement is unknown."""


class PostgresStore(SqlStore):
    """A database that several servers share; a transaction holds an advisory lock, so positions have no gaps.

    Every transaction writes at least a message to the write-ahead log, so its commit waits for the standby and covers
    all that it read. A repeated upload whose first commit was not confirmed is therefore on the standby as well.
    """

    failures: tuple[type[Exception], ...] = (psycopg.Error,)
    begin_reading: ClassVar[str] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    column_types: ClassVar[Mapping[str, str]] = {"integer": "BIGINT", "real": "DOUBLE PRECISION", "bytes": "BYTEA"}

    def __init__(self, connection: BoundedConnection) -> None:
        super().__init__(connection)
        self.begin = (build_begin(),)
        self._warnings: list[str] = []
        connection.add_notice_handler(lambda notice: self._warnings.append(notice.message_primary or "a warning"))

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement after buffered writes, with binary results, which are cheaper for bytes."""
        self.flush()
        return self.connection.execute(statement.replace("?", "%s"), values or None, binary=bool(values))

    def commit(self) -> None:
        """Commit; raise an error at a warning, for example that the standby has not confirmed it.

        A cancelled wait for the standby ends in a warning, not in an error. So only the client limits the time of a
        commit.
        """
        self.flush()
        self._warnings.clear()
        cursor = self.run("SET LOCAL statement_timeout = 0; COMMIT")
        while cursor.nextset():
            pass
        if self._warnings or cursor.statusmessage != "COMMIT":
            raise psycopg.OperationalError("; ".join(self._warnings) or f"COMMIT became {cursor.statusmessage}")

    @contextmanager
    def stream(self, statement: str) -> Iterator[Any]:
        """Read through a server-side cursor, to bound memory."""
        self.flush()
        with self.connection.cursor("export", binary=True) as cursor:
            yield cursor.execute(statement)

    def copy_rows(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        names = ", ".join(columns)
        with self.connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def expect_long_statements(self) -> None:
        self.run("SET LOCAL statement_timeout = 0")
        self.connection.silence = LONG_SILENCE_SECONDS

    def interrupt(self) -> None:
        self.connection.interrupted = True


def build_begin() -> str:
    """Build the start of a transaction: its time limits, the writers' lock, and a message to commit."""
    settings = [f"SET LOCAL {name} = {limit}" for name, limit in LIMITS.items()]
    # Commits are durable even if the database is configured otherwise.
    kept = "CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END"
    durable = f"set_config('synchronous_commit', {kept}, true)"
    message = "pg_logical_emit_message(true, 'fedcascade', '')"
    # A lock for each schema of a tenant: they do not wait for each other.
    schema = "CASE WHEN left(current_schema(), 7) = 'tenant_' THEN hashtext(current_schema())::bigint ELSE 0 END"
    turn = f"SELECT pg_advisory_xact_lock({LOCK} + {schema}), {durable}, {message}"
    return "; ".join(["BEGIN", *settings, "SET LOCAL client_min_messages = warning", turn])


def open_postgres(url: str, migrations: Sequence[str] | None = MIGRATIONS) -> PostgresStore:
    """Connect to the primary of the hosts in the URL, and migrate the database unless ``migrations`` is None."""
    try:
        address = make_conninfo("", **(CONNECTION | conninfo_to_dict(url)))
        connection = BoundedConnection.connect(address, autocommit=True, prepare_threshold=None)
        schema = re.search(r"search_path=(tenant_\w+)", str(conninfo_to_dict(address).get("options") or ""))
        if schema is not None and migrations is not None:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema[1]}")
            [current] = connection.execute("SELECT current_schema()").fetchone() or [None]
            advice = "a pooler may drop it; connect to PostgreSQL itself, or give the tenant a store of its own"
            require(current == schema[1], f"the connection ignores search_path={schema[1]}: {advice}")
        store = PostgresStore(connection).prepare(migrations)
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot open the store: {reason.replace(url, 'its address')}") from None
    connection.silence = BoundedConnection.silence
    return store
