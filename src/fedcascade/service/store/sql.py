"""A connection to an SQL database, with transactions and migrations; the parts of a store build on it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self

EXPORT_ROWS = 256


class SqlDatabase:
    """A connection of Python's database interface in autocommit mode.

    A subclass for one kind of database says with what statements a connection and a transaction begin, what column
    types are called, and what exceptions its driver raises.
    """

    failures: tuple[type[Exception], ...] = ()
    on_connect: ClassVar[Sequence[str]] = ()
    begin: Sequence[str] = ("BEGIN",)
    begin_reading: ClassVar[str] = "BEGIN"
    column_types: ClassVar[Mapping[str, str]] = {}
    explicit_identity: ClassVar[str] = ""  # what an INSERT says that gives the number of a row itself

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement whose values are marked by ``?``, after the writes held back; return its cursor."""
        self.flush()
        return self.connection.execute(statement, values)

    def fetch_row(self, statement: str, *values: Any) -> Any:
        return self.run(statement, *values).fetchone()

    def fetch_rows(self, statement: str, *values: Any) -> Any:
        return self.run(statement, *values).fetchall()

    def flush(self) -> None:
        """Send the writes that a subclass holds back to send them together."""

    def drop_buffers(self) -> None:
        """Drop what a subclass holds for one transaction: rows read ahead, and writes not sent."""

    def drop_caches(self) -> None:
        """Drop what a subclass knows of the database across transactions, after one that was undone."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            for statement in self.begin:
                self.run(statement)
            yield
            self.commit()
        except BaseException:
            self.drop_buffers()
            self.drop_caches()
            with suppress(*self.failures):  # the database may have rolled back by itself, or be gone
                self.run("ROLLBACK")
            raise
        self.drop_buffers()

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Read everything inside as of one moment; others may write meanwhile."""
        self.run(self.begin_reading)
        try:
            yield
        finally:
            with suppress(*self.failures):
                self.run("ROLLBACK")

    def read_table(self, table: str) -> Iterator[tuple[list[str], list[list[Any]]]]:
        """Read all rows of a table, some at a time, with the names of its columns."""
        cursor = self.run(f"SELECT * FROM {table}")
        columns = [column[0] for column in cursor.description]
        while rows := cursor.fetchmany(EXPORT_ROWS):
            yield columns, [list(row) for row in rows]

    def commit(self) -> None:
        """Commit; raise if the database does not vouch for it."""
        self.run("COMMIT")

    def expect_long_statements(self) -> None:
        """Lift limits of time, if the database has any, for the rest of this transaction."""

    def interrupt(self) -> None:
        """Let the statement under way fail at once; another thread calls this."""
        self.connection.interrupt()

    def convert(self, migration: int) -> None:
        """Do the part of a migration that SQL cannot say."""

    def close(self) -> None:
        self.connection.close()

    def prepare(self, migrations: Sequence[str]) -> Self:
        """Set the connection up and run the migrations that its database has not seen; close it if that fails."""
        try:
            for statement in self.on_connect:
                self.run(statement)
            self._migrate(migrations)
        except BaseException:
            self.close()
            raise
        return self

    def _migrate(self, migrations: Sequence[str]) -> None:
        """Run the migrations that are missing; refuse a database that a newer version has migrated."""
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
                self.convert(number)
                self.run("INSERT INTO migration (number) VALUES (?)", number)
