"""PostgreSQL 14 or later: several server processes on one database, one of which writes at a time."""

from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg

from fedcascade.service.store.sql import SqlStore
from fedcascade.service.store.sql_journal import TABLES

LOCK = 0x6665_6463  # any number, as long as nobody else in this database uses it
MIGRATIONS = (
    """
    CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE agent (
        id BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY, public_key BYTEA NOT NULL UNIQUE,
        enrolled DOUBLE PRECISION NOT NULL, revoked DOUBLE PRECISION);
    CREATE TABLE enrolment (token_hash BYTEA PRIMARY KEY, expires DOUBLE PRECISION NOT NULL, used DOUBLE PRECISION);
    CREATE TABLE upload (
        position BIGINT PRIMARY KEY, agent BIGINT NOT NULL, sequence BIGINT NOT NULL, cause TEXT NOT NULL,
        count BIGINT NOT NULL, clicks BIGINT NOT NULL, rounds BIGINT NOT NULL, numbers BYTEA NOT NULL,
        UNIQUE (agent, sequence));
    CREATE TABLE answer (position BIGINT PRIMARY KEY, body BYTEA NOT NULL);
    CREATE TABLE snapshot (
        position BIGINT NOT NULL, part INTEGER NOT NULL, parts INTEGER NOT NULL, body BYTEA NOT NULL,
        PRIMARY KEY (position, part))
    """,
    "CREATE TABLE forgotten (position BIGINT PRIMARY KEY)",
    "ALTER TABLE upload ADD COLUMN nonce BYTEA NOT NULL DEFAULT ''::bytea",
    TABLES.format(whole="BIGINT", number="BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY", real="DOUBLE PRECISION"),
)


class PostgresStore(SqlStore):
    """A database that others may share; a transaction holds an advisory lock, so positions have no gaps."""

    failures: tuple[type[Exception], ...] = (psycopg.Error,)
    begin: ClassVar[Sequence[str]] = ("BEGIN", f"SELECT pg_advisory_xact_lock({LOCK})")

    def execute(self, statement: str, values: Sequence[Any]) -> Any:
        """Execute a statement; binary results are cheaper for bytes."""
        return self.connection.execute(statement.replace("?", "%s"), values or None, binary=bool(values))


def open_postgres(url: str) -> PostgresStore:
    """Connect, and bring the database up to date."""
    try:
        connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
    except psycopg.Error as error:
        raise ValueError(f"cannot open the store: {' '.join(str(error).split())}") from None
    store = PostgresStore(connection)
    try:
        store.migrate(MIGRATIONS)
    except BaseException:
        connection.close()
        raise
    return store
