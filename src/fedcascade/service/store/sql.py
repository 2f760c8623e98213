"""A connection to an SQL database, with transactions and migrations; the parts of a store build on it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar


class SqlDatabase:
    """A connection of Python's database interface in autocommit mode.

    A subclass for one kind of database says how a transaction begins, what column types are called, and what
    exceptions its driver raises.
    """

    failures: tuple[type[Exception], ...] = ()
    begin: ClassVar[Sequence[str]] = ("BEGIN",)
    column_types: ClassVar[Mapping[str, str]] = {}

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement whose values are marked by ``?``, after the writes held back; return its cursor."""
        self.flush()
        return self.execute(statement, values)

    def execute(self, statement: str, values: Sequence[Any]) -> Any:
        """Execute a statement at once; return its cursor."""
        return self.connection.execute(statement, values)

    def fetch_row(self, statement: str, *values: Any) -> Any:
        """Execute a statement; return its first row, or None."""
        return self.run(statement, *values).fetchone()

    def fetch_rows(self, statement: str, *values: Any) -> Any:
        """Execute a statement; return all of its rows."""
        return self.run(statement, *values).fetchall()

    def flush(self) -> None:
        """Send the writes that a subclass holds back to send them together."""

    def drop_buffers(self) -> None:
        """Drop what a subclass holds for one transaction: rows read ahead, and writes not sent."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what happens inside, or roll all of it back after an exception."""
        for statement in self.begin:
            self.run(statement)
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            self.drop_buffers()
            with suppress(*self.failures):  # the database may have rolled back by itself, or be gone
                self.run("ROLLBACK")
            raise
        self.drop_buffers()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def migrate(self, migrations: Sequence[str]) -> None:
        """Run the migrations that this database has not seen; refuse one that a newer version has migrated."""
        with self.transaction():
            self.run("CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY)")
            done = self.fetch_row("SELECT coalesce(max(number), 0) FROM migration")[0]
            if done > len(migrations):
                raise ValueError(
                    f"the store is at migration {done}, this version knows {len(migrations)}: use a newer fedcascade"
                )
            for number, script in enumerate(migrations[done:], done + 1):
                for statement in script.format_map(self.column_types).split(";"):
                    if statement.strip():
                        self.run(statement)
                self.run("INSERT INTO migration (number) VALUES (?)", number)
