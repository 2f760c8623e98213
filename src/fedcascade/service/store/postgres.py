"""PostgreSQL 14 or later: several server processes on one database, one of which writes at a time."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import psycopg

from fedcascade.service.store.schema import MIGRATIONS
from fedcascade.service.store.sql_store import SqlStore

LOCK = 0x6665_6463  # any number, as long as nobody else in this database uses it


class PostgresStore(SqlStore):
    """A database that others may share; a transaction holds an advisory lock, so positions have no gaps."""

    failures: tuple[type[Exception], ...] = (psycopg.Error,)
    begin: ClassVar[Sequence[str]] = ("BEGIN", f"SELECT pg_advisory_xact_lock({LOCK})")
    column_types: ClassVar[Mapping[str, str]] = {
        "integer": "BIGINT",
        "real": "DOUBLE PRECISION",
        "bytes": "BYTEA",
        "identity": "BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY",
    }

    def run(self, statement: str, *values: Any) -> Any:
        """Execute a statement, after the writes held back; binary results are cheaper for bytes."""
        self.flush()
        return self.connection.execute(statement.replace("?", "%s"), values or None, binary=bool(values))


def open_postgres(url: str, migrations: Sequence[str] = MIGRATIONS) -> PostgresStore:
    """Connect, and bring the database up to date."""
    try:
        connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
    except psycopg.Error as error:
        raise ValueError(f"cannot open the store: {' '.join(str(error).split())}") from None
    return PostgresStore(connection).prepare(migrations)
