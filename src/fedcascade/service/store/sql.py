"""A connection to an SQL database with tables, transactions and migrations: the base of all parts of a store.

Column types of a migration are in braces, and each kind of database fills in their names. A released migration never
changes; a new layout is a new migration at the end.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar, Self

TABLES = ("setting", "agent", "nonce", "upload", "erased", "event", "snapshot", "chunk", "journal", "move", "audit")
# Entries form a hash chain; ``erased`` has the digests of erased uploads, ``event`` the entries that are not uploads.
# ``uploads`` and ``exchanges`` count the originals of a folded row, and ``folded`` is the last sequence number of an
# agent's folded uploads. ``nonce`` has the nonces of requests without uploads.
MIGRATIONS = (
    """
    CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE agent (
        id {integer} PRIMARY KEY, public_key {bytes} NOT NULL UNIQUE, enrolled {real} NOT NULL, revoked {real},
        folded {integer} NOT NULL DEFAULT 0);
    CREATE TABLE nonce (
        agent {integer} NOT NULL, nonce {integer} NOT NULL, created {integer} NOT NULL, PRIMARY KEY (agent, nonce));
    CREATE INDEX nonce_created ON nonce (created);
    CREATE TABLE upload (
        position {integer} PRIMARY KEY, agent {integer} NOT NULL, sequence {integer} NOT NULL, cause TEXT NOT NULL,
        count {integer} NOT NULL, clicks {integer} NOT NULL, rounds {integer} NOT NULL, numbers {bytes} NOT NULL,
        nonce {bytes} NOT NULL, uploads {integer} NOT NULL, salt {bytes} NOT NULL, link {bytes} NOT NULL,
        UNIQUE (agent, sequence));
    CREATE TABLE erased (position {integer} PRIMARY KEY, digest {bytes} NOT NULL);
    CREATE TABLE event (
        position {integer} PRIMARY KEY, kind TEXT NOT NULL, body {bytes} NOT NULL, link {bytes} NOT NULL);
    CREATE TABLE snapshot (position {integer} PRIMARY KEY, digests {bytes} NOT NULL);
    CREATE TABLE chunk (digest {bytes} PRIMARY KEY, body {bytes} NOT NULL);
    CREATE TABLE journal (
        position {integer} PRIMARY KEY, at {integer} NOT NULL, agent {integer} NOT NULL, cause TEXT NOT NULL,
        rounds {integer} NOT NULL, count {integer} NOT NULL, clicks {integer} NOT NULL, clusters {integer} NOT NULL,
        exchanges {integer} NOT NULL DEFAULT 1);
    CREATE TABLE move (
        position {integer} NOT NULL, at {integer} NOT NULL, agent {integer} NOT NULL, cluster {integer} NOT NULL,
        PRIMARY KEY (agent, position));
    CREATE INDEX move_position ON move (position);
    CREATE TABLE audit (
        number {integer} PRIMARY KEY, at {integer} NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
        agent {integer}, detail TEXT NOT NULL, link {bytes} NOT NULL)
    """,
)


class SqlDatabase:
    """A DB-API connection in autocommit mode; a subclass per kind of database sets the attributes."""

    failures: tuple[type[Exception], ...] = ()
    on_connect: ClassVar[Sequence[str]] = ()
    begin: Sequence[str] = ("BEGIN",)
    begin_reading: ClassVar[str] = "BEGIN"
    column_types: ClassVar[Mapping[str, str]] = {}

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement with ``?`` for values, after buffered writes; return its cursor."""
        self.flush()
        return self.connection.execute(statement, values)

    def fetch_row(self, statement: str, *values: Any) -> Any:
        return self.run(statement, *values).fetchone()

    def fetch_rows(self, statement: str, *values: Any) -> Any:
        return self.run(statement, *values).fetchall()

    def flush(self) -> None:
        """Send the buffered writes of a subclass."""

    def drop_buffers(self) -> None:
        """Drop the prefetched rows and buffered writes of a transaction."""

    def drop_caches(self) -> None:
        """Drop caches that outlive a transaction, after a rollback."""

    def prefetch(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Prefetch rows for a transaction."""

    @contextmanager
    def transaction(self, wanted: Sequence[tuple[int, int]] = ()) -> Iterator[None]:
        try:
            for statement in self.begin:
                self.run(statement)
            self.prefetch(wanted)
            yield
            self.commit()
        except BaseException:
            self.drop_buffers()
            self.drop_caches()
            with suppress(*self.failures):  # the database may have rolled back already, or be gone
                self.run("ROLLBACK")
            raise
        self.drop_buffers()

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Run reads on one consistent view of the database, while others may write."""
        self.run(self.begin_reading)
        try:
            yield
        finally:
            with suppress(*self.failures):
                self.run("ROLLBACK")

    def stream(self, statement: str) -> AbstractContextManager[Any]:
        """Run a query whose rows are fetched in pieces; the value is its cursor."""
        return nullcontext(self.run(statement))

    def commit(self) -> None:
        """Commit; raise if the database does not confirm it."""
        self.run("COMMIT")

    def expect_long_statements(self) -> None:
        """Lift the database's time limits, if any, for the rest of this transaction."""

    def interrupt(self) -> None:
        """Make the current statement fail at once; called from another thread."""
        self.connection.interrupt()

    def close(self) -> None:
        self.connection.close()

    def prepare(self, migrations: Sequence[str] | None) -> Self:
        """Set up the connection and migrate the database, unless ``migrations`` is None; close it if that fails."""
        try:
            for statement in self.on_connect:
                self.run(statement)
            if migrations is not None:
                self._migrate(migrations)
        except BaseException:
            self.close()
            raise
        return self

    def find_version(self) -> int:
        """Return the number of the last migration; 0 if there was none."""
        try:
            return int(self.fetch_row("SELECT coalesce(max(number), 0) FROM migration")[0])
        except self.failures:
            return 0

    def _migrate(self, migrations: Sequence[str]) -> None:
        """Run the missing migrations; refuse a database of a newer version."""
        with self.transaction():
            self.run("CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY)")
            done = self.fetch_row("SELECT coalesce(max(number), 0) FROM migration")[0]
            if done > len(migrations):
                raise ValueError(
                    f"the store is at migration {done}, this version knows {len(migrations)}: use a newer fedcascade"
                )
            if done < len(migrations):
                self.expect_long_statements()
            for number, script in enumerate(migrations[done:], done + 1):
                for statement in script.format_map(self.column_types).split(";"):
                    if statement.strip():
                        self.run(statement)
                self.run("INSERT INTO migration (number) VALUES (?)", number)
